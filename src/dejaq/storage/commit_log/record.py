"""The bytes of the log: a header for each file, records behind it, and frames inside the records.

    file    = file header, records
    record  = header, frames, operations
    frame   = CRC-32, length, bytes

The CRC of each header begins with the salt of its file, a random number. So a record of another file is never taken
for one of this file, and nobody who chooses the bytes of a frame can make them look like a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

# The same CRC-32 as zlib's, by the processor's own multiplication.
from isal.isal_zlib import crc32

FILE_MAGIC = b"dejaqlog"
FORMAT = 1
MAGIC = b"\xf5dqR"
# What one call of the operating system reads at once.
RECORD_BYTES_MAX = 2**30

# Magic, format, epoch, first sequence, salt; then the CRC of all of them.
_FILE = Struct("<8sIIQI")
_CRC = Struct("<I")
FILE_HEADER_BYTES = _FILE.size + _CRC.size
# Magic and CRC of the header; then the CRC of the body, its length, epoch, sequence, synced, bytes of frames.
_START = Struct("<4sI")
_HEADER = Struct("<IIIQQI")
HEADER_BYTES = _START.size + _HEADER.size
_FRAME = Struct("<II")
FRAME_HEADER_BYTES = _FRAME.size


class FrameAddress(NamedTuple):
    """Where a frame is: the number of its file, where its header begins, and the length of its bytes."""

    file: int
    offset: int
    length: int


class FileHeader(NamedTuple):
    """What the beginning of a file says."""

    epoch: int
    first: int
    salt: int
    format: int = FORMAT


class Header(NamedTuple):
    """What the beginning of a record says. `synced` is the sequence that was durable when the record was written."""

    crc: int
    length: int
    epoch: int
    sequence: int
    synced: int
    frame_bytes: int


def pack_file_header(header: FileHeader) -> bytes:
    """The beginning of a file."""
    packed = _FILE.pack(FILE_MAGIC, header.format, header.epoch, header.first, header.salt)
    return packed + _CRC.pack(crc32(packed))


def read_file_header(data: bytes) -> FileHeader | None:
    """The header, or None where there is no valid one."""
    if len(data) < FILE_HEADER_BYTES or data[:8] != FILE_MAGIC:
        return None
    if crc32(data[: _FILE.size]) != _CRC.unpack_from(data, _FILE.size)[0]:
        return None
    _, version, epoch, first, salt = _FILE.unpack_from(data)
    return FileHeader(epoch, first, salt, version)


def pack_header(header: Header, salt: int) -> bytes:
    """The beginning of a record."""
    packed = _HEADER.pack(*header)
    return _START.pack(MAGIC, crc32(packed, salt)) + packed


def read_header(data: bytes, offset: int, salt: int) -> Header | None:
    """The header at an offset, or None where there is no valid one."""
    end = offset + HEADER_BYTES
    if len(data) < end:
        return None
    magic, crc = _START.unpack_from(data, offset)
    start = offset + _START.size
    if magic != MAGIC or not matches(crc, data[start:end], salt):
        return None
    return Header(*_HEADER.unpack_from(data, start))


def matches(crc: int, data: bytes, start: int = 0) -> bool:
    """Whether bytes have a CRC."""
    return crc32(data, start) == crc


def pack_frames(frames: Sequence[bytes]) -> list[bytes]:
    """The blocks of some frames, each behind its own header."""
    blocks: list[bytes] = []
    for frame in frames:
        blocks += (_FRAME.pack(_frame_crc(frame), len(frame)), frame)
    return blocks


def crc_of(blocks: Sequence[bytes]) -> int:
    """The CRC of blocks that follow each other."""
    crc = 0
    for block in blocks:
        crc = crc32(block, crc)
    return crc


def read_frame(data: bytes, length: int) -> bytes | None:
    """The bytes of a frame from its header on, or None where they are not what was written."""
    if len(data) != FRAME_HEADER_BYTES + length:
        return None
    crc, stored = _FRAME.unpack_from(data)
    # Not of the copy: what was just written to memory is not in the processor's cache any more where frames are large.
    whole = stored == length and _frame_crc(memoryview(data)[FRAME_HEADER_BYTES:]) == crc
    return data[FRAME_HEADER_BYTES:] if whole else None


def frame_lengths(data: bytes) -> list[tuple[int, int]] | None:
    """The offset and the length of each frame in the frames of a record; None where one of them is damaged."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        if len(data) < at + FRAME_HEADER_BYTES:
            return None
        length = _FRAME.unpack_from(data, at)[1]
        end = at + FRAME_HEADER_BYTES + length
        if read_frame(data[at:end], length) is None:
            return None
        found.append((at, length))
        at = end
    return found


def _frame_crc(frame: bytes | memoryview) -> int:
    return crc32(frame, len(frame))
