"""Retries: leases that ended unsettled, messages that come again and again, and consumers that are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTEMPTS_MIN_DEFAULT = 5
# A consumer is slow when its median is this many times that of all consumers of its topic, or when its leases end.
_SLOW_FACTOR = 3.0


def counted(messages: DataFrame) -> DataFrame:
    """The messages of each file, topic and number of attempts, and what happened to them; sums of these are exact."""
    return messages.groupBy("file", "topic", F.coalesce("attempts", F.lit(0)).alias("attempts")).agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum("expiries").alias("expiries"),
        F.sum("releases").alias("releases"),
        F.sum("extensions").alias("extensions"),
        F.count(F.when(F.col("outcome") == "dead_lettered", 1)).alias("dead_lettered"),
    )


def retries(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each topic: how many messages needed more than one attempt, and why."""
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for row in counts:
        by_topic.setdefault(row["topic"], []).append(row)
    return [_of_topic(topic, rows) for topic, rows in sorted(by_topic.items())]


def _of_topic(topic: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    leased = sum(row["messages"] for row in rows if row["attempts"] > 0)
    retried = sum(row["messages"] for row in rows if row["attempts"] > 1)
    attempts = sum(row["messages"] * row["attempts"] for row in rows if row["attempts"] > 0)
    names = ("expiries", "releases", "extensions", "dead_lettered")
    return {
        "topic": topic,
        "leased": leased,
        "retried": retried,
        **{name: sum(row[name] or 0 for row in rows) for name in names},
        "attempts_mean": attempts / leased if leased else None,
        "attempts_max": max(row["attempts"] for row in rows),
        "retried_share": retried / max(leased, 1),
    }


def attempts_histogram(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many messages of each topic have had how many attempts."""
    found: Counter[tuple[str, int]] = Counter()
    for row in counts:
        if row["attempts"] > 0:
            found[row["topic"], row["attempts"]] += row["messages"]
    return [{"topic": topic, "attempts": tries, "count": count} for (topic, tries), count in sorted(found.items())]


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
