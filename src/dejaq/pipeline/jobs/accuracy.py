"""Accuracy: how long after its time user code got each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dejaq.pipeline.intake.events import handed_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_MS = 3_600_000
SLO_MS_DEFAULT = 100.0
# Lower ends of the histogram's bins, in ms; what is below the first was early.
BINS_MS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000)
EARLY_BIN = -1
_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


def accuracy(hand_overs: DataFrame, *, slo_ms: float = SLO_MS_DEFAULT) -> DataFrame:
    """Lateness by topic and hour; an hour whose p99 is above `slo_ms`, or with an early hand-over, is a breach."""
    late = F.col("lateness_ms")
    summed = hand_overs.groupBy("topic", hour_of().alias("hour_ms")).agg(
        F.count(F.lit(1)).alias("delivered"),
        F.percentile_approx(late, list(_SHARES.values()), 10_000).alias("percentiles"),
        F.max(late).alias("max_ms"),
        F.avg(late).alias("mean_ms"),
        F.count(F.when(late > slo_ms, 1)).alias("late"),
        F.count(F.when(late < 0, 1)).alias("early"),
        # The lease is not in the lake, so when the message was due is unknown.
        F.count(F.when(late.isNull(), 1)).alias("unknown"),
    )
    named = {name: F.get("percentiles", F.lit(place)) for place, name in enumerate(_SHARES)}
    breached = F.coalesce((F.col("p99_ms") > slo_ms) | (F.col("early") > 0), F.lit(False))
    return (
        summed.withColumns(named)
        .withColumn("breached", breached)
        .select(
            "topic",
            "hour_ms",
            "delivered",
            *_SHARES,
            "max_ms",
            "mean_ms",
            "late",
            "early",
            "unknown",
            "breached",
        )
        .orderBy("topic", "hour_ms")
    )


def hour_of() -> Column:
    """The hour in which user code got the message."""
    return handed_ms() - F.pmod(handed_ms(), F.lit(HOUR_MS))


def histogram(hand_overs: DataFrame, *, hourly: bool = False) -> DataFrame:
    """How many hand-overs of each topic fall into each bin of lateness; `from_ms` is the bin's lower end.

    `hourly`: by hour as well.
    """
    late = F.col("lateness_ms")
    lower = F.lit(EARLY_BIN)
    for edge in BINS_MS:
        lower = F.when(late >= edge, edge).otherwise(lower)
    known = hand_overs.where(late.isNotNull())
    by = [F.col("topic"), lower.alias("from_ms"), *([hour_of().alias("hour_ms")] if hourly else [])]
    return known.groupBy(*by).agg(F.count(F.lit(1)).alias("count")).orderBy("topic", "from_ms")
