"""A snapshot of the live timeline for the audit and the forecast: from Parquet, or from a broker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from dejaq.errors import PipelineError
from dejaq.pipeline.spark.failures import explained
from pyspark_dejaq.columns import ARROW_SCHEMA
from pyspark_dejaq.options import Options
from pyspark_dejaq.reading import PendingReader, read_range
from pyspark_dejaq.worker import forget_transport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How far the clocks of the driver and the broker may be apart.
CLOCK_MS = 1_000
# A topic with at most so many messages is read by the driver.
ROWS_FEW = 100_000


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """What was on the timeline (topic, id, due_ms) at some moment between `begun_ms` and `ended_ms`."""

    rows: DataFrame
    begun_ms: int
    ended_ms: int
    # Topics that were left out, since the journal knows nothing of them.
    silent: tuple[str, ...] = ()


def from_broker(spark: SparkSession, url: str, topics: Sequence[str], *, silent: Sequence[str] = ()) -> TableSnapshot:
    """Read the topics through the connector, whole, now; `silent` names those of which no journal is kept."""
    begun_ms = int(time.time() * 1000)
    with explained():
        parts = [
            _topic(spark, {"dejaq.url": url, "subscribe": topic, "includeBody": "false"}).select(
                "topic", "id", F.col("ts").alias("due_ms")
            )
            for topic in topics
        ]
        if parts:
            # Kept, since a second look would be another snapshot.
            rows = reduce(lambda left, right: left.unionByName(right), parts).persist()
            rows.count()
        else:
            rows = spark.range(0).selectExpr("'' AS topic", "'' AS id", "0L AS due_ms")
    return TableSnapshot(rows, begun_ms - CLOCK_MS, int(time.time() * 1000) + CLOCK_MS, tuple(silent))


def _topic(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    """The messages of a topic. Few of them are read here, which takes less than starting Python processes for tasks."""
    parts = PendingReader(Options.parse({**given, "minPartitions": "1"})).few(ROWS_FEW)
    if parts is None:
        return spark.read.format("dejaq").options(**given).load()
    (part,) = parts
    try:
        rows = pa.Table.from_batches(read_range(part), ARROW_SCHEMA)
    finally:
        forget_transport(part.url)
    return spark.createDataFrame(rows.select(["topic", "id", "ts"]))


def from_parquet(spark: SparkSession, path: str, taken_ms: int) -> TableSnapshot:
    """Read a snapshot that was taken at one moment and kept; it has the columns topic and id, and may have ts."""
    with explained():
        rows = spark.read.parquet(path)
    missing = [name for name in ("topic", "id") if name not in rows.columns]
    if missing:
        raise PipelineError(f"the snapshot {path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    due = F.col("ts") if "ts" in rows.columns else F.lit(None).cast("long")
    return TableSnapshot(rows.select("topic", "id", due.alias("due_ms")), taken_ms, taken_ms)
