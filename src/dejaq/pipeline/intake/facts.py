"""Facts: what happened in each topic and minute."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.pipeline.intake.events import MINUTE_MS, day_of, handed_ms, minute_of
from dejaq.pipeline.lake.tables import FACTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A hand-over counts as late from here on.
LATE_MS = 1_000
# Below this many hand-overs in a minute the percentiles are exact.
_ACCURACY = 10_000
# Of minutes: so few are compared one by one, and more than so many are slow to list.
_LISTED_MIN, _LISTED_MAX = 11, 3_000
_KINDS = (
    "created",
    "leased",
    "deleted",
    "cancelled",
    "dead_lettered",
    "expired",
    "released",
    "extended",
    "moved",
    "edited",
    "recalled",
)


def within(minutes: Mapping[str, tuple[int, int]], column: Column) -> Column:
    """Whether a time lies in the stretch of minutes given for its day.

    Spark compiles numbers that are compared into its code, again for each batch. It looks up long lists in a set.
    """
    many = sum((last - first) // MINUTE_MS + 1 for first, last in minutes.values())
    if many > _LISTED_MAX:
        stretches = [(column >= first) & (column < last + MINUTE_MS) for first, last in minutes.values()]
        return reduce(or_, stretches)
    listed = [ms for first, last in minutes.values() for ms in range(first, last + MINUTE_MS, MINUTE_MS)]
    # No minute is negative.
    listed += range(-_LISTED_MIN, 0)
    return minute_of(column).isin(listed)


def facts(events: DataFrame, hand_overs: DataFrame) -> DataFrame:
    """One row per topic and minute. A delivery counts for the minute in which user code received the message."""
    kind = F.col("kind")
    counted = events.groupBy("topic", minute_of(F.col("at_ms")).alias("minute_ms")).agg(
        *(F.count(F.when(kind == name, 1)).alias(name) for name in _KINDS),
        F.coalesce(F.sum(F.when(kind == "created", F.col("body_bytes"))), F.lit(0)).cast("long").alias("created_bytes"),
    )
    late = F.col("lateness_ms")
    percentiles = F.percentile_approx(late, [0.5, 0.99], _ACCURACY)
    handed = hand_overs.groupBy("topic", minute_of(handed_ms()).alias("minute_ms")).agg(
        F.count(F.lit(1)).alias("delivered"),
        percentiles.alias("percentiles"),
        F.max(late).alias("lateness_max_ms"),
        F.count(F.when(late >= LATE_MS, 1)).alias("late"),
        F.count(F.when(late < 0, 1)).alias("early"),
    )
    joined = counted.join(handed, ["topic", "minute_ms"], "full_outer").withColumns(
        {
            "lateness_p50_ms": F.get("percentiles", F.lit(0)),
            "lateness_p99_ms": F.get("percentiles", F.lit(1)),
        }
    )
    numbers = [name for name in FACTS.fieldNames() if name not in ("topic", "minute_ms") and "lateness" not in name]
    return joined.fillna(0, subset=numbers).withColumn("day", day_of(F.col("minute_ms")))
