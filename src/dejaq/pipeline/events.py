"""Events: the rows of segments as they enter the lake, and what a batch of them touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.pipeline.segments import ROW_BITS, Segment
from dejaq.pipeline.tables import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MINUTE_MS = 60_000
KEY = ("id", "topic", "origin")


def read_segments(spark: SparkSession, segments: Sequence[Segment]) -> DataFrame:
    """The events of segments, with the day each belongs to."""
    rows = spark.read.schema(EVENTS).parquet(*(segment.path.absolute().as_uri() for segment in segments))
    return rows.withColumn("day", day_of(F.col("at_ms")))


def day_of(ms: Column) -> Column:
    """The UTC day of a time, as text."""
    return F.date_from_unix_date((ms / F.lit(86_400_000)).cast("int")).cast("string")


def minute_of(ms: Column) -> Column:
    """The start of the minute of a time."""
    return ms - F.pmod(ms, F.lit(MINUTE_MS))


def order_of() -> Column:
    """An event's place in its origin's history, as one number."""
    return F.shiftleft(F.col("sequence"), ROW_BITS).bitwiseOR(F.col("row").cast("long"))


def handed_ms() -> Column:
    """The millisecond in which user code got a message; null where it did not."""
    return F.floor(F.when(F.col("handed_us") > 0, F.col("handed_us")) / 1000).cast("long")


@dataclass(frozen=True, slots=True)
class Touched:
    """What a batch of events is about."""

    events: int
    # The time of the newest event, by origin.
    newest_ms: Mapping[str, int]
    # The first and last minute in which something happened, by day.
    minutes: Mapping[str, tuple[int, int]]
    # Whether any message was handed over and given back.
    gave_back: bool


def touched_by(events: DataFrame) -> Touched:
    """What these events are about; hand-overs count for the minute in which user code got the message."""
    by_event = events.groupBy("day", "origin").agg(
        F.count(F.lit(1)).alias("events"),
        F.max("at_ms").alias("newest_ms"),
        F.min(minute_of(F.col("at_ms"))).alias("first"),
        F.max(minute_of(F.col("at_ms"))).alias("last"),
        F.count(F.when((F.col("kind") == "released") & (F.col("handed_us") > 0), 1)).alias("given_back"),
    )
    handed = events.select(handed_ms().alias("ms")).where("ms is not null")
    by_hand_over = handed.groupBy(day_of(F.col("ms")).alias("day")).agg(
        F.min(minute_of(F.col("ms"))).alias("first"), F.max(minute_of(F.col("ms"))).alias("last")
    )
    none = F.lit(None)
    found = by_event.unionByName(
        by_hand_over.select(
            "day",
            none.cast("string").alias("origin"),
            none.cast("long").alias("events"),
            none.cast("long").alias("newest_ms"),
            "first",
            "last",
            none.cast("long").alias("given_back"),
        )
    ).collect()
    newest: dict[str, int] = {}
    minutes: dict[str, tuple[int, int]] = {}
    for row in found:
        if row.origin is not None:
            newest[row.origin] = max(newest.get(row.origin, 0), row.newest_ms)
        first, last = minutes.get(row.day, (row.first, row.last))
        minutes[row.day] = (min(first, row.first), max(last, row.last))
    return Touched(
        events=sum(row.events or 0 for row in found),
        newest_ms=newest,
        minutes=minutes,
        gave_back=any(row.given_back for row in found),
    )
