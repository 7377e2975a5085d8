"""The pipeline's speed: reads a synthetic journal of so many events into a new lake, then runs every job on it.

    python -m bench.lake --events 10000000
    python -m bench.lake --events 100000000 --brokers 3 --jobs audit --directory /mnt/large --name lake_100m_ingest
    python -m bench.lake --events 100000000 --brokers 3 --master cluster --batch-events 5000000

Writes the figures to `bench/results/lake.json`, with the rate of every commit, so that a rate that falls with the size
of the lake is seen. A commit is a tenth of the events, but at most ten million; what the commit before it left is
compacted beside it, and is part of its time and of its processor time. A commit of held events may follow the last
tenth. With the job `audit`, messages that are lost, doubled, early or unexplained are an error. `bench.lake_journal`
describes the journal. `--journal` takes one that was written before. Journal and lake are below `--directory`, and are
removed at the end.
`--master cluster` starts a standalone cluster of two workers on this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import keep
from dejaq.pipeline.intake.ingest import EVENTS_MAX_DEFAULT, run
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.reporting import findings
from dejaq.pipeline.spark.session import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOAL_EVENTS_PER_S = 250_000
LOOK_S = 0.5
# A process that runs its parent's program for longer than this is a worker.
BEGINNING_S = 1.0


def main() -> None:
    """Fill a journal, ingest it, run the jobs on the lake, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--batch-events", type=int, help="events per commit; a tenth of all, at most ten million")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--journal", type=Path, help="a journal that bench.lake_journal wrote before")
    parser.add_argument("--directory", type=Path, help="where the journal and the lake are; the directory for /tmp")
    parser.add_argument("--jobs", default=",".join(_JOBS), help="the jobs to run, separated by commas")
    parser.add_argument("--no-jobs", dest="jobs", action="store_const", const="", help="only ingest")
    parser.add_argument("--name", default="lake", help="the name under which the figures are kept")
    arguments = parser.parse_args()
    arguments.batch_events = arguments.batch_events or min(EVENTS_MAX_DEFAULT, -(-arguments.events // 10))
    home = Path(tempfile.mkdtemp(prefix="dejaq-lake-", dir=arguments.directory))
    try:
        begun = time.perf_counter()
        journal = arguments.journal or _written(home / "synthetic", arguments)
        written_s = round(time.perf_counter() - begun, 1)
        with _session(arguments.master) as spark:
            found = _measure(home, journal, spark, arguments)
        keep(arguments.name, {"master": arguments.master, "journal_s": written_s, **found})
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _written(output: Path, arguments: argparse.Namespace) -> Path:
    """A new journal, made by a process of its own, so that its memory is not counted."""
    command = [sys.executable, "-m", "bench.lake_journal", "--output", str(output)]
    command += ["--events", str(arguments.events), "--brokers", str(arguments.brokers)]
    subprocess.run(command, check=True)
    return output / "journal"


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    if master != "cluster":
        spark = start(master)
        try:
            yield spark
        finally:
            spark.stop()
        return
    from tests.spark.standalone import standalone

    with standalone(Path(tempfile.mkdtemp(prefix="dejaq-cluster-")), 2, memory_mb=3_072) as cluster:
        spark = start(cluster.url, settings={**cluster.settings, "spark.sql.shuffle.partitions": "8"})
        try:
            yield spark
        finally:
            spark.stop()


def _measure(home: Path, journal: Path, spark: SparkSession, arguments: argparse.Namespace) -> dict[str, object]:
    steps: dict[str, float] = {}
    last: tuple[str, float] = ("", time.perf_counter())

    def step(what: str, _: int) -> None:
        nonlocal last
        now = time.perf_counter()
        steps[last[0]] = steps.get(last[0], 0.0) + now - last[1]
        last = (what, now)

    lake = Lake(spark, str(home / "lake"))
    commits: list[dict[str, float]] = []
    begun = at = time.perf_counter()
    with _memory() as memory:
        cpu_s = _cpu_s()
        for batch in run(lake, journal, events_max=arguments.batch_events, step=step):
            step("", 0)
            files = {table: len(lake.head.files(table)) for table in lake.head.tables}
            commits.append(
                {
                    "events": batch.events,
                    "events_per_s": round(batch.events / (time.perf_counter() - at)),
                    "cpu_us_per_event": round((_cpu_s() - cpu_s) / batch.events * 1e6, 2),
                    "load": round(os.getloadavg()[0], 1),
                    "memory_mb": round(max(memory)),
                    "files": sum(files.values()),
                }
            )
            memory.clear()
            memory.append(0.0)
            cpu_s, at = _cpu_s(), time.perf_counter()
            print(commits[-1], files, file=sys.stderr, flush=True)
    taken_s = time.perf_counter() - begun
    segments = list(journal.rglob("*.parquet"))
    return {
        "brokers": arguments.brokers,
        "events": lake.head.events,
        "segments": len(segments),
        "segments_bytes": sum(path.stat().st_size for path in segments),
        "lake_bytes": sum(path.stat().st_size for path in (home / "lake").rglob("*.parquet")),
        "commits": commits,
        "ingest_s": round(taken_s, 1),
        "events_per_s": round(lake.head.events / taken_s),
        "goal_events_per_s": GOAL_EVENTS_PER_S,
        "steps_s": {name: round(seconds, 1) for name, seconds in steps.items() if name},
        **_jobs(lake, [name for name in arguments.jobs.split(",") if name]),
    }


@contextmanager
def _memory() -> Iterator[list[float]]:
    """The resident megabytes of this process and those below it, measured twice per second."""
    found, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            found.append(sum(_resident_mb(process) for process in _family() if not _is_beginning(process)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _family() -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = [os.getpid()]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _cpu_s() -> float:
    """The processor time of this process and those below it. Executors of a cluster are not below it."""
    ticks = 0
    for process in _family():
        try:
            ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _is_beginning(process: int) -> bool:
    """Whether a process is about to run a program: until then it has the memory of its parent, which is counted."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        lives_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        command, parents = (Path(f"/proc/{one}/cmdline").read_bytes() for one in (process, int(fields[1])))
    except OSError:
        return True
    return lives_s < BEGINNING_S and command == parents


def _resident_mb(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


_JOBS: dict[str, Callable[[Lake], findings.Findings]] = {
    "audit": findings.audit,
    "accuracy": findings.accuracy,
    "forecast": lambda lake: findings.forecast(lake, now_ms=lake.head.reached_ms),
    "retries": findings.retries,
    "traffic": findings.traffic,
}


def _jobs(lake: Lake, names: Sequence[str]) -> dict[str, object]:
    """The seconds that each job took, and what the audit found."""
    seconds: dict[str, float] = {}
    figures: dict[str, object] = {}
    for name in names:
        begun = time.perf_counter()
        found = _JOBS[name](lake)
        assert not found.failed, found.figures
        seconds[name] = round(time.perf_counter() - begun, 1)
        if name == "audit":
            figures = found.figures
    return {"jobs_s": seconds, "audit": figures}


if __name__ == "__main__":
    main()
