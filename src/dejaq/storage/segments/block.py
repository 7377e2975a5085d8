"""The bytes of a segment file: a header, blocks of batches, the index of the blocks, and where the index begins.

    file   = header, blocks, index, trailer
    block  = frame of: packing, count; bases, times, counts, lengths, flags; contents
    index  = frame of: an entry for each block

Frames are those of the commit log: a CRC, the length, the bytes. A block that zstd makes smaller is stored packed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple

import zstandard

from dejaq.storage.commit_log.record import crc_of, matches, pack_frames
from dejaq.storage.log.base import StoredBatch

MAGIC = b"dejaqseg"
FORMAT = 1
# Magic, format, number of the file, topic, bucket, first offset.
_HEADER = Struct("<8sIQIIQ")
# Where the index begins, its length with the header of its frame, and the magic again.
_TRAILER = Struct("<QI8s")
_CRC = Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
TRAILER_BYTES = _TRAILER.size + _CRC.size
_BLOCK = Struct("<BI")
_PLAIN, _PACKED = 0, 1
_ABORTED = 1
# A packed block must be at most so many parts of eight of the plain one, since unpacking costs time.
_WORTH_EIGHTHS = 7
_LEVEL = 1


class SegmentHeader(NamedTuple):
    """What the beginning of a segment file says."""

    number: int
    topic: int
    bucket: int
    base: int


class BlockEntry(NamedTuple):
    """What the index has of a block: its offsets and times, its batches and their bytes, and where it is."""

    base: int
    end: int
    first_ts: int
    last_ts: int
    rows: int
    bytes: int
    offset: int
    # With the header of its frame.
    length: int


_ENTRY = Struct("<QQQQIQQI")


def pack_header(header: SegmentHeader) -> bytes:
    """The beginning of a file."""
    packed = _HEADER.pack(MAGIC, FORMAT, *header)
    return packed + _crc(packed)


def read_header(data: bytes) -> SegmentHeader | None:
    """The header, or None where there is no valid one."""
    if not _is_whole(data, HEADER_BYTES):
        return None
    magic, version, *fields = _HEADER.unpack_from(data)
    return SegmentHeader(*fields) if (magic, version) == (MAGIC, FORMAT) else None


def pack_trailer(offset: int, length: int) -> bytes:
    """The end of a file."""
    packed = _TRAILER.pack(offset, length, MAGIC)
    return packed + _crc(packed)


def read_trailer(data: bytes) -> tuple[int, int] | None:
    """The offset and length of the index, or None where there is no valid trailer."""
    if not _is_whole(data, TRAILER_BYTES):
        return None
    offset, length, magic = _TRAILER.unpack_from(data)
    return (offset, length) if magic == MAGIC else None


def pack_index(entries: Iterable[BlockEntry]) -> bytes:
    """The index, before it is a frame."""
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def read_index(data: bytes) -> list[BlockEntry]:
    """The entries of an index."""
    return [BlockEntry(*fields) for fields in _ENTRY.iter_unpack(data)]


class Packer:
    """Packs blocks. After some that zstd did not make smaller, such as sealed ones, only few are tried."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._failed = self._skipped = 0

    def pack(self, batches: Sequence[StoredBatch]) -> bytes:
        """A block, before it is a frame."""
        columns = (
            array("Q", [one.base for one in batches]),
            array("Q", [one.ts for one in batches]),
            array("I", [one.count for one in batches]),
            array("I", [len(one.records) for one in batches]),
        )
        flags = bytes(_ABORTED if one.aborted else 0 for one in batches)
        plain = b"".join((*(column.tobytes() for column in columns), flags, *(one.records for one in batches)))
        packed = self._try(plain)
        if packed is None:
            return _BLOCK.pack(_PLAIN, len(batches)) + plain
        return _BLOCK.pack(_PACKED, len(batches)) + packed

    def _try(self, plain: bytes) -> bytes | None:
        if self._skipped < min(self._failed, 64):
            self._skipped += 1
            return None
        packed = self._compressor.compress(plain)
        self._skipped = 0
        if len(packed) * 8 > len(plain) * _WORTH_EIGHTHS:
            self._failed = max(2 * self._failed, 1)
            return None
        self._failed = 0
        return packed


def read_block(data: bytes) -> list[StoredBatch]:
    """The batches of a block; raises ValueError where it is not one."""
    packing, count = _BLOCK.unpack_from(data)
    content = data[_BLOCK.size :]
    if packing == _PACKED:
        try:
            content = zstandard.ZstdDecompressor().decompress(content)
        except zstandard.ZstdError as cause:
            raise ValueError(str(cause)) from None
    at = 0
    columns: list[array[int]] = []
    for kind in "QQII":
        column = array(kind)
        end = at + count * column.itemsize
        column.frombytes(content[at:end])
        columns.append(column)
        at = end
    bases, times, counts, lengths = columns
    flags = content[at : at + count]
    stops = list(accumulate(lengths, initial=at + count))
    if stops[-1] != len(content):
        raise ValueError("a block has another length than its batches")
    return [
        StoredBatch(base, rows, ts, content[start:stop], bool(flag & _ABORTED))
        for base, rows, ts, flag, (start, stop) in zip(bases, counts, times, flags, pairwise(stops), strict=True)
    ]


def frame_of(data: bytes) -> list[bytes]:
    """The blocks of a frame of these bytes."""
    return pack_frames([data])


def _crc(data: bytes) -> bytes:
    return _CRC.pack(crc_of([data]))


def _is_whole(data: bytes, length: int) -> bool:
    size = length - _CRC.size
    return len(data) >= length and matches(_CRC.unpack_from(data, size)[0], data[:size])
