"""Events: the rows of segments as they enter the lake, and what a batch of them touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
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
    return F.date_from_unix_date(_day_number(ms)).cast("string")


def _day_number(ms: Column) -> Column:
    return F.floor(ms / F.lit(86_400_000)).cast("int")


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

    # The time of the newest event, by origin.
    newest_ms: Mapping[str, int]
    # The first and last minute in which something happened, by day.
    minutes: Mapping[str, tuple[int, int]]
    # Whether any message was handed over and given back.
    gave_back: bool


def touched_by(events: DataFrame) -> Touched:
    """What these events are about; hand-overs count for the minute in which user code got the message."""
    at, handed = F.col("at_ms"), handed_ms()
    # Days as numbers: they are grouped faster than text.
    by_days = events.groupBy("origin", _day_number(at).alias("day"), _day_number(handed).alias("handed_day")).agg(
        F.max(at).alias("newest_ms"),
        F.min(at).alias("first"),
        F.max(at).alias("last"),
        F.min(handed).alias("handed_first"),
        F.max(handed).alias("handed_last"),
        F.count(F.when((F.col("kind") == "released") & (F.col("handed_us") > 0), 1)).alias("given_back"),
    )
    found = by_days.collect()
    newest: dict[str, int] = {}
    minutes: dict[str, tuple[int, int]] = {}
    for row in found:
        newest[row.origin] = max(newest.get(row.origin, 0), row.newest_ms)
        stretches = [(row.day, row.first, row.last), (row.handed_day, row.handed_first, row.handed_last)]
        for number, first, last in stretches:
            if number is not None:
                day = (date(1970, 1, 1) + timedelta(days=number)).isoformat()
                low, high = minutes.get(day, (first, last))
                minutes[day] = (min(low, first), max(high, last))
    return Touched(
        newest_ms=newest,
        minutes={day: (low - low % MINUTE_MS, high - high % MINUTE_MS) for day, (low, high) in minutes.items()},
        gave_back=any(row.given_back for row in found),
    )
