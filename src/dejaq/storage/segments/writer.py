"""Writing one segment file. It is used only after `finish`, when everything in it is durable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.commit_log.files import FileOperations
from dejaq.storage.log.base import StoredBatch
from dejaq.storage.segments.block import (
    BlockEntry,
    Packer,
    SegmentHeader,
    frame_of,
    pack_header,
    pack_index,
    pack_trailer,
)

SUFFIX = ".seg"
BLOCK_BYTES = 512 * 1024
BLOCK_ROWS = 1_024
# What is written before it is synced, so that the sync of the commit log does not wait for a whole file.
_SYNC_BYTES = 4 * 1024 * 1024


def segment_name(number: int) -> str:
    """The name of the file with a number."""
    return f"{number:010d}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class LogSegment:
    """What the store knows of a segment file: the offsets that it covers, and what it has.

    Offsets of messages that a compaction removed are covered although no batch has them.
    """

    number: int
    base: int
    end: int
    first_ts: int
    last_ts: int
    rows: int = 0
    # Of the contents of its batches; the file may be smaller.
    bytes: int = 0
    file_bytes: int = 0
    # A compaction by key has looked at it: of each key, it has only what was the latest.
    clean: bool = False


class SegmentWriter:
    """A segment that is being written, in one thread at a time. Raises STORE_FAILED where the disk fails."""

    def __init__(
        self,
        files: FileOperations,
        header: SegmentHeader,
        *,
        ts: int,
        on_finished: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._files = files
        self._on_finished = on_finished
        self._name = segment_name(header.number)
        self._packer = Packer()
        self._index: list[BlockEntry] = []
        self._batches: list[StoredBatch] = []
        self._pending = 0
        self._unsynced = 0
        self._number, self._base = header.number, header.base
        # What it has so far; `ts` is that of the first offset.
        self.end, self.bytes = header.base, 0
        self._first_ts = self._last_ts = ts
        self._rows = self._file_bytes = 0
        try:
            files.create(self._name)
            self._append([pack_header(header)])
        except OSError as cause:
            raise self._failure(cause) from None

    def add(self, batch: StoredBatch) -> None:
        """Take the next batch."""
        size = len(batch.records)
        if self._batches and (self._pending + size > BLOCK_BYTES or len(self._batches) >= BLOCK_ROWS):
            self._write_block()
        self._batches.append(batch)
        self._pending += size
        if not self._rows:
            self._first_ts = batch.ts
        self.end, self._last_ts = batch.end, batch.ts
        self._rows, self.bytes = self._rows + 1, self.bytes + size

    @property
    def segment(self) -> LogSegment:
        """What it is so far."""
        return LogSegment(
            *(self._number, self._base, self.end, self._first_ts, self._last_ts),
            rows=self._rows,
            bytes=self.bytes,
            file_bytes=self._file_bytes,
        )

    def finish(self, *, end: int | None = None, last_ts: int | None = None, clean: bool = False) -> LogSegment:
        """Write what is left, and make everything durable. The segment may cover more than its last batch."""
        if self._batches:
            self._write_block()
        blocks = frame_of(pack_index(self._index))
        length = sum(map(len, blocks))
        offset = self._file_bytes
        try:
            self._append([*blocks, pack_trailer(offset, length)])
            self._files.sync(self._name)
            self._files.sync_directory()
            self._files.release(self._name)
        except OSError as cause:
            raise self._failure(cause) from None
        known = self.segment
        self._on_finished(known.number)
        return replace(
            known,
            end=known.end if end is None else end,
            last_ts=known.last_ts if last_ts is None else last_ts,
            clean=clean,
        )

    def _write_block(self) -> None:
        batches, self._batches, self._pending = self._batches, [], 0
        blocks = frame_of(self._packer.pack(batches))
        first, last = batches[0], batches[-1]
        size = sum(len(one.records) for one in batches)
        length = sum(map(len, blocks))
        place = self._file_bytes
        self._index.append(BlockEntry(first.base, last.end, first.ts, last.ts, len(batches), size, place, length))
        try:
            self._append(blocks)
            if self._unsynced >= _SYNC_BYTES:
                self._files.sync(self._name)
                self._unsynced = 0
        except OSError as cause:
            raise self._failure(cause) from None

    def _append(self, blocks: list[bytes]) -> None:
        self._files.append(self._name, blocks)
        size = sum(map(len, blocks))
        self._unsynced += size
        self._file_bytes += size

    def _failure(self, cause: OSError) -> StoreError:
        error = error_of(Code.STORE_FAILED, f"cannot write {self._name} of a log", details=str(cause))
        assert isinstance(error, StoreError)
        return error
