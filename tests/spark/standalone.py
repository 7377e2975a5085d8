"""A real Spark cluster on this machine: the master and the workers are processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from dejaq.pipeline.spark.java import find_java
from dejaq.pipeline.spark.session import cache_directory
from dejaq.testing.waiting import wait_until

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
SECONDS_MAX = 120


def java_options() -> str:
    """Options with which a JVM that lives for seconds starts and runs fast."""
    archives = sorted(cache_directory().glob("spark-*.jsa"))
    shared = f"-XX:SharedArchiveFile={archives[-1]} -Xshare:auto " if archives else ""
    return f"{shared}-XX:TieredStopAtLevel=1 -Xlog:disable -Xlog:all=off"


def environment() -> dict[str, str]:
    """An environment in which every address is on loopback."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DEJAQ_", "SPARK_", "PYSPARK_"))}
    home = str(find_java(cache_directory()).home)
    return {
        **kept,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": java_options(),
        "JAVA_HOME": home,
        "PYSPARK_PYTHON": sys.executable,
    }


@dataclass
class Cluster:
    url: str
    workers: list[subprocess.Popen[bytes]]
    memory_mb: int

    @property
    def settings(self) -> dict[str, str]:
        """Spark settings for small, quick executors."""
        return {
            "spark.executor.memory": f"{self.memory_mb}m",
            "spark.executor.extraJavaOptions": java_options(),
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
        }

    @property
    def conf(self) -> list[str]:
        """The same settings as options of `dejaq pipeline`."""
        return [part for name, value in self.settings.items() for part in ("--conf", f"{name}={value}")]

    def executors(self) -> list[int]:
        """The executors that the workers have started; the workers also have other, temporary child processes."""
        workers = {worker.pid for worker in self.workers}
        children = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) in workers]
        return [pid for pid in children if "CoarseGrainedExecutorBackend" in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


@contextmanager
def standalone(home: Path, workers: int = 2, *, memory_mb: int = 512) -> Iterator[Cluster]:
    """A master with workers of one core each, for the duration of the block."""
    home.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = home / f"{name}.log"
        with log.open("wb") as file:
            command = [SPARK_CLASS, f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
            process = subprocess.Popen(
                command, stdout=file, stderr=file, cwd=home, env=environment(), start_new_session=True
            )
        started.append(process)
        return log

    try:
        place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = start("master", "master.Master", *place)
        wait_until(lambda: _found(log, r"spark://127\.0\.0\.1:[1-9]\d*"), within=SECONDS_MAX, what="master", poll=0.1)
        url = _found(log, r"spark://127\.0\.0\.1:[1-9]\d*")
        for number in range(workers):
            size = ("--cores", "1", "--memory", f"{memory_mb + 256}m", "--work-dir", str(home / f"worker-{number}"))
            log = start(f"worker-{number}", "worker.Worker", url, *place, *size)
            wait_until(lambda: _found(log, "Successfully registered"), within=SECONDS_MAX, what="worker", poll=0.1)
        yield Cluster(url, started[1:], memory_mb)
    finally:
        for process in reversed(started):
            # This also ends the executors, which belong to the same session.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _found(log: Path, pattern: str) -> str:
    match = re.search(pattern, log.read_text(errors="replace"))
    return match[0] if match else ""
