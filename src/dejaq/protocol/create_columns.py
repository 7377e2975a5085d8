"""Ids and bodies of a create as the bytes in which they arrived, without an object for each of them.

A client writes them behind the rest of the frame (`protocol.spliced`). Where all ids have one length, they are a matrix
of bytes, and so are bodies of one size. Every frame can be read without this module too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.id_column import ID_TAG, IdColumn
from dejaq.domain.ids import are_valid_cells
from dejaq.protocol.v1 import carrier_pb2 as carrier

# A smaller frame has few messages, and is read faster as a whole.
FRAME_BYTES_MIN = 4 * 1024

_VARINT, _BYTES = 0, 2
_CREATE = carrier.ClientFrame.CREATE_FIELD_NUMBER << 3 | _BYTES
_TS = carrier.CreateBatch.TS_FIELD_NUMBER << 3 | _BYTES
_BODY = carrier.CreateBatch.BODIES_FIELD_NUMBER << 3 | _BYTES
_TIME_BYTES = 8
# A greater tag has two bytes.
_TAG_MAX = 0x7F


@dataclass(frozen=True, slots=True)
class CreateColumns:
    """The columns of a create that are not in its message. The ids are valid ones of one length."""

    ts: Sequence[int]
    ids: IdColumn
    bodies: Sequence[bytes]


def read_create(data: bytes | memoryview) -> tuple[carrier.ClientFrame, CreateColumns] | None:
    """A frame that creates messages, with the rest of its create; None for a frame that has to be read as a whole."""
    try:
        return _read(data)
    except (DecodeError, IndexError):
        return None


def _read(data: bytes | memoryview) -> tuple[carrier.ClientFrame, CreateColumns] | None:
    at = 0
    while data[at] != _CREATE:
        if data[at] & 7 != _VARINT:
            return None
        at = _varint_at(data, at + 1)[1]
    length, begin = _varint_at(data, at + 1)
    behind = begin + length
    length, start = _varint_at(data, behind + 1)
    if data[behind] != _CREATE or start + length != len(data) or data[start] != ID_TAG[0]:
        return None
    frame = carrier.ClientFrame()
    frame.ParseFromString(data[:behind])
    create = frame.create
    count = len(create.ts)
    if not count or create.ids or create.bodies or create.digests or create.large:
        return None
    # An id has at most 64 characters, so its length is one byte.
    end = start + count * (len(ID_TAG) + 1 + data[start + 1])
    wire = bytes(data[start:end])
    if not are_valid_cells(wire, count):
        return None
    bodies = _bodies(data, end, count)
    if bodies is None:
        return None
    ids = IdColumn.of_cells(wire, count)
    ids.are_valid = True
    return frame, CreateColumns(_times(data, begin, behind, create), ids, bodies)


def _times(data: bytes | memoryview, at: int, end: int, create: carrier.CreateBatch) -> Sequence[int]:
    """The times, as a copy of their bytes where they are one field."""
    while at < end:
        tag = data[at]
        if tag > _TAG_MAX:
            break
        number, start = _varint_at(data, at + 1)
        if tag == _TS and number == _TIME_BYTES * len(create.ts):
            times = array("q")
            times.frombytes(data[start : start + number])
            return times
        if tag & 7 not in (_VARINT, _BYTES):
            break
        at = start + number if tag & 7 == _BYTES else start
    return list(create.ts)


def _bodies(data: bytes | memoryview, start: int, count: int) -> Sequence[bytes] | None:
    """The bodies, which are the rest of a create; None where something else is there."""
    if data[start] != _BODY:
        return None
    size, first = _varint_at(data, start + 1)
    width = first - start + size
    if start + count * width == len(data):
        heads = (bytes(data[start + at :: width]) == bytes((data[start + at],)) * count for at in range(first - start))
        if all(heads):
            return BodyBlock.of_equal(bytes(data[start:]), count, size)
    rest = carrier.CreateBatch.FromString(data[start:])
    return list(rest.bodies) if len(rest.bodies) == count and len(rest.ListFields()) == 1 else None


def _varint_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number in encoded form, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
