"""Retention: the oldest batches of a bucket are removed, a few in each transaction."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg

from dejaq.domain.topic import Topic
from dejaq.storage.log.base import CommittedOffset, LogRetention
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.log.reading import settle
from dejaq.storage.postgres.operations.change import bucket_at, places_of

_BATCHES_PER_STEP = 100
Groups = Mapping[str, Mapping[int, CommittedOffset]]


def read_by_all(groups: Groups, bucket: int) -> int:
    """The offset before which every group has read a bucket; 0 without groups."""
    return max(min((one[bucket].offset if bucket in one else 0 for one in groups.values()), default=0), 0)


def buckets_to_look_at(rows: list[asyncpg.Record], groups: Groups, retention: LogRetention, now: int) -> list[int]:
    """The buckets whose oldest batch need not be kept."""
    found = []
    for row in rows:
        bucket = bucket_at(row["place"])
        old = 0 < retention.keep_ms < now - row["ts"]
        much = 0 < retention.keep_bytes < row["size"]
        read = retention.trim_read and row["base"] + row["count"] <= read_by_all(groups, bucket)
        if old or much or read:
            found.append(bucket)
    return found


async def remove_oldest(
    link: PostgresLink, topic: Topic, bucket: int, read: int, retention: LogRetention, now: int
) -> int:
    """Remove batches that need not be kept; how many messages they have."""
    (place,) = places = places_of(topic, [bucket])
    if not await link.fetch("lock_log_buckets", places, topic.number):
        return 0
    await settle(link, places, now)
    (bounds,) = await link.fetch("log_bounds", topic.number, places)
    stable = bounds["next"] if bounds["stable"] is None else bounds["stable"]
    end, size, removed = 0, 0, 0
    for row in await link.fetch("oldest_log_batches", place, stable, _BATCHES_PER_STEP):
        old = 0 < retention.keep_ms < now - row["ts"]
        much = 0 < retention.keep_bytes < bounds["size"] - size
        if not (old or much or row["base"] + row["count"] <= read):
            break
        end, size, removed = row["base"] + row["count"], size + row["size"], removed + row["count"]
    if removed:
        # Another broker that does the same waits for the lock of the bucket and then finds nothing.
        await link.execute("remove_log_batches", place, end, size)
    return removed
