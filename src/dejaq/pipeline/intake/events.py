"""Events: the rows of segments as they enter the lake, and what a batch of them touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.pipeline.intake.segments import DAY_MS, ROW_BITS, Checked, Segment, day_name
from dejaq.pipeline.lake.tables import EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MINUTE_MS = 60_000
# A file that says no more than that hand-overs lie within a longer time than this is looked into.
_STRETCH_DAYS_MAX = 2
# A message, by what its store knows it by; and its topic.
KEY, TOPIC = ("id", "topic", "store"), ("topic", "store")


def read_segments(spark: SparkSession, segments: Sequence[Segment]) -> DataFrame:
    """The events of segments, with the day each belongs to."""
    rows = spark.read.schema(EVENTS).parquet(*(segment.path.absolute().as_uri() for segment in segments))
    return with_store(rows).withColumn("day", day_of(F.col("at_ms")))


def with_store(rows: DataFrame) -> DataFrame:
    """The rows, those of a store that one broker has named by its origin."""
    return rows.withColumn("store", F.coalesce("store", "origin"))


def day_of(ms: Column) -> Column:
    """The UTC day of a time, as text."""
    return F.date_from_unix_date(_day_number(ms)).cast("string")


def _day_number(ms: Column) -> Column:
    return F.floor(ms / F.lit(DAY_MS)).cast("int")


def minute_of(ms: Column) -> Column:
    """The start of the minute of a time."""
    return ms - F.pmod(ms, F.lit(MINUTE_MS))


def order_of() -> Column:
    """An event's place in its store's history, as one number."""
    return F.shiftleft(F.coalesce("ticket", "sequence"), ROW_BITS).bitwiseOR(F.col("row").cast("long"))


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
    # Whether any message was delivered and released.
    gave_back: bool
    # Whether any topic was deleted.
    dropped: bool

    def and_of(self, other: Touched) -> Touched:
        """What these events and others are about."""
        return Touched(
            self.newest_ms,
            joined(self.minutes, other.minutes),
            gave_back=self.gave_back or other.gave_back,
            dropped=self.dropped or other.dropped,
        )


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
        F.count(F.when(F.col("kind") == "topic_dropped", 1)).alias("dropped"),
    )
    found = by_days.collect()
    newest: dict[str, int] = {}
    minutes = Minutes()
    for row in found:
        newest[row.origin] = max(newest.get(row.origin, 0), row.newest_ms)
        minutes.add(row.first, row.last)
        if row.handed_first is not None:
            minutes.add(row.handed_first, row.handed_last)
    return Touched(
        newest,
        minutes.by_day,
        gave_back=any(row.given_back for row in found),
        dropped=any(row.dropped for row in found),
    )


def touched_by_segments(segments: Sequence[Checked]) -> Touched | None:
    """The same from what the files say of themselves; None when they do not say enough."""
    newest: dict[str, int] = {}
    minutes = Minutes()
    gave_back = dropped = False
    for checked in segments:
        at, handed, origin = checked.at_ms, checked.handed_us, checked.segment.origin
        if not (at.known and handed.known and checked.kind.known) or at.least is None:
            return None
        newest[origin] = max(newest.get(origin, 0), at.greatest)
        minutes.add(at.least, at.greatest)
        if handed.least is not None:
            if handed.least <= 0 or handed.greatest - handed.least > _STRETCH_DAYS_MAX * DAY_MS * 1000:
                return None
            minutes.add(handed.least // 1000, handed.greatest // 1000)
        # The last two kinds of the alphabet: a file whose greatest comes before them has none of them.
        gave_back = gave_back or (handed.least is not None and str(checked.kind.greatest) >= "released")
        dropped = dropped or str(checked.kind.greatest) >= "topic_dropped"
    return Touched(newest, minutes.by_day, gave_back=gave_back, dropped=dropped)


def joined(one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Stretches of minutes that reach over both, by day."""
    minutes = Minutes()
    for first, last in [*one.values(), *other.values()]:
        minutes.add(first, last)
    return minutes.by_day


class Minutes:
    """Stretches of minutes, one a day."""

    def __init__(self) -> None:
        self.by_day: dict[str, tuple[int, int]] = {}

    def add(self, first_ms: int, last_ms: int) -> None:
        """Reach from one time to another."""
        for number in range(first_ms // DAY_MS, last_ms // DAY_MS + 1):
            low, high = max(first_ms, number * DAY_MS), min(last_ms, (number + 1) * DAY_MS - 1)
            low, high = low - low % MINUTE_MS, high - high % MINUTE_MS
            before = self.by_day.get(day_name(number), (low, high))
            self.by_day[day_name(number)] = (min(before[0], low), max(before[1], high))
