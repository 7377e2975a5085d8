"""Rows of several runs as columns, which become runs in the order of (ts, priority), or of (priority, ts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dejaq.domain.bodies.body_block import BodyBlock, varint
from dejaq.domain.id_column import IdColumn
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.far.packed_run import PackedRun
from dejaq.storage.rocksdb.timeline.levels.cells import CellPair, Cells, cells_of
from dejaq.storage.rocksdb.timeline.run import BLOCK_BITS, TIMES_TAG, Run

Numbers = npt.NDArray[np.int64]
Value = TypeVar("Value")


class Encoded(NamedTuple):
    """A merged run: its bucket, the record without ids, the ids, the bodies unless the record has them, the times."""

    bucket: int
    record: records.Run
    ids: IdColumn
    block: BodyBlock | None
    times: Numbers


class MergedColumns:
    """Free rows of several runs of one producer group, none of which was leased before.

    While all ids have one length, and all bodies, both are copied as the bytes of the runs; otherwise they are objects.
    """

    def __init__(self, *, by_priority: bool = False) -> None:
        self._by_priority = by_priority
        # The key of each run, and the rows of it that are here, ascending.
        self.keys: list[bytes] = []
        self._rows: list[Sequence[int]] = []
        self._ts: list[Numbers] = []
        self._versions: list[Numbers] = []
        # None once a column does not fit.
        self._cells: Cells | None = Cells()
        self._ids: list[str] = []
        self._bodies: list[bytes] = []
        # Of each run that has priorities, the place of its first row and the priorities of its rows.
        self._priorities: list[tuple[int, Numbers]] = []
        # Empty, or one value per row.
        self._headers: list[bytes] = []
        self._apart: list[int] = []
        self._count = 0
        # Once all rows are here: their times and versions, their positions in the order of time, the number of the run
        # of each, and how many rows of each run were taken.
        self._times = self._numbers = self._order = self._sources = np.zeros(0, dtype=np.int64)
        self._taken: list[int] = []
        # Where any run has priorities, those of all rows.
        self._ranks: Numbers | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def are_cells(self) -> bool:
        """Whether rows are copied as bytes, which takes a fifth of the time."""
        return self._cells is not None

    def add(self, run: Run, rows: int, packed: PackedRun | None = None) -> None:
        """Add rows of a run; `packed` is the same run in its stored form."""
        record = run.record
        chosen = _rows_of(rows)
        self.keys.append(run.key)
        self._rows.append(chosen)
        part = slice(chosen.start, chosen.stop) if isinstance(chosen, range) else chosen
        if self._cells is not None and not self._cells.add(self._cells_of(run, packed), part):
            self._ids, self._bodies = self._cells.ids(), self._cells.bodies()
            self._cells = None
        if record.priorities:
            self._priorities.append((self._count, np.array(record.priorities, dtype=np.int64)[part]))
        times = np.array(record.ts, dtype=np.int64) if packed is None else packed.times
        self._ts.append(times[part])
        numbers = np.array(record.versions or (run.number,), dtype=np.int64)
        self._versions.append(numbers[part] if record.versions else np.repeat(numbers, len(chosen)))
        if self._cells is None:
            self._add_objects(run, rows)
        self._count += len(chosen)

    def _cells_of(self, run: Run, packed: PackedRun | None) -> CellPair | None:
        if self._by_priority:
            return cells_of(run)
        return None if packed is None else packed.cells

    def _add_objects(self, run: Run, rows: int) -> None:
        record, bodies = run.record, run.bodies
        for start, end in masks.ranges(rows):
            before, count = len(self._ids), end - start
            self._ids += run.id_span(start, end).expand()
            self._bodies += bodies[start:end]
            _extend(self._headers, record.headers[start:end], b"", before, count)
            _extend(self._apart, record.apart[start:end], 0, before, count)

    def sort(self) -> None:
        """Find the order of all rows. May run in a thread."""
        if not self._count:
            return
        self._times, self._numbers = np.concatenate(self._ts), np.concatenate(self._versions)
        self._ts, self._versions = [], []
        if self._priorities:
            priorities = np.zeros(self._count, dtype=np.int64)
            for place, column in self._priorities:
                priorities[place : place + len(column)] = column
            self._ranks = priorities
            self._order = np.lexsort((self._times, priorities) if self._by_priority else (priorities, self._times))
        else:
            self._order = np.argsort(self._times, kind="stable")
        self._sources = np.repeat(np.arange(len(self._rows)), [len(rows) for rows in self._rows])
        self._taken = [0] * len(self._rows)
        if self._cells is not None:
            self._cells.join()

    def take(self, start: int, end: int) -> list[tuple[int, int]]:
        """(number of the run, its rows) of rows start to end-1 in the order of time; each part is taken once, in order.

        Rows of one run keep their order, so what is taken of it are its next rows.
        """
        counts = np.bincount(self._sources[self._order[start:end]], minlength=len(self._rows))
        taken = []
        for source in np.flatnonzero(counts).tolist():
            first, count = self._taken[source], int(counts[source])
            self._taken[source] += count
            taken.append((source, _mask_of(self._rows[source][first : first + count])))
        return taken

    def time_at(self, place: int) -> int:
        """The time of the row with this place in the order of time."""
        return int(self._times[self._order[place]])

    def pieces(self, rows: Numbers, count: int) -> Iterator[Numbers]:
        """The rows at these positions, at most so many at once; in the order of priority, those of one block."""
        cuts: list[int] = []
        if self._by_priority and self._ranks is not None:
            cuts = (np.flatnonzero(np.diff(self._ranks[rows] >> BLOCK_BITS)) + 1).tolist()
        for first, end in pairwise([0, *cuts, len(rows)]):
            yield from (rows[at : min(at + count, end)] for at in range(first, end, count))

    def positions(self, start: int, end: int, without: Mapping[int, int]) -> Numbers:
        """Where rows start to end-1 in the order of time are, without some rows of some runs."""
        places = self._order[start:end]
        if not without:
            return places
        first = np.searchsorted(self._sources, np.arange(len(self._rows))).tolist()
        sources: list[int] = self._sources[places].tolist()
        listed: list[int] = places.tolist()
        left = [
            place
            for place, source in zip(listed, sources, strict=True)
            if not without.get(source, 0) >> self._rows[source][place - first[source]] & 1
        ]
        return np.array(left, dtype=np.int64)

    def encoded(
        self, owner: str, bucket: int, rows: Numbers, buckets_of: Callable[[Sequence[str]], list[int]] | None
    ) -> Iterator[Encoded]:
        """One run of the rows at these positions in `bucket`; with `buckets_of`, one run for each bucket."""
        if buckets_of is None:
            yield self._record(owner, bucket, rows)
            return
        divided: dict[int, list[int]] = {}
        for row, one in zip(rows.tolist(), buckets_of(self.ids_of(rows)), strict=True):
            divided.setdefault(one, []).append(row)
        for one, chosen in divided.items():
            yield self._record(owner, one, np.array(chosen, dtype=np.int64))

    def ids_of(self, rows: Numbers) -> IdColumn:
        """The ids of the rows at these positions."""
        return IdColumn(_pick(self._ids, rows.tolist())) if self._cells is None else self._cells.ids_of(rows)

    def _record(self, owner: str, bucket: int, rows: Numbers) -> Encoded:
        record = records.Run(owner=owner, versions=self._numbers[rows].tolist())
        times = self._times[rows]
        packed = times.astype("<i8", copy=False).tobytes()
        record.MergeFromString(TIMES_TAG + varint(len(packed)) + packed)
        if self._ranks is not None and (priorities := self._ranks[rows]).any():
            record.priorities.extend(priorities.tolist())
        if self._cells is not None:
            return Encoded(bucket, record, self._cells.ids_of(rows), self._cells.bodies_of(rows), times)
        listed: list[int] = rows.tolist()
        if self._headers and any(headers := _pick(self._headers, listed)):
            record.headers.extend(headers)
        ids, bodies = self.ids_of(rows), _pick(self._bodies, listed)
        if self._apart and any(apart := _pick(self._apart, listed)):
            record.apart.extend(apart)
            record.bodies.extend(bodies)
            return Encoded(bucket, record, ids, None, times)
        return Encoded(bucket, record, ids, BodyBlock(bodies), times)


def _rows_of(mask: int) -> Sequence[int]:
    first = masks.lowest(mask)
    rows = range(first, mask.bit_length())
    return rows if mask.bit_count() == len(rows) else list(masks.rows(mask))


def _mask_of(rows: Sequence[int]) -> int:
    if isinstance(rows, range):
        return masks.span(rows.start, rows.stop)
    return masks.of_rows(rows)


def _extend(column: list[Value], values: Sequence[Value], default: Value, before: int, count: int) -> None:
    """Add values to a column that begins with the first row that needs it."""
    if not values and not column:
        return
    if not column:
        column += [default] * before
    column += values or [default] * count


def _pick(column: list[Value], rows: Sequence[int]) -> list[Value]:
    return list(itemgetter(*rows)(column)) if len(rows) > 1 else [column[row] for row in rows]
