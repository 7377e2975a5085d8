"""The start of `dejaq pipeline run` on a lake of many commits, all of them kept, beyond the start of Spark.

    python -m bench.lake_commits --commits 10000

The lake is filled from a small synthetic journal. Then each commit replaces the file of facts by a copy, which takes
some minutes, because each lists those that are kept. New segments come, and the figures are the seconds until
Spark runs, from there until the pipeline begins with the first of them, and until they are committed. They go to
`bench/results/lake_commits.json`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

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
    few = _add(journal, home, spark)
    begun = time.perf_counter()
    lake = Lake(spark, str(home / "lake"))
    with lake.writing():
        while lake.head.version < commits:
            _replace_facts(lake)
    made_s = time.perf_counter() - begun
    print(f"{lake.head.version:,} commits made in {made_s:.0f} s", file=sys.stderr, flush=True)
    many = _add(journal, home, spark)
    return {
        "commits": lake.head.version,
        "made_s": round(made_s, 1),
        "with_few_commits": few,
        "with_all_commits": many,
        "goal_until_first_step_s": GOAL_S,
        "load": round(os.getloadavg()[0], 1),
    }


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


if __name__ == "__main__":
    main()
