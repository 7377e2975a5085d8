"""Reading the log: the records of one file, in large pieces, and single frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.commit_log.files import FileOperations
from dejaq.storage.commit_log.record import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    FileHeader,
    FrameAddress,
    Header,
    matches,
    read_file_header,
    read_frame,
    read_header,
)

SUFFIX = ".log"
CHUNK_BYTES = 4 * 1024 * 1024
# What is read between two frames rather than to call the system twice.
_GAP_BYTES = 16 * 1024


def file_name(number: int) -> str:
    """The name of the file with a number."""
    return f"{number:010d}{SUFFIX}"


def file_number(name: str) -> int:
    """The number of the file with a name."""
    return int(name.removesuffix(SUFFIX))


class LogRecord(NamedTuple):
    """A record as it was read."""

    header: Header
    file: int
    offset: int
    body: bytes

    @property
    def operations(self) -> bytes:
        """The encoded operations."""
        return self.body[self.header.frame_bytes :]

    @property
    def frames(self) -> bytes:
        """All frames with their headers."""
        return self.body[: self.header.frame_bytes]


class FileReader:
    """Reads a file from the beginning to the end, in large pieces."""

    def __init__(self, files: FileOperations, name: str) -> None:
        self._files = files
        self._name = name
        self.size = files.size(name)
        self._data, self._start = b"", 0

    def take(self, offset: int, length: int) -> bytes:
        """The bytes at an offset; fewer where the file ends earlier."""
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._data):
            self._start, begin = offset, 0
            self._data = self._files.read(self._name, offset, max(length, CHUNK_BYTES))
        return self._data[begin : begin + length]


def record_at(reader: FileReader, at: int, number: int, file: FileHeader) -> LogRecord | None:
    """The record at an offset, or None where there is no valid one."""
    header = read_header(reader.take(at, HEADER_BYTES), 0, file.salt)
    if header is None or header.epoch != file.epoch or header.frame_bytes > header.length:
        return None
    if at + HEADER_BYTES + header.length > reader.size:
        return None
    body = reader.take(at + HEADER_BYTES, header.length)
    return LogRecord(header, number, at, body) if matches(header.crc, body) else None


class RecordReader:
    """The records of a file that gets no more of them, one after the other. Raises STORE_CORRUPT for damage."""

    def __init__(self, files: FileOperations, number: int) -> None:
        self._number = number
        self._name = name = file_name(number)
        try:
            self._reader = FileReader(files, name)
            header = read_file_header(self._reader.take(0, FILE_HEADER_BYTES))
        except FileNotFoundError:
            raise _lost(name) from None
        except OSError as cause:
            raise _unreadable(name, cause) from None
        if header is None:
            raise _damaged(name, "its header")
        self._header = header
        # Where the next record begins.
        self.offset = FILE_HEADER_BYTES

    def next(self, bytes_max: int = 1, records_max: int = 1) -> list[LogRecord]:
        """The next records, at least one of them; none behind the last one. Blocks."""
        found: list[LogRecord] = []
        while self.offset < self._reader.size and bytes_max > 0 and len(found) < records_max:
            try:
                record = record_at(self._reader, self.offset, self._number, self._header)
            except OSError as cause:
                raise _unreadable(self._name, cause) from None
            if record is None:
                raise _damaged(self._name, f"record at {self.offset}")
            self.offset += HEADER_BYTES + record.header.length
            bytes_max -= record.header.length
            found.append(record)
        return found


def read_frame_at(files: FileOperations, address: FrameAddress) -> bytes:
    """Read and check one frame."""
    name = file_name(address.file)
    try:
        frame = read_frame(files.read(name, address.offset, FRAME_HEADER_BYTES + address.length), address.length)
    except FileNotFoundError:
        raise _lost(name) from None
    except OSError as cause:
        raise _unreadable(name, cause) from None
    if frame is None:
        raise _damaged(name, f"frame of {address.length} bytes at {address.offset}")
    return frame


def read_part_at(files: FileOperations, address: FrameAddress, start: int, length: int) -> bytes:
    """Bytes of a frame from `start` on, which the caller has to check; fewer where the frame ends earlier."""
    name = file_name(address.file)
    try:
        begin = address.offset + FRAME_HEADER_BYTES + start
        return files.read(name, begin, min(length, address.length - start))
    except FileNotFoundError:
        raise _lost(name) from None
    except OSError as cause:
        raise _unreadable(name, cause) from None


def read_parts_at(
    files: FileOperations, numbers: Sequence[int], offsets: Sequence[int], parts: Sequence[memoryview]
) -> list[int]:
    """Fill each part with bytes of the file with its number; how many they were. The caller has to check them."""
    read: list[int] = []
    for number, some in groupby(range(len(parts)), key=numbers.__getitem__):
        name, rows = file_name(number), list(some)
        cut = slice(rows[0], rows[-1] + 1)
        try:
            read += files.read_into(name, offsets[cut], parts[cut])
        except FileNotFoundError:
            raise _lost(name) from None
        except OSError as cause:
            raise _unreadable(name, cause) from None
    return read


def read_frames_at(files: FileOperations, addresses: Sequence[FrameAddress]) -> list[bytes]:
    """Read and check frames; those that lie close behind each other are read with one call."""
    found: list[bytes] = []
    start = 0
    while start < len(addresses):
        first = addresses[start]
        stop, end = start + 1, _end_of(first)
        while (
            stop < len(addresses)
            and addresses[stop].file == first.file
            and 0 <= addresses[stop].offset - end <= _GAP_BYTES
            and _end_of(addresses[stop]) - first.offset <= CHUNK_BYTES
        ):
            end = _end_of(addresses[stop])
            stop += 1
        if stop == start + 1:
            found.append(read_frame_at(files, first))
        else:
            found += _frames_between(files, addresses[start:stop], end)
        start = stop
    return found


def _end_of(address: FrameAddress) -> int:
    return address.offset + FRAME_HEADER_BYTES + address.length


def _frames_between(files: FileOperations, addresses: Sequence[FrameAddress], end: int) -> list[bytes]:
    name, begin = file_name(addresses[0].file), addresses[0].offset
    try:
        data = memoryview(files.read(name, begin, end - begin))
    except FileNotFoundError:
        raise _lost(name) from None
    except OSError as cause:
        raise _unreadable(name, cause) from None
    found = []
    for address in addresses:
        start = address.offset - begin
        frame = read_frame(bytes(data[start : start + FRAME_HEADER_BYTES + address.length]), address.length)
        if frame is None:
            raise _damaged(name, f"frame of {address.length} bytes at {address.offset}")
        found.append(frame)
    return found


def _lost(name: str) -> DejaqError:
    return error_of(Code.STORE_CORRUPT, f"the commit log has lost {name}; restore it from a backup")


def _unreadable(name: str, cause: OSError) -> DejaqError:
    return error_of(Code.STORE_FAILED, f"cannot read {name} of the commit log", details=str(cause))


def _damaged(name: str, what: str) -> DejaqError:
    return error_of(Code.STORE_CORRUPT, f"{name} of the commit log is damaged; restore it from a backup", details=what)
