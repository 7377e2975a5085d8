"""Traffic: how much each group sends, and how much of it is repeated content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
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
    # The first message with a content, in any group, is the original; all others repeat it.
    first = F.min(F.struct("created_ms", "owner", "id"))
    by_owner = (
        known.where(size > 0).groupBy(*_CONTENT, "owner").agg(F.count(F.lit(1)).alias("copies"), first.alias("first"))
    )
    original = F.col("first") == F.min("first").over(Window.partitionBy(*_CONTENT))
    repeats = (
        by_owner.withColumn("repeated", F.col("copies") - F.when(original, 1).otherwise(0))
        .groupBy("topic", "owner")
        .agg(F.sum("repeated").alias("duplicates"))
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
