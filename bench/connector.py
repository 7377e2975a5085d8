"""The connector compared with Parquet: the same rows, written and read through both in turns, in one Spark session.

    python -m bench.connector --rows 1000000 --rounds 3

Writes the medians and every round to `bench/results/connector.json`. Rows have natural ids, 100-byte bodies, and times
that follow each other at `--rate` per second. Writing starts from the same Parquet file for both. Reading takes every
column of every row, and throws them away (Spark's `noop`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import dejaq.sync
from bench.figures import keep
from dejaq.pipeline.spark.session import start
from dejaq.testing.servers.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODY_BYTES = 100
BASE_MS = 1_900_000_000_000
GOALS = {"read": 0.40, "write": 0.25, "export": 0.60}


def main() -> None:
    """Run the rounds and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=1_000, help="messages due per second")
    parser.add_argument("--name", default="connector", help="the name under which the figures are kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dejaq-connector-") as folder:
        asyncio.run(_measure(Path(folder), arguments))


async def _measure(home: Path, arguments: argparse.Namespace) -> None:
    async with BrokerProcess(home / "data", options=["--log-level", "warning"]) as broker:
        spark = await asyncio.to_thread(start)
        try:
            figures = await asyncio.to_thread(_rounds, spark, broker.url, home, arguments)
        finally:
            spark.stop()
        # Before the broker ends: its end fails when anything blocked its event loop for too long.
        keep(arguments.name, figures)


def _rounds(spark: SparkSession, url: str, home: Path, arguments: argparse.Namespace) -> dict[str, object]:
    source, rows = str(home / "source"), arguments.rows
    _rows(spark, rows, arguments.rate).write.parquet(source)
    # Load and compile everything before the first measurement.
    _round(spark, url, home, "warm", spark.read.parquet(source).limit(20_000))
    taken: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        taken.append(_round(spark, url, home, f"round-{number}", spark.read.parquet(source)))
        print(
            f"round {number + 1}: { ({name: f'{rows / s:,.0f}/s' for name, s in taken[-1].items()}) }", file=sys.stderr
        )
    rates = {name: rows / median(one[name] for one in taken) for name in taken[0]}
    shares = {
        kind: median(one[f"{kind}_parquet"] / one[f"{kind}_dejaq"] for one in taken) for kind in ("write", "read")
    }
    shares["export"] = median(one["read_parquet"] / one["export_and_read"] for one in taken)
    return {
        "rows": rows,
        "body_bytes": BODY_BYTES,
        "due_per_s": arguments.rate,
        "rows_per_s": {name: round(rate) for name, rate in rates.items()},
        "share_of_parquet": {kind: round(share, 3) for kind, share in shares.items()},
        "goals": GOALS,
        "rounds_s": taken,
    }


def _rows(spark: SparkSession, count: int, rate: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  the usual name

    number = F.col("id")
    return spark.range(0, count, 1, 8).select(
        F.concat(F.lit("customer-"), number).alias("id"),
        (F.lit(BASE_MS) + F.floor(number * 1_000 / rate).cast("long")).alias("ts"),
        F.rpad(F.sha2(number.cast("string"), 256), BODY_BYTES, "x").cast("binary").alias("body"),
    )


def _round(spark: SparkSession, url: str, home: Path, name: str, rows: DataFrame) -> dict[str, float]:
    with dejaq.sync.connect(url) as client:
        client.create_topic(name)

    def through_dejaq() -> None:
        rows.write.format("dejaq").option("dejaq.url", url).option("topic", name).mode("append").save()

    def pending() -> DataFrame:
        return spark.read.format("dejaq").option("dejaq.url", url).option("subscribe", name).load()

    seconds = {
        "write_parquet": _timed(lambda: rows.write.parquet(str(home / name / "rows"))),
        "write_dejaq": _timed(through_dejaq),
        "read_dejaq": _timed(lambda: pending().write.format("noop").mode("overwrite").save()),
    }
    # The rows as the connector returns them, all columns, for the other half of the comparison.
    pending().write.parquet(str(home / name / "pending"))
    there = spark.read.parquet(str(home / name / "pending"))
    seconds["read_parquet"] = _timed(lambda: there.write.format("noop").mode("overwrite").save())
    seconds["export_and_read"] = _timed(lambda: _exported(spark, url, name, home))
    with dejaq.sync.connect(url) as client:
        client.delete_topic(name)
    return seconds


def _exported(spark: SparkSession, url: str, topic: str, home: Path) -> None:
    """Export a topic, read the files, and remove them."""
    from pyspark_dejaq.exporting import export

    with export(spark, url, topic, home / "exports") as made:
        made.frame().write.format("noop").mode("overwrite").save()


def _timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
