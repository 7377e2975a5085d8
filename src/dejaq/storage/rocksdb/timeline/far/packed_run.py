"""A stored run as bytes, of which single rows are read: to decode all columns of a run costs more than all else.

The times of a run have one width, and so have, in most runs, its ids and its bodies; such a column is read by position.
Any other column is decoded as a whole when it is first needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine.frames import POINTER
from dejaq.storage.rocksdb.timeline import masks

# So many layouts are kept, of about 300 bytes each.
LAYOUTS_MAX = 16_384
# The tags of the columns of a run.
_OWNER, _TS, _IDS, _BODIES, _PRIORITIES, _VERSIONS, _FIRST = 0x0A, 0x2A, 0x22, 0x32, 0x3A, 0x6A, 0x18


class EqualCells:
    """A column of texts or bytes, each behind a prefix with its length. If all have one length, it ends at `end`."""

    __slots__ = ("_count", "_data", "_first", "_head", "_size", "_stride", "end")

    def __init__(self, data: bytes, start: int, head: int, size: int, count: int) -> None:
        self._data, self._head, self._size, self._count = data, head, size, count
        self._first, self._stride = start + head, head + size
        self.end = start + count * self._stride

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it begins, and the sizes of prefix and value."""
        return self._first - self._head, self._head, self._size

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

    def cell(self, row: int) -> bytes:
        """The bytes of one row."""
        at = self._first + row * self._stride
        return self._data[at : at + self._size]


class Layout(NamedTuple):
    """Where the columns of some bytes are; what never changes needs to be examined once."""

    owner: str
    # Where the times begin, and how many they are.
    times: int
    rows: int
    plain: bool
    # Start, size of the prefix and size of the value of the cells of ids and of bodies; None where they differ.
    ids: tuple[int, int, int]
    bodies: tuple[int, int, int] | None


class Layouts:
    """The layouts of frames by the pointers to them: a frame never changes, and each read verifies its checksum."""

    def __init__(self) -> None:
        self._by_pointer: dict[bytes, Layout | None] = {}

    def of(self, pointer: bytes) -> Layout | None:
        """The layout of a frame that was examined before."""
        return self._by_pointer.get(pointer)

    def keep(self, pointer: bytes, layout: Layout | None) -> None:
        """Remember a layout; most of those that are kept were used lately."""
        if layout is None or not pointer.startswith(POINTER):
            return
        if len(self._by_pointer) >= LAYOUTS_MAX:
            self._by_pointer.clear()
        self._by_pointer[pointer] = layout


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
        "layout",
        "live",
        "owner",
        "plain",
        "rare",
    )

    def __init__(self, key: bytes, data: bytes, gone: int, layout: Layout | None = None) -> None:
        self.key, self._data = key, data
        self.layout = layout
        self.owner = ""
        self._ts: Sequence[int] = ()
        self._ids: EqualCells | None = None
        self._bodies: EqualCells | None = None
        self._record: records.Run | None = None
        # Whether every row has priority 0 and no headers.
        self.plain = True
        # Whether its rows were leased before, have large bodies, or ids that are counters.
        self.rare = False
        if layout is not None:
            self._use(layout)
        elif not self._divide():
            self._decode()
        self.count = len(self._ts)
        self.live = masks.full(self.count) & ~gone

    def _use(self, layout: Layout) -> None:
        """Take the columns where they are known to be."""
        data, count = self._data, layout.rows
        self.owner, self.plain = layout.owner, layout.plain
        self._ts = memoryview(data)[layout.times : layout.times + 8 * count].cast("q")
        self._ids = EqualCells(data, *layout.ids, count)
        self._bodies = None if layout.bodies is None else EqualCells(data, *layout.bodies, count)

    def _divide(self) -> bool:
        """Find the columns; whether those that are not cells of one length may be decoded later."""
        data, at, end = self._data, 0, len(self._data)
        times = 0
        while at < end:
            tag = data[at]
            length, start = _varint_at(data, at + 1)
            if tag == _OWNER:
                self.owner = data[start : start + length].decode()
            elif tag == _TS:
                self._ts = memoryview(data)[start : start + length].cast("q")
                times = start
            elif tag == _PRIORITIES:
                self.plain = False
            elif tag != _VERSIONS:
                if not self._divide_cells(at):
                    return False
                if self._ids is not None:
                    bodies = None if self._bodies is None else self._bodies.place
                    self.layout = Layout(self.owner, times, len(self._ts), self.plain, self._ids.place, bodies)
                return True
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

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """The time of each row."""
        return np.array(self._ts, dtype=np.int64)

    @property
    def cells(self) -> tuple[EqualCells, EqualCells] | None:
        """The ids and the bodies, if each has one length, and the rows have no priority and no headers."""
        if self._ids is None or self._bodies is None or not self.plain:
            return None
        return self._ids, self._bodies

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
