"""Retries: leases that ended unsettled, messages that come again and again, and consumers that are slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTEMPTS_MIN_DEFAULT = 5
# A consumer is slow when its median is this many times that of all consumers of its topic, or when its leases end.
_SLOW_FACTOR = 3.0


def retries(messages: DataFrame) -> DataFrame:
    """For each topic: how many messages needed more than one attempt, and why."""
    attempts = F.col("attempts")
    return (
        messages.groupBy("topic")
        .agg(
            F.count(F.when(attempts > 0, 1)).alias("leased"),
            F.count(F.when(attempts > 1, 1)).alias("retried"),
            F.sum("expiries").alias("expiries"),
            F.sum("releases").alias("releases"),
            F.sum("extensions").alias("extensions"),
            F.count(F.when(F.col("outcome") == "dead_lettered", 1)).alias("dead_lettered"),
            F.avg(F.when(attempts > 0, attempts)).alias("attempts_mean"),
            F.max("attempts").alias("attempts_max"),
        )
        .withColumn("retried_share", F.col("retried") / F.greatest("leased", F.lit(1)))
        .orderBy("topic")
    )


def attempts_histogram(messages: DataFrame) -> DataFrame:
    """How many messages of each topic have had how many attempts."""
    leased = messages.where(F.col("attempts") > 0)
    return leased.groupBy("topic", "attempts").agg(F.count(F.lit(1)).alias("count")).orderBy("topic", "attempts")


def poison_candidates(messages: DataFrame, *, attempts_min: int = ATTEMPTS_MIN_DEFAULT) -> DataFrame:
    """Messages with so many attempts that they may be what makes consumers fail, the worst first."""
    found = messages.where(F.col("attempts") >= attempts_min)
    columns = ("topic", "id", "owner", "attempts", "expiries", "releases", "outcome", "created_ms", "body_bytes")
    return found.select(*columns).orderBy(F.desc("attempts"), "topic", "id")


def consumers(events: DataFrame) -> DataFrame:
    """For each topic and consumer: how long it has messages, how many leases it let end, and whether it is slow."""
    settled = F.col("kind").isin("deleted", "released") & (F.col("handed_us") > 0)
    held = F.when(settled, F.greatest(F.col("at_ms") - F.col("handed_us") / 1000, F.lit(0.0)))
    of_consumers = events.where(F.col("kind").isin("leased", "deleted", "released", "expired"))
    by_consumer = of_consumers.groupBy("topic", F.col("actor").alias("consumer")).agg(
        F.count(F.when(F.col("kind") == "leased", 1)).alias("leased"),
        F.count(held).alias("settled"),
        F.count(F.when(F.col("kind") == "expired", 1)).alias("expired"),
        F.percentile_approx(held, [0.5, 0.99], 10_000).alias("percentiles"),
    )
    of_topic = of_consumers.groupBy("topic").agg(F.percentile_approx(held, 0.5, 10_000).alias("topic_p50_ms"))
    slow = (F.col("held_p50_ms") > _SLOW_FACTOR * F.greatest("topic_p50_ms", F.lit(1.0))) | (F.col("expired") > 0)
    return (
        by_consumer.join(of_topic, "topic")
        .withColumns({"held_p50_ms": F.get("percentiles", F.lit(0)), "held_p99_ms": F.get("percentiles", F.lit(1))})
        .withColumn("slow", F.coalesce(slow, F.lit(False)))
        .select("topic", "consumer", "leased", "settled", "expired", "held_p50_ms", "held_p99_ms", "slow")
        .orderBy("topic", "consumer")
    )
