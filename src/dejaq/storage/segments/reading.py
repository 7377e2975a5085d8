"""Reading the segments of a bucket, which follow each other without a gap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from dejaq.storage.log.base import LogSlice, StoredBatch
from dejaq.storage.segments.block import BlockEntry
from dejaq.storage.segments.files import SegmentFiles
from dejaq.storage.segments.writer import LogSegment

_BASE = attrgetter("base")
# Blocks that one call reads at most, where it finds no batch to return.
_BLOCKS_MAX = 16


def place_of(segments: Sequence[LogSegment], offset: int) -> int:
    """The place of the segment that covers an offset."""
    return max(bisect_right(segments, offset, key=_BASE) - 1, 0)


def read(
    files: SegmentFiles, segments: Sequence[LogSegment], start: int, stop: int, bytes_max: int, *, committed: bool
) -> LogSlice:
    """The batches from an offset on; what is behind the last segment is for the caller. Blocks."""
    found: list[StoredBatch] = []
    size, at, blocks = 0, start, 0
    for segment in segments[place_of(segments, start) :]:
        if segment.base >= stop:
            break
        for entry in files.index(segment):
            if entry.end <= at:
                continue
            if entry.base >= stop:
                return LogSlice(tuple(found), max(at, stop))
            if (found and size + entry.bytes // entry.rows > bytes_max) or blocks == _BLOCKS_MAX:
                return LogSlice(tuple(found), at)
            blocks += 1
            for batch in files.block(segment, entry):
                if batch.end <= at:
                    continue
                if batch.base >= stop:
                    return LogSlice(tuple(found), max(at, stop))
                if found and size + len(batch.records) > bytes_max:
                    return LogSlice(tuple(found), at)
                at = batch.end
                if not (committed and batch.aborted):
                    found.append(batch)
                    size += len(batch.records)
        # What it covers behind its last batch was removed by a compaction.
        at = max(at, min(segment.end, stop))
    return LogSlice(tuple(found), at)


def batch_at(files: SegmentFiles, segments: Sequence[LogSegment], offset: int) -> StoredBatch | None:
    """The batch that has an offset. Blocks."""
    part = read(files, segments, offset, offset + 1, 1, committed=False)
    return next((one for one in part.batches if one.base <= offset), None)


def offset_for_time(files: SegmentFiles, segments: Sequence[LogSegment], ts: int) -> int | None:
    """The first offset of a time; None where all batches are before it. Blocks."""
    for segment in segments:
        for entry in files.index(segment):
            if entry.last_ts >= ts:
                return next(one.base for one in files.block(segment, entry) if one.ts >= ts)
    return None


def all_batches(
    files: SegmentFiles, segments: Sequence[LogSegment], start: int = 0
) -> Iterator[tuple[LogSegment, BlockEntry, list[StoredBatch]]]:
    """Every block of some segments, without keeping it in memory. Blocks."""
    for segment in segments:
        for entry in files.index(segment):
            if entry.end > start:
                yield segment, entry, files.block(segment, entry, keep=False)
