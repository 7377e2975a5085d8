"""Finds rows of many runs in one go: their groups are read in the order of the files and searched as columns.

A group is read to its place in a buffer that is used again and again, where its times begin at a multiple of eight
bytes. So the times of all groups are one matrix. Cells of one size are copied by their positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.errors import StoreError
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.bodies.row_groups import (
    BODY_BYTES_AT,
    CRC_AT,
    HEAD_BYTES,
    ID_BYTES_AT,
    ID_HEAD_BYTES,
    PER_GROUP_AT,
    PLACE_BYTES,
    ROWS_AT,
    SHORT_TIMES,
    TIME_BYTES,
)
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.timeline.far.far_rows import Column, FoundRows
from dejaq.storage.rocksdb.timeline.far.run_parts import damaged, rows_of
from dejaq.storage.rocksdb.timeline.far.stored_run import OFFSET_BITS, StoredRun, Values
from dejaq.storage.rocksdb.timeline.memory.minute_table import firsts_of

Flags = npt.NDArray[np.bool_]

# So many rows, and bytes, are read at once, which a processor's cache has room for.
ROWS_AT_ONCE, BYTES_AT_ONCE = 256, 2 * 1024 * 1024
# Where the times of a group begin in its place in the buffer.
_TIMES_AT = 8


class WantedRows(NamedTuple):
    """Rows that are looked for: the number of the run among some, the time, and which of the ids."""

    runs: Column
    times: Column
    items: Column
    ids: Sequence[str]
    # The same ids as a matrix of bytes, if all have one length.
    lines: npt.NDArray[np.uint8] | None

    def one_by_one(self, database: RocksDatabase, runs: Sequence[StoredRun], at: Column) -> Iterator[FoundRows]:
        """The rows at some positions, each of which is found by itself."""
        found: list[tuple[int, int, Values]] = []
        for number in at.tolist():
            run, ts, message_id = runs[self.runs[number]], int(self.times[number]), self.ids[self.items[number]]
            row = run.find(database, ts, message_id)
            if row is not None:
                found.append((number, *row))
        if found:
            yield found_rows(found)


class _Groups(NamedTuple):
    """The group of each row that is looked for: where it is, and its part of the run."""

    # The number of the file, and behind it the offset.
    places: Column
    lengths: Column
    crcs: Column
    # The first row, and the number of rows.
    firsts: Column
    counts: Column
    # Sizes of an id and of a body; negative where they differ in the run.
    id_bytes: Column
    body_bytes: Column
    # Whether a row with the time may also be in the group before.
    several: Flags

    def of(self, at: Column) -> _Groups:
        """Those of the rows at some positions."""
        columns: list[Any] = [column[at] for column in self]
        return _Groups(*columns)


def find_rows(database: RocksDatabase, runs: Sequence[StoredRun], wanted: WantedRows) -> Iterator[FoundRows]:
    """The live rows among those that are looked for, some at a time; the runs are frames of the commit log."""
    groups = _groups_of(runs, wanted)
    order = np.argsort(groups.places, kind="stable")
    width = int(groups.lengths.max()) + 2 * _TIMES_AT & -_TIMES_AT
    step = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // width))
    for start in range(0, len(order), step):
        at = order[start : start + step]
        some = _Some(database, runs, wanted, at, groups.of(at))
        yield from some.find(width)


class _Some:
    """Rows whose groups are read at once, in the order of their groups."""

    def __init__(
        self, database: RocksDatabase, runs: Sequence[StoredRun], wanted: WantedRows, at: Column, groups: _Groups
    ) -> None:
        self._database, self._runs, self._wanted = database, runs, wanted
        # The positions of the rows among those that are looked for, and the group of each.
        self._at, self._groups = at, groups

    def find(self, width: int) -> Iterator[FoundRows]:
        """The live rows; each group has so many bytes in the buffer."""
        groups, firsts = self._groups, firsts_of(self._groups.places)
        begins = np.zeros(len(self._at), dtype=np.int64)
        begins[firsts[1:]] = 1
        slots = np.cumsum(begins)
        self._read(firsts, width)
        starts = slots * width + _TIMES_AT
        rows, found = _matches(self._data, width, slots, self._wanted.times[self._at], groups)
        plain = (groups.id_bytes >= 0) & (groups.body_bytes >= 0) & ~groups.several
        single = np.flatnonzero(plain & (found == 1))
        if len(single):
            yield from self._plain(single, starts[single], rows[single])
        # Ids of several sizes, headers, or several rows with one time.
        others = np.flatnonzero(~plain | (found > 1))
        if len(others):
            yield self._decoded(others, starts)

    @property
    def _data(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._database.buffer, dtype=np.uint8)

    def _read(self, firsts: Column, width: int) -> None:
        """Read the groups that begin at these positions, each to its place, and verify them."""
        database, groups = self._database, self._groups.of(firsts)
        if len(database.buffer) < len(firsts) * width:
            database.buffer = bytearray(len(firsts) * width)
        starts = np.arange(len(firsts)) * width + _TIMES_AT - _prefix_of(groups.counts)
        view, ends = memoryview(database.buffer), (starts + groups.lengths).tolist()
        parts = [view[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        assert database.log is not None
        try:
            files, offsets = groups.places >> OFFSET_BITS, groups.places & (1 << OFFSET_BITS) - 1
            read = database.log.read_parts(files.tolist(), offsets.tolist(), parts)
        except StoreError as error:
            database.on_fault(error)
            raise
        checks = list(map(crc32, parts))
        if read == groups.lengths.tolist() and checks == groups.crcs.tolist():
            return
        wrong = (np.array(read) != groups.lengths) | (np.array(checks) != groups.crcs)
        number = int(np.flatnonzero(wrong)[0])
        run = self._runs[self._wanted.runs[self._at[firsts[number]]]]
        raise damaged(database, run.place, rows_of(int(groups.firsts[number]), int(groups.counts[number])))

    def _plain(self, chosen: Column, starts: Column, rows: Column) -> Iterator[FoundRows]:
        """Those rows of groups whose cells all have their places that have the ids."""
        at, groups = self._at[chosen], self._groups.of(chosen)
        width = ID_HEAD_BYTES + groups.id_bytes
        ids = starts + TIME_BYTES * groups.counts
        bodies = ids + width * groups.counts
        sizes = (starts - _prefix_of(groups.counts) + groups.lengths - bodies) // groups.counts
        same = self._same_ids(at, ids + width * rows + ID_HEAD_BYTES, groups.id_bytes)
        numbers, runs = groups.firsts + rows, self._runs
        pairs = zip(self._wanted.runs[at].tolist(), numbers.tolist(), strict=True)
        live = np.array([runs[number].live >> row & 1 for number, row in pairs], dtype=np.bool_)
        bodies += sizes * rows
        for size in set(groups.body_bytes[same & live].tolist()):
            some = np.flatnonzero(same & live & (groups.body_bytes == size))
            packed = _cells_at(self._data, bodies[some], int(sizes[some[0]])).tobytes()
            yield FoundRows(at[some], numbers[some], BodyBlock.of_equal(packed, len(some), size))

    def _same_ids(self, at: Column, places: Column, id_bytes: Column) -> Flags:
        """Whether the ids at some places are those that are looked for."""
        ids, lines, data = self._wanted.ids, self._wanted.lines, self._data
        items = self._wanted.items[at]
        if lines is None:
            view = memoryview(self._database.buffer)
            cells = zip(items.tolist(), places.tolist(), id_bytes.tolist(), strict=True)
            equal = [view[start : start + size] == ids[item].encode() for item, start, size in cells]
            return np.array(equal, dtype=np.bool_)
        size = lines.shape[1]
        fits = id_bytes == size
        found = _cells_at(data, np.where(fits, places, 0), size).view(np.uint8).reshape(len(at), size)
        same: Flags = (found == lines[items]).all(axis=1) & fits
        return same

    def _decoded(self, chosen: Column, starts: Column) -> FoundRows:
        """Rows of groups that are decoded."""
        groups, wanted, data = self._groups, self._wanted, self._data
        begins = (starts - _prefix_of(groups.counts)).tolist()
        ends = (starts - _prefix_of(groups.counts) + groups.lengths).tolist()
        decoded: dict[int, records.Run] = {}
        found: list[tuple[int, int, Values]] = []
        for number in chosen.tolist():
            at, start = int(self._at[number]), begins[number]
            run, ts = self._runs[wanted.runs[at]], int(wanted.times[at])
            if start not in decoded:
                decoded[start] = records.Run.FromString(data[start : ends[number]].tobytes())
            message_id = wanted.ids[wanted.items[at]]
            row = run.find_decoded(int(groups.firsts[number]), decoded[start], ts, message_id)
            if row is None and groups.several[number]:
                row = run.find(self._database, ts, message_id)
            if row is not None:
                found.append((at, *row))
        return found_rows(found)


def _groups_of(runs: Sequence[StoredRun], wanted: WantedRows) -> _Groups:
    """The last group of its run in which each row may be."""
    heads = [run.head for run in runs]
    data = b"".join(heads)
    sizes = np.array(list(map(len, heads)), dtype=np.int64)
    base = (np.cumsum(sizes) - sizes)[wanted.runs]
    rows, per_group = _numbers(data, "<u4", base + ROWS_AT), _numbers(data, "<u2", base + PER_GROUP_AT)
    counts = -(-rows // per_group)
    table = base + HEAD_BYTES
    low, high = np.zeros(len(base), dtype=np.int64), counts
    for _ in range(int(counts.max()).bit_length()):
        middle = low + high >> 1
        behind = (low < high) & (_numbers(data, "<i8", table + TIME_BYTES * middle) <= wanted.times)
        low, high = np.where(behind, middle + 1, low), np.where(behind, high, middle)
    group = np.maximum(low - 1, 0)
    places = table + TIME_BYTES * counts + PLACE_BYTES * group
    ends = _numbers(data, "<u4", places)
    starts = np.where(group > 0, _numbers(data, "<u4", places - PLACE_BYTES), 0)
    return _Groups(
        places=np.array([run.origin for run in runs], dtype=np.int64)[wanted.runs] + starts,
        lengths=ends - starts,
        crcs=_numbers(data, "<u4", places + CRC_AT),
        firsts=group * per_group,
        counts=np.minimum(per_group, rows - group * per_group),
        id_bytes=_numbers(data, "<i2", base + ID_BYTES_AT),
        body_bytes=_numbers(data, "<i4", base + BODY_BYTES_AT),
        several=(group > 0) & (_numbers(data, "<i8", table + TIME_BYTES * group) == wanted.times),
    )


def _numbers(data: bytes, kind: str, places: Column) -> Column:
    """The numbers at some places of bytes."""
    size = np.dtype(kind).itemsize
    found: npt.NDArray[Any] = np.ndarray((len(data) - size + 1,), dtype=kind, buffer=data, strides=(1,))
    return found[places].astype(np.int64, copy=False)


def _matches(
    data: npt.NDArray[np.uint8], width: int, slots: Column, times: Column, groups: _Groups
) -> tuple[Column, Column]:
    """The first row of each group that has a time, and how many have it."""
    most = int(groups.counts.max())
    count = int(slots[-1]) + 1
    matrix = data[: count * width].view(np.int64).reshape(count, width // 8)[:, 1 : 1 + most]
    if count < len(slots):
        matrix = matrix[slots]
    same = (matrix == times[:, None]) & (np.arange(most) < groups.counts[:, None])
    return same.argmax(axis=1), same.sum(axis=1)


def _cells_at(data: npt.NDArray[np.uint8], places: Column, size: int) -> npt.NDArray[Any]:
    """Copies of so many bytes from some places."""
    cells: npt.NDArray[Any] = np.ndarray((len(data) - size + 1,), dtype=f"V{size}", buffer=data, strides=(1,))
    return cells[places]


def _prefix_of(counts: Column) -> Column:
    """The bytes before the times of groups with so many rows."""
    return np.where(counts < SHORT_TIMES, 2, 3)


def found_rows(found: Sequence[tuple[int, int, Values]]) -> FoundRows:
    """Rows that were found one by one, as columns."""
    bodies, priorities, headers = zip(*[values for _, _, values in found], strict=True) if found else ((), (), ())
    return FoundRows(
        np.array([at for at, _, _ in found], dtype=np.int64),
        np.array([row for _, row, _ in found], dtype=np.int64),
        BodyBlock(bodies),
        priorities if any(priorities) else (),
        headers if any(headers) else (),
    )
