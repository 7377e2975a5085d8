"""The segment files of a store: they are numbered, written once, read in blocks, and removed.

The database has a record of each segment that is used. A file without a record was not finished, or its batches were
removed; it is removed after a start. Blocks are read in threads; a few of them are kept in memory for readers that
follow each other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.commit_log.files import FileOperations
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, read_frame
from dejaq.storage.log.base import StoredBatch
from dejaq.storage.segments.block import (
    HEADER_BYTES,
    TRAILER_BYTES,
    BlockEntry,
    SegmentHeader,
    read_block,
    read_header,
    read_index,
    read_trailer,
)
from dejaq.storage.segments.writer import SUFFIX, LogSegment, SegmentWriter, segment_name

# Files that stay open for reading.
OPEN_MAX = 64
_INDEXES_MAX = 256
_BLOCKS_BYTES = 16 * 1024 * 1024
# What a batch takes in memory besides its bytes.
_OVERHEAD_BYTES = 150
# What is read of the end of a file at once; most indexes are shorter.
_END_BYTES = 16 * 1024


class SegmentFiles:
    """All segment files of a store. Everything blocks; call it in threads, of which several may be at work."""

    def __init__(self, files: FileOperations) -> None:
        self._files = files
        numbers = self.numbers()
        self._next = max(numbers, default=0) + 1
        self._lock = threading.Lock()
        self._unfinished: set[int] = set()
        self._indexes: OrderedDict[int, list[BlockEntry]] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, int], tuple[list[StoredBatch], int]] = OrderedDict()
        self._blocks_bytes = 0

    def numbers(self) -> set[int]:
        """The numbers of all files."""
        names = (name for name in self._files.list() if name.endswith(SUFFIX))
        return {int(name.removesuffix(SUFFIX)) for name in names}

    def check(self, segments: Iterable[LogSegment]) -> list[int]:
        """Raise STORE_CORRUPT for a file that is missing or has another length; the numbers of files without a use."""
        numbers = self.numbers()
        for one in segments:
            name = segment_name(one.number)
            if one.number not in numbers:
                raise lost(name)
            size = self._files.size(name)
            if size != one.file_bytes:
                raise damaged(name, f"it has {size} bytes instead of {one.file_bytes}")
            numbers.discard(one.number)
        return sorted(numbers)

    def begin(self, topic: int, bucket: int, base: int, *, ts: int = 0) -> SegmentWriter:
        """Begin a file for the batches of a bucket from an offset on."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._unfinished.add(number)
        header = SegmentHeader(number, topic, bucket, base)
        return SegmentWriter(self._files, header, ts=ts, on_finished=self._unfinished.discard)

    def finished(self) -> list[str]:
        """The names of the files that do not change any more."""
        unfinished = {segment_name(number) for number in set(self._unfinished)}
        return [name for name in map(segment_name, self.numbers()) if name not in unfinished]

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove files, as far as they exist. Raises STORE_FAILED where the disk fails."""
        with self._lock:
            gone = set(numbers)
            for number in gone:
                self._indexes.pop(number, None)
            for place in [place for place in self._blocks if place[0] in gone]:
                self._blocks_bytes -= self._blocks.pop(place)[1]
        try:
            for number in numbers:
                try:
                    self._files.remove(segment_name(number))
                except FileNotFoundError:
                    continue
            self._files.sync_directory()
        except OSError as cause:
            raise error_of(Code.STORE_FAILED, "cannot remove segments of a log", details=str(cause)) from None

    def index(self, segment: LogSegment) -> list[BlockEntry]:
        """The blocks of a segment."""
        with self._lock:
            known = self._indexes.get(segment.number)
            if known is not None:
                self._indexes.move_to_end(segment.number)
                return known
        found = self._read_index(segment)
        with self._lock:
            self._indexes[segment.number] = found
            while len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)
        return found

    def _read_index(self, segment: LogSegment) -> list[BlockEntry]:
        name, size = segment_name(segment.number), segment.file_bytes
        start = max(size - _END_BYTES, 0)
        end = self._read(name, start, size - start)
        trailer = read_trailer(end[-TRAILER_BYTES:])
        if trailer is None:
            raise damaged(name, "its end")
        offset, length = trailer
        data = end[offset - start : offset - start + length] if offset >= start else self._read(name, offset, length)
        index = read_frame(data, length - FRAME_HEADER_BYTES)
        if index is None:
            raise damaged(name, "its index")
        return read_index(index)

    def block(self, segment: LogSegment, entry: BlockEntry, *, keep: bool = True) -> list[StoredBatch]:
        """The batches of a block; `keep` them in memory for the next reader."""
        place = segment.number, entry.offset
        with self._lock:
            known = self._blocks.get(place)
            if known is not None:
                self._blocks.move_to_end(place)
                return known[0]
        name = segment_name(segment.number)
        data = read_frame(self._read(name, entry.offset, entry.length), entry.length - FRAME_HEADER_BYTES)
        if data is None:
            raise damaged(name, f"block of {entry.length} bytes at {entry.offset}")
        try:
            batches = read_block(data)
        except ValueError as cause:
            raise damaged(name, f"block at {entry.offset}: {cause}") from None
        if keep:
            self._keep(place, batches, entry.bytes + _OVERHEAD_BYTES * len(batches))
        return batches

    def _keep(self, place: tuple[int, int], batches: list[StoredBatch], size: int) -> None:
        with self._lock:
            before = self._blocks.pop(place, None)
            self._blocks[place] = batches, size
            self._blocks_bytes += size - (before[1] if before is not None else 0)
            while self._blocks_bytes > _BLOCKS_BYTES and len(self._blocks) > 1:
                self._blocks_bytes -= self._blocks.popitem(last=False)[1][1]

    @property
    def next_number(self) -> int:
        """The number of the next file."""
        return self._next

    def header(self, segment: LogSegment) -> SegmentHeader | None:
        """What the beginning of a file says."""
        return read_header(self._read(segment_name(segment.number), 0, HEADER_BYTES))

    @property
    def cached_bytes(self) -> int:
        """The memory of the blocks that are kept."""
        return self._blocks_bytes

    def _read(self, name: str, offset: int, length: int) -> bytes:
        try:
            return self._files.read(name, offset, length)
        except FileNotFoundError:
            raise lost(name) from None
        except OSError as cause:
            raise error_of(Code.STORE_FAILED, f"cannot read {name} of a log", details=str(cause)) from None

    def close(self) -> None:
        """Release what is open."""
        self._files.close()


def lost(name: str) -> DejaqError:
    """The error for a file that is missing."""
    return error_of(Code.STORE_CORRUPT, f"the segment {name} of a log is lost; restore it from a backup")


def damaged(name: str, what: str) -> DejaqError:
    """The error for a file that is not what was written."""
    return error_of(
        Code.STORE_CORRUPT, f"the segment {name} of a log is damaged; restore it from a backup", details=what
    )
