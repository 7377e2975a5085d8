"""Replacing segments by others: small ones become one, and a compaction by key leaves out what is not the latest.

The new files are durable before one change replaces the records; the old files are removed behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from dejaq.crashpoints import crash_at
from dejaq.storage.log.base import StoredBatch
from dejaq.storage.rocksdb.engine.database import new_batch
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.moving import SegmentWork
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.segments.block import BlockEntry
from dejaq.storage.segments.writer import LogSegment, SegmentWriter

# Segments are small in steps of so many times.
_STEP = 8
_TURN_BATCHES = 50

# What is kept of a batch.
Choice = Callable[[StoredBatch], Sequence[StoredBatch]]


def small_segments(segments: Sequence[LogSegment], full_bytes: int, count: int) -> Sequence[LogSegment]:
    """The newest segments, if so many of them are of one size that they should become one; or none.

    Sizes are those of a full segment, of an eighth of it, and so on, so a batch is written again once for each size.
    """
    limit = full_bytes
    while limit:
        lower = limit // _STEP
        first, members = len(segments), 0
        while first and segments[first - 1].bytes < limit:
            first -= 1
            members += segments[first].bytes >= lower
        if members >= count:
            return segments[first:]
        limit = lower
    return ()


async def rewrite(
    work: SegmentWork,
    state: LogState,
    bucket: LogBucket,
    old: Sequence[LogSegment],
    choose: Choice | None,
    *,
    clean: bool,
) -> bool:
    """Replace segments that follow each other; whether that was done. Retention waits meanwhile."""
    new = await _write(work, state, bucket, old, choose, clean=clean)
    if new is None:
        return False
    crash_at("storage.segments_rewritten")
    if not work.goes_on(state):
        for one in new:
            work.give_up(one.number)
        return False
    work.check()
    topic, writes = state.topic.number, new_batch()
    with work.altering():
        for one in old:
            writes.delete(records.segment_key(topic, bucket.number, one.base))
        for one in new:
            writes.put(records.segment_key(topic, bucket.number, one.base), records.pack_segment(one))
        place = bucket.segments.index(old[0])
        # Of the first segment, retention may have removed a part.
        trimmed = bucket.unmoved + sum(one.bytes for one in bucket.segments) - bucket.size if place == 0 else 0
        bucket.size -= sum(one.bytes for one in old) - trimmed - sum(one.bytes for one in new)
        bucket.segments[place : place + len(old)] = new
        state.put_bucket(bucket, writes)
        durable = work.committer.write(writes)
    work.rewritten_bytes += sum(one.bytes for one in new)
    await asyncio.shield(durable)
    work.unfinished.difference_update(one.number for one in new)
    work.removable += [one.number for one in old]
    return True


async def _write(
    work: SegmentWork,
    state: LogState,
    bucket: LogBucket,
    old: Sequence[LogSegment],
    choose: Choice | None,
    *,
    clean: bool,
) -> list[LogSegment] | None:
    """Write the new files; None when they are not needed any more."""
    start = max(old[0].base, bucket.start)
    new: list[LogSegment] = []
    writer = await work.begin(state, bucket, start, old[0].first_ts)
    for segment in old:
        for entry in await asyncio.to_thread(work.files.index, segment):
            if not work.goes_on(state):
                for number in (*(one.number for one in new), writer.segment.number):
                    work.give_up(number)
                return None
            if writer.bytes >= work.settings.bytes:
                last = writer.segment
                new.append(await asyncio.to_thread(writer.finish, end=entry.base, clean=clean))
                writer = await work.begin(state, bucket, entry.base, last.last_ts)
            began = time.monotonic()
            await asyncio.to_thread(_copy, work, segment, entry, start, choose, writer)
            await work.pause(began)
    end, last_ts = old[-1].end, old[-1].last_ts
    new.append(await asyncio.to_thread(writer.finish, end=end, last_ts=last_ts, clean=clean))
    return new


def _copy(
    work: SegmentWork, segment: LogSegment, entry: BlockEntry, start: int, choose: Choice | None, writer: SegmentWriter
) -> None:
    """Copy what is kept of a block. Blocks."""
    for place, batch in enumerate(work.files.block(segment, entry, keep=False)):
        if batch.end <= start:
            continue
        for one in (batch,) if choose is None else choose(batch):
            writer.add(one)
        if place % _TURN_BATCHES == 0:
            time.sleep(0)
