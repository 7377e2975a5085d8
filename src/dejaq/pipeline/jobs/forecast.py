"""Forecast: what falls due in each of the coming minutes, and how many consumers that takes.

Two parts add up. What is on the timeline is counted. What is not created yet is expected: messages come at the rate
and with the lead times of the recent past, so that of those created from now on the share with a lead of at most x is
due within x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from dejaq.pipeline.intake.events import MINUTE_MS, minute_of
from dejaq.pipeline.intake.messages import PENDING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOURS_DEFAULT = 6
LATENESS_MS_DEFAULT = 100.0
HISTORY_MS_DEFAULT = 24 * 3_600_000
# The assumed time of a consumer per message, when the lake has no message that shows it.
SERVICE_MS_DEFAULT = 1.0


def pending_timeline(messages: DataFrame) -> DataFrame:
    """The topic and the time of everything that is pending, as far as the lake knows."""
    due = F.coalesce("lease_until_ms", "scheduled_ms", "last_ms")
    return messages.where(F.col("outcome") == PENDING).select("topic", due.alias("due_ms"))


def due_by_minute(pending: DataFrame, *, now_ms: int, hours: int = HOURS_DEFAULT) -> DataFrame:
    """How many pending messages fall due in each minute, and in its fullest second; what is overdue is due now."""
    due = F.greatest(F.col("due_ms"), F.lit(now_ms))
    near = pending.where(F.col("due_ms") < now_ms + hours * 60 * MINUTE_MS)
    by_second = near.groupBy("topic", F.floor(due / 1000).cast("long").alias("second")).agg(
        F.count(F.lit(1)).alias("due")
    )
    return by_second.groupBy("topic", minute_of(F.col("second") * 1000).alias("minute_ms")).agg(
        F.sum("due").alias("due"), F.max("due").alias("peak_second")
    )


def expected_by_minute(
    messages: DataFrame, *, now_ms: int, hours: int = HOURS_DEFAULT, history_ms: int = HISTORY_MS_DEFAULT
) -> DataFrame:
    """How many messages that are not created yet will fall due in each minute."""
    past = messages.where((F.col("created_ms") > now_ms - history_ms) & (F.col("created_ms") <= now_ms))
    minutes = hours * 60
    # A lead known only after a move or release says nothing of what producers ask for.
    plain = (F.col("moves") == 0) & (F.col("edits") == 0) & (F.col("releases") == 0)
    lead = F.floor(F.greatest(F.col("scheduled_ms") - F.col("created_ms"), F.lit(0)) / MINUTE_MS).cast("int")
    span = F.greatest((F.lit(now_ms) - F.min("created_ms")) / MINUTE_MS, F.lit(1.0))
    rates = past.groupBy("topic").agg(
        (F.count(F.lit(1)) / span).alias("rate"), F.count(F.when(plain, 1)).alias("leads")
    )
    leads = (
        past.where(plain)
        .groupBy("topic", F.least(lead, F.lit(minutes)).alias("ahead"))
        .agg(F.count(F.lit(1)).alias("of_lead"))
    )
    steps = rates.withColumn("ahead", F.explode(F.sequence(F.lit(0), F.lit(minutes - 1))))
    so_far = Window.partitionBy("topic").orderBy("ahead").rowsBetween(Window.unboundedPreceding, 0)
    share = F.sum(F.coalesce("of_lead", F.lit(0))).over(so_far) / F.greatest("leads", F.lit(1))
    first = now_ms - now_ms % MINUTE_MS
    return steps.join(leads, ["topic", "ahead"], "left").select(
        "topic",
        (F.lit(first) + F.col("ahead") * MINUTE_MS).alias("minute_ms"),
        (F.col("rate") * share).alias("expected"),
    )


def service_times(events: DataFrame) -> DataFrame:
    """How long a consumer has a message, from the hand-over until it is settled: the mean for each topic."""
    held = F.greatest(F.col("at_ms") - F.col("handed_us") / 1000, F.lit(0.05))
    settled = events.where(F.col("kind").isin("deleted", "released") & (F.col("handed_us") > 0))
    return settled.groupBy("topic").agg(F.avg(held).alias("service_ms"))


def forecast(
    due: DataFrame,
    expected: DataFrame,
    service: DataFrame,
    *,
    lateness_ms: float = LATENESS_MS_DEFAULT,
    service_ms: float | None = None,
) -> DataFrame:
    """One row per topic and minute: due, expected, and the consumers needed to be at most `lateness_ms` late.

    A consumer takes messages one after another. It must keep up over the minute, and a second's worth that falls due at
    once must be handed over within that second and the lateness allowed. `service_ms` replaces the measured times.
    """
    joined = due.join(expected, ["topic", "minute_ms"], "full_outer").join(service, "topic", "left")
    each = F.lit(service_ms) if service_ms is not None else F.coalesce("service_ms", F.lit(SERVICE_MS_DEFAULT))
    filled = joined.fillna(0, subset=["due", "peak_second", "expected"]).withColumn("each_ms", each)
    total = F.col("due") + F.col("expected")
    steady = total * F.col("each_ms") / MINUTE_MS
    burst = F.col("peak_second") * F.col("each_ms") / (1000 + lateness_ms)
    needed = F.when(total > 0, F.greatest(F.ceil(F.greatest(steady, burst)), F.lit(1))).otherwise(0)
    return filled.select(
        "topic",
        "minute_ms",
        "due",
        F.round("expected", 2).alias("expected"),
        "peak_second",
        F.round("each_ms", 3).alias("service_ms"),
        needed.cast("int").alias("consumers"),
    ).orderBy("topic", "minute_ms")
