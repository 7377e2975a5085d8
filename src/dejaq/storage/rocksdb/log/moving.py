"""Moving batches out of the commit log: those of one bucket that can no longer be rolled back become a segment file.

The file is written and made durable in a thread. Then one change gives it a record and removes the records of the
batches; only that change releases what the commit log has of them. Until then readers use the commit log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from itertools import islice

from dejaq.crashpoints import crash_at
from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES
from dejaq.storage.log.base import StoredBatch
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import RocksDatabase, new_batch
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.opening import SegmentSettings
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.segments.files import SegmentFiles
from dejaq.storage.segments.writer import LogSegment, SegmentWriter

# What one step of the thread moves at most, and the batches after which it lets the loop run.
_STEP_BYTES = 1024 * 1024
_STEP_BATCHES = 1_000
_TURN_BATCHES = 50
# The longest pause behind a step.
_PAUSE_S = 0.05


@dataclass(slots=True)
class SegmentWork:
    """What work on segments needs. `check` raises when the store does not work any more."""

    database: RocksDatabase
    committer: Committer
    files: SegmentFiles
    settings: SegmentSettings
    check: Callable[[], None]
    altering: Callable[[], AbstractContextManager[None]]
    # Whether a log is served.
    is_live: Callable[[LogState], bool]
    stopping: bool = False
    # Work without pauses, because the commit log is too long.
    hurried: bool = False
    # Files without a record.
    unfinished: set[int] = field(default_factory=set)
    # Files that were replaced or whose batches were removed.
    removable: list[int] = field(default_factory=list)
    moved_bytes: int = 0
    rewritten_bytes: int = 0

    def goes_on(self, state: LogState) -> bool:
        """Whether work on a log is worth while."""
        return not self.stopping and self.is_live(state)

    async def pause(self, began: float) -> None:
        """Leave the disk and the processor to others for as long as a step took."""
        await asyncio.sleep(0 if self.hurried else min(time.monotonic() - began, _PAUSE_S))

    async def begin(self, state: LogState, bucket: LogBucket, base: int, ts: int) -> SegmentWriter:
        """Begin a file."""
        writer = await asyncio.to_thread(self.files.begin, state.topic.number, bucket.number, base, ts=ts)
        self.unfinished.add(writer.segment.number)
        return writer

    def give_up(self, number: int) -> None:
        """Have a file removed that is not used."""
        self.unfinished.discard(number)
        self.removable.append(number)


@dataclass(slots=True)
class _Copied:
    """What of the files of the commit log was copied: frames and bytes, by file."""

    files: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, file: int, size: int) -> None:
        frames, before = self.files.get(file, (0, 0))
        self.files[file] = frames + 1, before + FRAME_HEADER_BYTES + size


async def move(work: SegmentWork, state: LogState, bucket: LogBucket) -> LogSegment | None:
    """Move the oldest batches of a bucket into a segment; None where there are none. The commit log is not emptied
    meanwhile, so that nothing but this changes where the batches are.
    """
    base, end = bucket.border, min(bucket.stable, bucket.durable)
    if base >= end or bucket.moving or not work.goes_on(state):
        return None
    bucket.moving = True
    try:
        writer = await work.begin(state, bucket, base, 0)
        written = await _write(work, state, bucket, writer, end)
        if written is None:
            return None
        segment, copied = written
        return segment if await _commit(work, state, bucket, segment, copied) else None
    finally:
        bucket.moving = False


async def _write(
    work: SegmentWork, state: LogState, bucket: LogBucket, writer: SegmentWriter, end: int
) -> tuple[LogSegment, _Copied] | None:
    """Write the file; None when it is not needed any more."""
    copied = _Copied()
    while writer.end < end and writer.bytes < work.settings.bytes:
        if not work.goes_on(state):
            work.give_up(writer.segment.number)
            return None
        began = time.monotonic()
        try:
            await asyncio.to_thread(_copy, work, state.topic.number, bucket.number, writer, end, copied)
        except StoreError:
            if work.is_live(state):
                raise
            # The log was dropped during the step, with its batches; the next turn gives up.
        await work.pause(began)
    return await asyncio.to_thread(writer.finish), copied


def _copy(work: SegmentWork, topic: int, bucket: int, writer: SegmentWriter, end: int, copied: _Copied) -> None:
    """Copy the next batches. Blocks."""
    database, at, size = work.database, writer.end, 0
    found = []
    # Nothing that is pending changes these batches.
    first, stop = records.batch_key(topic, bucket, at), records.batch_key(topic, bucket, end)
    with closing(database.scan_applied(first, stop)) as scan:
        for place, (key, value) in enumerate(islice(scan, _STEP_BATCHES)):
            entry = records.unpack_batch(key, value)
            if entry.base != at:
                break
            found.append(entry)
            at, size = entry.end, size + entry.size
            if size >= min(_STEP_BYTES, work.settings.bytes):
                break
            if place % _TURN_BATCHES == 0:
                time.sleep(0)
    if not found:
        raise error_of(Code.STORE_CORRUPT, f"bucket {bucket} of a log has no batch at offset {at}", details=str(topic))
    assert database.log is not None
    for start in range(0, len(found), _TURN_BATCHES):
        some = found[start : start + _TURN_BATCHES]
        contents = iter(database.log.read_many([entry.address for entry in some if entry.address is not None]))
        time.sleep(0)
        for entry in some:
            content = entry.content() if entry.address is None else next(contents)
            writer.add(StoredBatch(entry.base, entry.count, entry.ts, content, entry.aborted))
            if entry.address is not None:
                copied.add(entry.address.file, entry.address.length)
        time.sleep(0)


async def _commit(work: SegmentWork, state: LogState, bucket: LogBucket, segment: LogSegment, copied: _Copied) -> bool:
    """Write the record of a segment instead of those of its batches."""
    crash_at("storage.segment_written")
    if not work.goes_on(state):
        work.give_up(segment.number)
        return False
    work.check()
    topic, writes = state.topic.number, new_batch()
    with work.altering():
        writes.put(records.segment_key(topic, bucket.number, segment.base), records.pack_segment(segment))
        writes.delete_range(
            records.batch_key(topic, bucket.number, segment.base), records.batch_key(topic, bucket.number, segment.end)
        )
        writes.released_of_files += [(topic, file, frames, size) for file, (frames, size) in copied.files.items()]
        bucket.segments.append(segment)
        bucket.unmoved -= segment.bytes
        state.put_bucket(bucket, writes)
        durable = work.committer.write(writes)
    work.moved_bytes += segment.bytes
    crash_at("storage.after_segment")
    await asyncio.shield(durable)
    work.unfinished.discard(segment.number)
    return True
