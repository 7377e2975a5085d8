"""Retention: the oldest batches of a log are removed, a few in each commit."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from dejaq import limits
from dejaq.storage.log.base import MINUTE_MS, LogRetention, MinuteCount
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.state import LogBucket, LogState

_BATCHES_PER_STEP = 100
_SESSIONS_PER_STEP = 100
_SESSIONS_READ_PER_STEP = 500
_FORGET_EVERY_MS = 600_000


def remove_oldest(
    state: LogState, database: RocksDatabase, bucket: LogBucket, retention: LogRetention, now: int, writes: Batch
) -> int:
    """Put the removal of batches that need not be kept into `writes`; how many messages they have."""
    topic = state.topic.number
    end = min(bucket.settle(now), bucket.durable)
    read = read_by_all(state, bucket.number) if retention.trim_read else 0
    scan = database.scan(
        records.batch_key(topic, bucket.number, bucket.start), records.batch_key(topic, bucket.number, end)
    )
    minutes: dict[int, MinuteCount] = {}
    removed = 0
    for key, value in list(islice(scan, _BATCHES_PER_STEP)):
        entry = records.unpack_batch(key, value)
        old = 0 < retention.keep_ms < now - entry.ts
        much = 0 < retention.keep_bytes < bucket.size
        if entry.end > end or not (old or much or entry.end <= read):
            break
        writes.delete(key)
        if entry.address is not None:
            writes.released.append((topic, entry.address))
        bucket.start, bucket.size, bucket.unmoved = entry.end, bucket.size - entry.size, bucket.unmoved - entry.size
        removed += entry.count
        minute = entry.ts // MINUTE_MS
        counts = minutes.get(minute) or minute_of(state, database, bucket, minute)
        minutes[minute] = replace(
            counts, first=entry.end, count=counts.count - entry.count, bytes=counts.bytes - entry.size
        )
    for counts in minutes.values():
        state.put_minute(bucket, counts, writes)
    if removed:
        bucket.tail.trim(bucket.start)
        state.put_bucket(bucket, writes)
    return removed


def minute_of(state: LogState, database: RocksDatabase, bucket: LogBucket, minute: int) -> MinuteCount:
    """The counts of a minute."""
    key = records.minute_key(state.topic.number, bucket.number, minute)
    value = database.get(key)
    return MinuteCount(minute, 0, 0, 0) if value is None else records.unpack_minute(key, value)


def read_by_all(state: LogState, bucket: int) -> int:
    """The offset before which every group has read a bucket; 0 without groups."""
    offsets = (group[bucket].offset if bucket in group else 0 for group in state.groups.values())
    return max(min(offsets, default=0), 0)


def forget_sessions(state: LogState, database: RocksDatabase, now: int, writes: Batch) -> None:
    """Remove the names of sessions that have appended nothing for a long time.

    Every ten minutes it begins to look at all sessions, a few in each call.
    """
    prefix = keys.of_topic(keys.LOG_SESSION, state.topic.number)
    if state.forget_from is None:
        if now - state.forgot_at < _FORGET_EVERY_MS:
            return
        state.forgot_at, state.forget_from = now, prefix
    read = list(islice(database.scan(state.forget_from, keys.after(prefix)), _SESSIONS_READ_PER_STEP))
    state.forget_from = read[-1][0] + b"\0" if len(read) == _SESSIONS_READ_PER_STEP else None
    old = [key for key, value in read if records.unpack_session(value)[1] < now - limits.PRODUCER_SESSION_MS_MAX]
    if len(old) > _SESSIONS_PER_STEP:
        state.forget_from = old[_SESSIONS_PER_STEP]
    for key in old[:_SESSIONS_PER_STEP]:
        names = records.names_of(state.topic.number, records.session_of(key))
        writes.delete(key)
        writes.delete_range(names, keys.after(names))
