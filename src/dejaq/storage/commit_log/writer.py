"""The log that is open: it numbers records, writes them in groups, and knows which of them are durable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.commit_log.files import FileOperations
from dejaq.storage.commit_log.reader import (
    RecordReader,
    file_name,
    read_frame_at,
    read_frames_at,
    read_part_at,
    read_parts_at,
)
from dejaq.storage.commit_log.record import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    RECORD_BYTES_MAX,
    FileHeader,
    FrameAddress,
    Header,
    crc_of,
    pack_file_header,
    pack_frames,
    pack_header,
)

FILE_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class LogFile:
    """A file of the log. Its size counts what was written."""

    number: int
    first: int
    size: int


@dataclass(slots=True)
class _Appended:
    """A record that is not written yet."""

    file: int
    sequence: int
    frame_bytes: int
    blocks: list[bytes]
    length: int


class CommitLog:
    """The end of the log. One thread appends; one thread, which may be another, writes and syncs."""

    def __init__(
        self,
        files: FileOperations,
        known: Sequence[LogFile],
        *,
        number: int,
        epoch: int,
        sequence: int,
        salt: Callable[[], int],
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._files = files
        self._known = list(known)
        self._salt = salt
        self._file_bytes = file_bytes
        self.epoch = epoch
        # The last record that was appended, that was written, and that is durable.
        self.sequence = self.written = self.durable = sequence
        # Of all records since the log was opened.
        self.bytes_written = 0
        self.failure: StoreError | None = None
        self._lock = threading.Lock()
        self._appended: list[_Appended] = []
        # Where the next record goes.
        self._number, self._end = number, FILE_HEADER_BYTES
        self._begin_file(number, sequence + 1)

    # Appending

    def addresses(self, frames: Sequence[bytes], *, behind: int = 0) -> list[FrameAddress]:
        """Where these frames will be if the next call of `append` has them, behind so many bytes of other frames."""
        number, end = (self._number, self._end) if not self._full else (self._number + 1, FILE_HEADER_BYTES)
        found, at = [], end + HEADER_BYTES + behind
        for frame in frames:
            found.append(FrameAddress(number, at, len(frame)))
            at += FRAME_HEADER_BYTES + len(frame)
        return found

    def append(self, operations: bytes, frames: Sequence[bytes] = ()) -> int:
        """Number a record, which the next `write` writes; its sequence. Raises STORE_FAILED after a failure."""
        self.check()
        blocks = pack_frames(frames)
        frame_bytes = sum(map(len, blocks))
        blocks.append(operations)
        length = frame_bytes + len(operations)
        if length > RECORD_BYTES_MAX:
            raise error_of(Code.STORE_FAILED, f"a change of {length} bytes does not fit into a record of the log")
        with self._lock:
            if self._full:
                self._number, self._end = self._number + 1, FILE_HEADER_BYTES
            self.sequence += 1
            self._end += HEADER_BYTES + length
            self._appended.append(_Appended(self._number, self.sequence, frame_bytes, blocks, length))
            return self.sequence

    def roll(self) -> None:
        """Put the next record into a new file, unless the present one is empty."""
        with self._lock:
            if self._end > FILE_HEADER_BYTES:
                self._end = max(self._end, self._file_bytes)

    @property
    def number(self) -> int:
        """The file of the last record that was appended."""
        return self._number

    @property
    def _full(self) -> bool:
        return self._end >= self._file_bytes

    # Writing

    def write(self) -> int:
        """Write every record that was appended, with one call for each file; the last sequence. Blocks."""
        self.check()
        with self._lock:
            group, self._appended = self._appended, []
        try:
            start = 0
            for end, (one, other) in enumerate(pairwise(group), start=1):
                if one.file != other.file:
                    self._write(group[start:end])
                    start = end
            self._write(group[start:])
        except OSError as cause:
            raise self._fail("write to", cause) from None
        return self.written

    def _write(self, group: Sequence[_Appended]) -> None:
        """Write records of one file."""
        if not group:
            return
        if group[0].file != self._known[-1].number:
            # What a file has when the next one is begun is durable: recovery relies on it.
            self._sync()
            self._begin_file(group[0].file, group[0].sequence)
        blocks: list[bytes] = []
        for one in group:
            header = Header(crc_of(one.blocks), one.length, self.epoch, one.sequence, self.durable, one.frame_bytes)
            blocks.append(pack_header(header, self._salt_of_file))
            blocks += one.blocks
        file = self._known[-1]
        self._files.append(file_name(file.number), blocks)
        size = sum(map(len, blocks))
        file.size += size
        self.bytes_written += size
        self.written = group[-1].sequence

    def sync(self) -> int:
        """Make durable what was written; the last durable sequence. Blocks."""
        self.check()
        try:
            self._sync()
        except OSError as cause:
            raise self._fail("sync", cause) from None
        return self.durable

    def _sync(self) -> None:
        if self.written > self.durable:
            written = self.written
            self._files.sync(file_name(self._known[-1].number))
            self.durable = written

    def _begin_file(self, number: int, first: int) -> None:
        """Begin a file, and make it durable before there is a record in it."""
        self._salt_of_file = self._salt()
        name = file_name(number)
        self._files.create(name)
        self._files.append(name, [pack_file_header(FileHeader(self.epoch, first, self._salt_of_file))])
        self._files.sync(name)
        self._files.sync_directory()
        self._known.append(LogFile(number, first, FILE_HEADER_BYTES))

    def check(self) -> None:
        """Raise STORE_FAILED after a failure: nothing more is written or synced until the log is opened again."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def _fail(self, what: str, cause: OSError) -> StoreError:
        error = error_of(Code.STORE_FAILED, f"cannot {what} the commit log", details=str(cause))
        assert isinstance(error, StoreError)
        self.failure = error
        return error

    # Reading and trimming

    def read(self, address: FrameAddress) -> bytes:
        """The frame at an address; raises STORE_CORRUPT when it is damaged or gone."""
        return read_frame_at(self._files, address)

    def read_part(self, address: FrameAddress, start: int, length: int) -> bytes:
        """Bytes of a frame, which the caller has to check."""
        return read_part_at(self._files, address, start, length)

    def read_parts(self, numbers: Sequence[int], offsets: Sequence[int], parts: Sequence[memoryview]) -> list[int]:
        """Fill each part with bytes of the file with its number; how many they were. The caller has to check them."""
        return read_parts_at(self._files, numbers, offsets, parts)

    def read_many(self, addresses: Sequence[FrameAddress]) -> list[bytes]:
        """The frames at some addresses. Blocks."""
        return read_frames_at(self._files, addresses)

    def trim(self, below: int, *, files: Collection[int] | None = None) -> None:
        """Remove the files whose records are all below a sequence; with `files`, only those of these numbers. Blocks.

        Each removal is durable before the next one, so that a crash brings none back whose successor is gone.
        """
        self.check()
        for file, after in pairwise(self.files):
            if after.first > below:
                return
            if files is not None and file.number not in files:
                continue
            try:
                self._files.remove(file_name(file.number))
                self._files.sync_directory()
            except OSError as cause:
                raise self._fail("trim", cause) from None
            self._known.remove(file)

    @property
    def files(self) -> list[LogFile]:
        """The files, oldest first."""
        return list(self._known)

    def reader(self, number: int) -> RecordReader:
        """Reads the records of a file that gets no more of them."""
        return RecordReader(self._files, number)

    def close(self) -> None:
        """Release the files. What was not synced may be lost."""
        self._files.close()
