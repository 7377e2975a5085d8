"""The start of `dejaq pipeline run` on a lake of many commits, all of them kept, beyond the start of Spark.

    python -m bench.lake_commits --commits 10000

The lake is filled from a small synthetic journal. Then each commit replaces the file of facts by a copy, without Spark
and without waiting for the disk. New segments come, and the figures are the seconds until Spark runs, from there until
the pipeline begins with the first of them, and until they are committed; the seconds that the command
`dejaq pipeline run` takes from its start to its end; and the processor time of a commit in each tenth. They go to
`bench/results/lake_commits.json`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from bench.figures import keep
from bench.lake_journal import SyntheticJournal
from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.spark.session import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOAL_S = 5.0
EVENTS = 5_000
YEAR_MS = 365 * 86_400_000


def main() -> None:
    """Make the lake, add to it, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=10_000)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="dejaq-lake-"))
    begun = time.perf_counter()
    spark = start("local[2]", brief=True)
    spark_s = time.perf_counter() - begun
    try:
        keep("lake_commits", {"spark_start_s": round(spark_s, 2), **_measure(home, spark, arguments.commits)})
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)


def _measure(home: Path, spark: SparkSession, commits: int) -> dict[str, object]:
    journal = SyntheticJournal(home)
    journal.write(EVENTS)
    lake = Lake(spark, str(home / "lake"))
    list(run(lake, home / "journal", keep_ms=YEAR_MS))
    few = _add(journal, home, spark) | _run_command(journal, home)
    begun = time.perf_counter()
    commit_ms = _fill(Lake(spark, str(home / "lake")), commits)
    made_s = time.perf_counter() - begun
    print(f"{commits:,} commits made in {made_s:.0f} s", file=sys.stderr, flush=True)
    many = _add(journal, home, spark) | _run_command(journal, home)
    return {
        "commits": commits,
        "made_s": round(made_s, 1),
        "cpu_ms_per_commit_of_each_tenth": commit_ms,
        "with_few_commits": few,
        "with_all_commits": many,
        "goal_until_first_step_s": GOAL_S,
        "load": round(os.getloadavg()[0], 1),
    }


def _fill(lake: Lake, commits: int) -> list[float]:
    """Commit until the lake has so many commits; the processor time of a commit in each tenth of them."""
    found = []
    with _without_syncing(), lake.writing():
        lake.head = replace(lake.head, keep_ms=YEAR_MS)
        first = lake.head.version
        for tenth in range(1, 11):
            before, cpu_s = lake.head.version, time.process_time()
            while lake.head.version < first + (commits - first) * tenth // 10:
                _replace_facts(lake)
            made = max(1, lake.head.version - before)
            found.append(round((time.process_time() - cpu_s) / made * 1000, 2))
    return found


@contextmanager
def _without_syncing() -> Iterator[None]:
    """A lake of a benchmark need not survive a power failure, and half an hour would be waiting for the disk."""
    with patch("os.fsync"):
        yield


def _replace_facts(lake: Lake) -> None:
    (partition, files), *_ = lake.head.partitions("facts").items()
    assert lake.files.local is not None
    (file,) = lake.adopt("facts", {lake.files.local / "facts" / files[0]: partition}, lake.new_batch())
    lake.commit(lake.head.with_table("facts", dropped=[files[0]], added=[file]))


def _add(journal: SyntheticJournal, home: Path, spark: SparkSession) -> dict[str, float]:
    """Add new segments as a pipeline does that was just started."""
    journal.write(EVENTS)
    steps: list[float] = []
    begun = time.perf_counter()
    lake = Lake(spark, str(home / "lake"))
    (added,) = run(lake, home / "journal", step=lambda what, events: steps.append(time.perf_counter() - begun))
    assert added.version == lake.head.version
    return {"until_first_step_s": round(steps[0], 2), "until_committed_s": round(time.perf_counter() - begun, 2)}


def _run_command(journal: SyntheticJournal, home: Path) -> dict[str, float]:
    """Add new segments by the command, which starts a Spark of its own."""
    journal.write(EVENTS)
    command = [str(Path(sys.executable).with_name("dejaq")), "pipeline", "run", "--master", "local[2]"]
    begun = time.perf_counter()
    subprocess.run([*command, "--journal", str(home / "journal"), "--lake", str(home / "lake")], check=True)
    return {"command_s": round(time.perf_counter() - begun, 2)}


if __name__ == "__main__":
    main()
