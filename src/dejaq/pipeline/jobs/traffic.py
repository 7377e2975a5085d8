"""Traffic: who sends how much, and how much of it is the same content again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CONTENT = ("topic", "body_crc", "body_bytes")


def traffic(messages: DataFrame) -> DataFrame:
    """For each topic and producer group: messages, bytes, sizes, rate, and how many repeat another's content.

    Content is the same when checksum and size are. Empty bodies repeat nothing.
    """
    known = messages.where(F.col("born").isNotNull())
    size = F.col("body_bytes")
    sums = known.groupBy("topic", "owner").agg(
        F.count(F.lit(1)).alias("created"),
        F.sum(size).alias("bytes"),
        F.percentile_approx(size, [0.5, 0.99], 10_000).alias("sizes"),
        F.max(size).alias("size_max"),
        F.min("created_ms").alias("first_ms"),
        F.max("created_ms").alias("last_ms"),
    )
    repeats = (
        known.where(size > 0)
        .groupBy(*_CONTENT, "owner")
        .agg(F.count(F.lit(1)).alias("copies"))
        .groupBy("topic", "owner")
        .agg(F.sum(F.col("copies") - 1).alias("duplicates"))
    )
    minutes = F.greatest((F.col("last_ms") - F.col("first_ms")) / 60_000, F.lit(1.0))
    return (
        sums.join(repeats, ["topic", "owner"], "left")
        .fillna(0, subset=["duplicates"])
        .withColumns(
            {
                "size_p50": F.get("sizes", F.lit(0)),
                "size_p99": F.get("sizes", F.lit(1)),
                "per_minute": F.col("created") / minutes,
                "duplicate_share": F.col("duplicates") / F.col("created"),
            }
        )
        .select(
            "topic",
            "owner",
            "created",
            "bytes",
            "per_minute",
            "size_p50",
            "size_p99",
            "size_max",
            "duplicates",
            "duplicate_share",
            "first_ms",
            "last_ms",
        )
        .orderBy("topic", "owner")
    )


def duplicates(messages: DataFrame) -> DataFrame:
    """Contents that were sent more than once to a topic, the most frequent first."""
    known = messages.where(F.col("born").isNotNull() & (F.col("body_bytes") > 0))
    return (
        known.groupBy(*_CONTENT)
        .agg(
            F.count(F.lit(1)).alias("copies"),
            F.countDistinct("owner").alias("owners"),
            F.min("id").alias("example_id"),
            F.min("created_ms").alias("first_ms"),
            F.max("created_ms").alias("last_ms"),
        )
        .where("copies > 1")
        .orderBy(F.desc("copies"), *_CONTENT)
    )
