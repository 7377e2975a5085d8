"""A stored run as bytes, of which single rows are read: to decode all columns of a run costs more than all else.

The times of a run have one width, and so have, in most runs, its ids and its bodies; such a column is read by position.
Any other column is decoded as a whole when it is first needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.timeline import masks

# The tags of the columns of a run.
_OWNER, _TS, _IDS, _BODIES, _PRIORITIES, _VERSIONS = 0x0A, 0x2A, 0x22, 0x32, 0x3A, 0x6A


class EqualCells:
    """A column of texts or bytes, each behind a prefix with its length. If all have one length, it ends at `end`."""

    __slots__ = ("_count", "_data", "_first", "_head", "_size", "_stride", "end")

    def __init__(self, data: bytes, start: int, head: int, size: int, count: int) -> None:
        self._data, self._head, self._size, self._count = data, head, size, count
        self._first, self._stride = start + head, head + size
        self.end = start + count * self._stride

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

    def cell(self, row: int) -> bytes:
        """The bytes of one row."""
        at = self._first + row * self._stride
        return self._data[at : at + self._size]


class PackedRun:
    """The bytes of a run and where its columns are. `live` rows exist; none of them may be in memory or leased."""

    __slots__ = (
        "_bodies",
        "_data",
        "_ids",
        "_record",
        "_ts",
        "count",
        "key",
        "live",
        "owner",
        "plain",
        "rare",
    )

    def __init__(self, key: bytes, data: bytes, gone: int) -> None:
        self.key, self._data = key, data
        self.owner = ""
        self._ts: Sequence[int] = ()
        self._ids: EqualCells | None = None
        self._bodies: EqualCells | None = None
        self._record: records.Run | None = None
        # Whether every row has priority 0 and no headers.
        self.plain = True
        # Whether its rows were leased before, have large bodies, or ids that are counters.
        self.rare = False
        if not self._divide():
            self._decode()
        self.count = len(self._ts)
        self.live = masks.full(self.count) & ~gone

    def _divide(self) -> bool:
        """Find the columns; whether those that are not cells of one length may be decoded later."""
        data, at, end = self._data, 0, len(self._data)
        while at < end:
            tag = data[at]
            length, start = _varint_at(data, at + 1)
            if tag == _OWNER:
                self.owner = data[start : start + length].decode()
            elif tag == _TS:
                self._ts = memoryview(data)[start : start + length].cast("q")
            elif tag == _PRIORITIES:
                self.plain = False
            elif tag != _VERSIONS:
                return self._divide_cells(at)
            at = start + length
        return True

    def _divide_cells(self, at: int) -> bool:
        """Find ids and bodies, the last columns of a run as it is written; False where other columns follow."""
        self._ids = self._cells(_IDS, at)
        if self._ids is None:
            return False
        at = self._ids.end
        if at < len(self._data):
            self._bodies = self._cells(_BODIES, at)
            # Bodies of several lengths: they go to the end, because the columns of a record come before its ids.
            return self._data[at] == _BODIES if self._bodies is None else self._bodies.end == len(self._data)
        return True

    def _cells(self, tag: int, at: int) -> EqualCells | None:
        data, count = self._data, len(self._ts)
        if data[at] != tag or not count:
            return None
        size, start = _varint_at(data, at + 1)
        cells = EqualCells(data, at, start - at, size, count)
        return cells if cells.are_equal() else None

    def _decode(self) -> None:
        record = self.record
        self.owner, self._ts, self._ids, self._bodies = record.owner, record.ts, None, None
        self.plain = not record.priorities and not record.headers
        self.rare = bool(record.session or record.attempts or record.apart or record.firsts or record.lasts)

    @property
    def record(self) -> records.Run:
        """All columns."""
        if self._record is None:
            self._record = records.Run.FromString(self._data)
        return self._record

    def row_of(self, ts: int, message_id: str) -> int | None:
        """The live row with a time and an id; the run may have another id with the same hash at that time."""
        times = self._ts
        row = bisect_left(times, ts)
        while row < self.count and times[row] == ts:
            if self.live >> row & 1 and self._id_at(row) == message_id:
                return row
            row += 1
        return None

    def _id_at(self, row: int) -> str:
        return self._ids.cell(row).decode() if self._ids is not None else self.record.ids[row]

    def body(self, row: int) -> bytes:
        """The body of a row."""
        return self._bodies.cell(row) if self._bodies is not None else self.record.bodies[row]

    def priority(self, row: int) -> int:
        """The priority of a row."""
        return 0 if self.plain or not self.record.priorities else self.record.priorities[row]

    def headers(self, row: int) -> bytes:
        """The encoded headers of a row."""
        return b"" if self.plain or not self.record.headers else self.record.headers[row]


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
