"""Reading a log where its batches are in segments. One that is replaced or removed meanwhile is looked up again."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from dejaq.errors import StoreError
from dejaq.storage.log.base import LogSlice, StoredBatch, check_offset
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.segments import reading
from dejaq.storage.segments.files import SegmentFiles
from dejaq.storage.segments.writer import LogSegment

# Segments that one call reads at most.
_SEGMENTS_MAX = 8
_TRIES = 5
_LAST_TS = attrgetter("last_ts")
T = TypeVar("T")


async def read(
    state: LogState,
    files: SegmentFiles,
    bucket: LogBucket,
    start: int,
    stop: int,
    bytes_max: int,
    *,
    committed: bool,
    on_fault: Callable[[StoreError], None],
) -> LogSlice:
    """The batches from an offset on that is in a segment; a later call reads on behind the last segment."""

    def choose() -> Sequence[LogSegment]:
        check_offset(state.topic, bucket.number, start, bucket.start, bucket.next)
        place = reading.place_of(bucket.segments, start)
        return bucket.segments[place : place + _SEGMENTS_MAX]

    def look(segments: Sequence[LogSegment]) -> LogSlice:
        return reading.read(files, segments, start, stop, bytes_max, committed=committed)

    return await _read(choose, look, on_fault)


async def batch_at(
    files: SegmentFiles, bucket: LogBucket, offset: int, on_fault: Callable[[StoreError], None]
) -> StoredBatch | None:
    """The batch that has an offset, if it is in a segment."""

    def choose() -> Sequence[LogSegment]:
        if not bucket.start <= offset < bucket.border:
            return ()
        place = reading.place_of(bucket.segments, offset)
        return bucket.segments[place : place + 1]

    return await _read(choose, lambda segments: reading.batch_at(files, segments, offset), on_fault)


async def offset_for_time(
    files: SegmentFiles, bucket: LogBucket, ts: int, on_fault: Callable[[StoreError], None]
) -> int | None:
    """The first offset of a time; None where everything in segments is before it."""

    def choose() -> Sequence[LogSegment]:
        return bucket.segments[bisect_left(bucket.segments, ts, key=_LAST_TS) :]

    found = await _read(choose, lambda segments: reading.offset_for_time(files, segments, ts), on_fault)
    return None if found is None else max(found, bucket.start)


async def _read(
    choose: Callable[[], Sequence[LogSegment]],
    look: Callable[[Sequence[LogSegment]], T],
    on_fault: Callable[[StoreError], None],
) -> T:
    for remaining in reversed(range(_TRIES)):
        segments = choose()
        try:
            return await asyncio.to_thread(look, segments)
        except StoreError as error:
            if remaining and choose() != segments:
                continue
            on_fault(error)
            raise
    raise AssertionError("the last try returns or raises")
