"""Traffic: how much each group sends, and how much of it is repeated content.

Everything is counted from the events by which messages were created: these never change, so each is counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS = 3_600_000
# A message repeats another of its hour, or of so many hours before.
HOURS_BEFORE = 1
# Of the repeated contents of an hour, so many are listed.
CONTENTS_MAX = 1_000
_CONTENT = ("topic", "body_crc", "body_bytes")
# Of a size, so many binary digits are kept: it is exact up to 255, and then less than 1 % too small.
_DIGITS = 8


def creations(events: DataFrame) -> DataFrame:
    """The messages that were created, as they were then: topic, owner, id, created_ms, hour_ms and the content."""
    at = F.col("at_ms")
    created = events.where("kind = 'created'").withColumns(
        {"owner": F.col("actor"), "created_ms": at, "hour_ms": at - F.pmod(at, F.lit(HOUR_MS))}
    )
    of_file = ["file"] if "file" in events.columns else []
    return created.select(*_CONTENT, "id", "owner", "created_ms", "hour_ms", *of_file)


def sent(messages: DataFrame) -> DataFrame:
    """The creations of each file, topic, group and size; sums of these are exact."""
    size = F.coalesce("body_bytes", F.lit(0))
    width = F.pow(F.lit(2), F.greatest(F.floor(F.log2(F.greatest(size, F.lit(1)))) - (_DIGITS - 1), F.lit(0)))
    return messages.groupBy("file", "topic", "owner", (size - F.pmod(size, width)).cast("int").alias("size")).agg(
        F.count(F.lit(1)).alias("created"),
        F.sum(size).alias("bytes"),
        F.max(size).alias("size_max"),
        F.min("created_ms").alias("first_ms"),
        F.max("created_ms").alias("last_ms"),
    )


def contents(messages: DataFrame) -> DataFrame:
    """For each content, hour and group: `copies`, and how many of them are `repeated`.

    Content is the same when checksum and size are. Empty bodies repeat nothing. The first message with a content, in
    any group, is the original; one in its hour or the hour after repeats it.
    """
    by_owner = (
        messages.where("body_bytes > 0")
        .groupBy(*_CONTENT, "hour_ms", "owner")
        .agg(
            F.count(F.lit(1)).alias("copies"),
            F.min("created_ms").alias("first_ms"),
            F.max("created_ms").alias("last_ms"),
        )
    )
    earlier = F.lag("hour_ms").over(Window.partitionBy(*_CONTENT).orderBy("hour_ms", "first_ms", "owner"))
    is_original = earlier.isNull() | (earlier < F.col("hour_ms") - HOURS_BEFORE * HOUR_MS)
    return by_owner.withColumn("repeated", F.col("copies") - F.when(is_original, 1).otherwise(0))


def repeats(found: DataFrame) -> DataFrame:
    """How many messages of each hour, topic and group repeat another."""
    counted = found.groupBy("hour_ms", "topic", "owner").agg(F.sum("repeated").alias("repeated"))
    return counted.where("repeated > 0")


def duplicates(found: DataFrame, messages: DataFrame) -> DataFrame:
    """The contents that were repeated most in each hour, with an id of each."""
    in_hour = (
        found.groupBy(*_CONTENT, "hour_ms")
        .agg(
            F.sum("copies").alias("copies"),
            F.sum("repeated").alias("repeated"),
            F.count(F.lit(1)).alias("owners"),
            F.min("first_ms").alias("first_ms"),
            F.max("last_ms").alias("last_ms"),
        )
        .where("repeated > 0")
    )
    order = Window.partitionBy("hour_ms").orderBy(F.desc("repeated"), *_CONTENT)
    most = in_hour.withColumn("place", F.row_number().over(order)).where(F.col("place") <= CONTENTS_MAX).drop("place")
    named = messages.join(F.broadcast(most.select(*_CONTENT, "hour_ms")), [*_CONTENT, "hour_ms"])
    examples = named.groupBy(*_CONTENT, "hour_ms").agg(F.min("id").alias("example_id"))
    columns = ("hour_ms", *_CONTENT, "copies", "repeated", "owners", "example_id", "first_ms", "last_ms")
    return most.join(examples, [*_CONTENT, "hour_ms"]).select(*columns)


def groups(counts: Iterable[Mapping[str, Any]], repeated: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each topic and producer group: messages, bytes, sizes, rate, and how many repeat another's content."""
    by_group: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in counts:
        by_group.setdefault((row["topic"], row["owner"]), []).append(row)
    again: Counter[tuple[str, str]] = Counter()
    for row in repeated:
        again[row["topic"], row["owner"]] += row["repeated"]
    return [_group(*group, by_group[group], again[group]) for group in sorted(by_group)]


def _group(topic: str, owner: str, rows: list[Mapping[str, Any]], again: int) -> dict[str, Any]:
    created = sum(row["created"] for row in rows)
    first_ms, last_ms = min(row["first_ms"] for row in rows), max(row["last_ms"] for row in rows)
    sizes: Counter[int] = Counter()
    for row in rows:
        sizes[row["size"]] += row["created"]
    return {
        "topic": topic,
        "owner": owner,
        "created": created,
        "bytes": sum(row["bytes"] for row in rows),
        "per_minute": created / max((last_ms - first_ms) / 60_000, 1.0),
        "size_p50": _percentile(sizes, created, 50),
        "size_p99": _percentile(sizes, created, 99),
        "size_max": max(row["size_max"] for row in rows),
        "duplicates": again,
        "duplicate_share": again / created,
        "first_ms": first_ms,
        "last_ms": last_ms,
    }


def _percentile(sizes: Counter[int], total: int, percent: int) -> int:
    """The least size that so many percent of the messages do not exceed."""
    seen = 0
    for size, count in sorted(sizes.items()):
        seen += count
        if seen * 100 >= total * percent:
            return size
    return 0
