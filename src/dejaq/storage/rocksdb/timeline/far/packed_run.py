"""A stored run as bytes, of which whole columns are copied: to decode them costs more than all else of a merge.

The times of a run have one width, and so have, in most runs, its ids and its bodies, which makes each of these columns
a matrix of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dejaq.protocol.v1 import records_pb2 as records

# The tags of the columns of a run.
_OWNER, _TS, _IDS, _BODIES, _PRIORITIES, _VERSIONS, _FIRST = 0x0A, 0x2A, 0x22, 0x32, 0x3A, 0x6A, 0x18


class EqualCells:
    """A column of texts or bytes, each behind a prefix with its length. If all have one length, it ends at `end`."""

    __slots__ = ("_count", "_data", "_first", "_head", "_stride", "end")

    def __init__(self, data: bytes, start: int, head: int, size: int, count: int) -> None:
        self._data, self._head, self._count = data, head, count
        self._first, self._stride = start + head, head + size
        self.end = start + count * self._stride

    @property
    def head(self) -> bytes:
        """The prefix of the first cell."""
        return self._data[self._first - self._head : self._first]

    @property
    def matrix(self) -> npt.NDArray[np.uint8]:
        """The cells with their prefixes, a row each, not copied."""
        return np.ndarray((self._count, self._stride), np.uint8, self._data, self._first - self._head)

    def are_equal(self) -> bool:
        """Whether all cells have the length of the first, so that each begins with the same prefix."""
        if self.end > len(self._data):
            return False
        start = self._first - self._head
        # A prefix has at least two bytes, which are compared as one number.
        return self._agree(np.uint16, start) and all(self._agree(np.uint8, at) for at in range(start + 2, self._first))

    def _agree(self, kind: type[np.unsignedinteger[Any]], at: int) -> bool:
        """Whether the number at this place of the first cell is the same in all."""
        found: npt.NDArray[Any] = np.ndarray((self._count,), kind, self._data, at, (self._stride,))
        return bool((found == found[0]).all())


class PackedRun:
    """The bytes of a run and where its columns are."""

    __slots__ = ("_bodies", "_data", "_ids", "_plain", "_ts")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._ts: Sequence[int] = ()
        self._ids: EqualCells | None = None
        self._bodies: EqualCells | None = None
        # Whether every row has priority 0 and no headers.
        self._plain = True
        if not self._divide():
            self._ts, self._ids, self._bodies = records.Run.FromString(data).ts, None, None

    def _divide(self) -> bool:
        """Find the columns; False where they are not those of a run that was never leased, in their order."""
        data, at, end = self._data, 0, len(self._data)
        while at < end:
            tag = data[at]
            length, start = _varint_at(data, at + 1)
            if tag == _TS:
                self._ts = memoryview(data)[start : start + length].cast("q")
            elif tag == _PRIORITIES:
                self._plain = False
            elif tag not in (_OWNER, _VERSIONS):
                return self._divide_cells(at)
            at = start + length
        return True

    def _divide_cells(self, at: int) -> bool:
        """Find ids and bodies, the last columns of a run as it is written; False where something else follows."""
        self._ids = self._cells(_IDS, at)
        self._bodies = None if self._ids is None else self._cells(_BODIES, self._ids.end)
        return self._bodies is not None and self._bodies.end == len(self._data)

    def _cells(self, tag: int, at: int) -> EqualCells | None:
        data, count = self._data, len(self._ts)
        if not count or at >= len(data) or data[at] != tag:
            return None
        size, start = _varint_at(data, at + 1)
        cells = EqualCells(data, at, start - at, size, count)
        return cells if cells.are_equal() else None

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """The time of each row."""
        return np.array(self._ts, dtype=np.int64)

    @property
    def cells(self) -> tuple[EqualCells, EqualCells] | None:
        """The ids and the bodies, if each has one length, and the rows have no priority and no headers."""
        if self._ids is None or self._bodies is None or not self._plain:
            return None
        return self._ids, self._bodies


def times_in(data: bytes) -> Sequence[int]:
    """The times of a stored run; no other column is decoded, unless the run lists its ids before its times."""
    at, end = 0, len(data)
    while at < end and data[at] != _IDS:
        tag = data[at]
        length, start = _varint_at(data, at + 1)
        if tag == _TS:
            return memoryview(data)[start : start + length].cast("q")
        # The first counter is a number itself; the fields before it have a length.
        at = start if tag == _FIRST else start + length
    ts: Sequence[int] = records.Run.FromString(data).ts
    return ts


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """A number in encoded form, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
