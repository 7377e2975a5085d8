"""Retention in segments: the first offset moves behind batches that need not be kept, and segments before it go.

Whole segments and blocks are judged by their last times; of the one where the limit lies, the batches are read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice

from dejaq.storage.log.base import MINUTE_MS, LogRetention, MinuteCount
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.retaining import minute_of
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.segments.files import SegmentFiles
from dejaq.storage.segments.writer import LogSegment

# What one call removes at most.
_SEGMENTS_PER_CALL = 64
_MINUTES_PER_STEP = 200


@dataclass(slots=True)
class _Limit:
    """What need not be kept, while batches are removed from the front of a bucket."""

    retention: LogRetention
    now: int
    # What every group has read ends here.
    read: int
    # The bytes that are left.
    size: int

    def spares(self, *, end: int, last_ts: int, size: int, whole: bool) -> bool:
        """Whether a part need not be kept: one batch, or, with `whole`, all batches of a part, of which any may be."""
        old = 0 < self.retention.keep_ms < self.now - last_ts
        # Before the last of several batches is removed, there must be too much.
        much = 0 < self.retention.keep_bytes < self.size - (size if whole else 0) + (1 if whole else 0)
        return old or much or end <= self.read


@dataclass(frozen=True, slots=True)
class Trim:
    """The first offset that is kept, the bytes that are removed before it, and the time of the first batch kept."""

    start: int
    bytes: int
    ts: int


async def limit_of(files: SegmentFiles, bucket: LogBucket, retention: LogRetention, now: int, read: int) -> Trim | None:
    """How far the segments of a bucket need not be kept; None where everything must be."""
    segments = bucket.segments[:_SEGMENTS_PER_CALL]
    trimmed = bucket.unmoved + sum(one.bytes for one in bucket.segments) - bucket.size
    limit = _Limit(retention, now, read, bucket.size)
    if not limit.spares(end=bucket.start + 1, last_ts=bucket.oldest_ts or segments[0].first_ts, size=0, whole=False):
        return None
    start, size = bucket.start, 0
    for one in segments:
        left = one.bytes - trimmed
        if not limit.spares(end=one.end, last_ts=one.last_ts, size=left, whole=True):
            return await asyncio.to_thread(_within, files, one, start, limit, size)
        start, size, trimmed = one.end, size + left, 0
        limit.size -= left
    following = bucket.segments[len(segments) : len(segments) + 1]
    return Trim(start, size, following[0].first_ts if following else 0)


def _within(files: SegmentFiles, segment: LogSegment, start: int, limit: _Limit, size: int) -> Trim | None:
    """The limit that lies within a segment. Blocks."""
    begin = start
    for entry in files.index(segment):
        if entry.end <= begin:
            continue
        if entry.base >= begin and limit.spares(end=entry.end, last_ts=entry.last_ts, size=entry.bytes, whole=True):
            start, size = entry.end, size + entry.bytes
            limit.size -= entry.bytes
            continue
        for batch in files.block(segment, entry, keep=False):
            if batch.end <= begin:
                continue
            if not limit.spares(end=batch.end, last_ts=batch.ts, size=len(batch.records), whole=False):
                return Trim(max(start, batch.base), size, batch.ts) if size or start > begin else None
            start, size = batch.end, size + len(batch.records)
            limit.size -= len(batch.records)
    return Trim(segment.end, size, 0)


async def minutes_before(state: LogState, database: RocksDatabase, bucket: LogBucket, start: int) -> list[MinuteCount]:
    """The minutes that have messages before an offset, oldest first, read in steps."""
    topic, found = state.topic.number, list[MinuteCount]()
    first = (bucket.oldest_ts or bucket.segments[0].first_ts) // MINUTE_MS
    key, end = records.minute_key(topic, bucket.number, first), records.minute_key(topic, bucket.number, 2**63)
    while True:
        step = list(islice(database.scan(key, end), _MINUTES_PER_STEP))
        for item in step:
            minute = records.unpack_minute(*item)
            if minute.first >= start:
                return found
            found.append(minute)
        if len(step) < _MINUTES_PER_STEP:
            return found
        key = step[-1][0] + b"\0"
        await asyncio.sleep(0)


def put(
    state: LogState, database: RocksDatabase, bucket: LogBucket, trim: Trim, minutes: list[MinuteCount], writes: Batch
) -> list[LogSegment]:
    """Put the removal into `writes`; the segments whose files are to be removed when that is durable."""
    topic = state.topic.number
    if minutes:
        # There may have been appends in the last one meanwhile.
        minutes[-1] = minute_of(state, database, bucket, minutes[-1].minute)
    gone = [one for one in bucket.segments if one.end <= trim.start]
    for one in gone:
        writes.delete(records.segment_key(topic, bucket.number, one.base))
    del bucket.segments[: len(gone)]
    bucket.start, bucket.size, bucket.oldest_ts = trim.start, bucket.size - trim.bytes, trim.ts
    left = trim.bytes
    for minute in minutes:
        if minute.first + minute.count <= trim.start:
            left -= minute.bytes
            state.put_minute(bucket, MinuteCount(minute.minute, trim.start, 0, 0), writes)
        else:
            count = minute.first + minute.count - trim.start
            kept = max(minute.bytes - left, 0)
            state.put_minute(bucket, MinuteCount(minute.minute, trim.start, count, kept), writes)
    bucket.tail.trim(bucket.start)
    state.put_bucket(bucket, writes)
    return gone
