"""Rows of several runs as columns, which become runs in the order of (ts, priority)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.id_column import IdColumn
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.run import Run

Value = TypeVar("Value")
# The bucket, the record without ids, the ids, and the bodies where they are not in the record.
Encoded = tuple[int, records.Run, IdColumn, BodyBlock | None]


class MergedColumns:
    """Free rows of several runs of one producer group, none of which was leased before."""

    def __init__(self) -> None:
        # The key of each run, and the rows of it that are here, ascending.
        self.keys: list[bytes] = []
        self._rows: list[Sequence[int]] = []
        self._ids: list[str] = []
        self._ts: list[int] = []
        self._bodies: list[bytes] = []
        self._versions: list[int] = []
        # Empty, or one value per row.
        self._priorities: list[int] = []
        self._headers: list[bytes] = []
        self._apart: list[int] = []
        # The positions of the rows in the order of time, and how many rows of each run were taken.
        self._order: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._sources: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._taken: list[int] = []

    def __len__(self) -> int:
        return len(self._ts)

    def add(self, run: Run, rows: int) -> None:
        """Add rows of a run."""
        record, bodies = run.record, run.bodies
        self.keys.append(run.key)
        self._rows.append(_rows_of(rows))
        for start, end in masks.ranges(rows):
            before, count = len(self._ts), end - start
            self._ids += run.id_span(start, end).expand()
            self._ts += record.ts[start:end]
            self._bodies += bodies[start:end]
            self._versions += record.versions[start:end] or [run.number] * count
            _extend(self._priorities, record.priorities[start:end], 0, before, count)
            _extend(self._headers, record.headers[start:end], b"", before, count)
            _extend(self._apart, record.apart[start:end], 0, before, count)

    def sort(self) -> None:
        """Find the order of all rows. May run in a thread."""
        ts = np.array(self._ts, dtype=np.int64)
        if self._priorities:
            self._order = np.lexsort((np.array(self._priorities, dtype=np.int64), ts))
        else:
            self._order = np.argsort(ts, kind="stable")
        self._sources = np.repeat(np.arange(len(self._rows)), [len(rows) for rows in self._rows])
        self._taken = [0] * len(self._rows)

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
        return self._ts[int(self._order[place])]

    def positions(self, start: int, end: int, without: Mapping[int, int]) -> list[int]:
        """Where rows start to end-1 in the order of time are, without some rows of some runs."""
        places: list[int] = self._order[start:end].tolist()
        if not without:
            return places
        first = np.searchsorted(self._sources, np.arange(len(self._rows))).tolist()
        sources: list[int] = self._sources[self._order[start:end]].tolist()
        return [
            place
            for place, source in zip(places, sources, strict=True)
            if not without.get(source, 0) >> self._rows[source][place - first[source]] & 1
        ]

    def encoded(
        self, owner: str, bucket: int, rows: Sequence[int], buckets_of: Callable[[Sequence[str]], list[int]] | None
    ) -> Iterator[Encoded]:
        """One run of the rows at these positions in `bucket`; with `buckets_of`, one run for each bucket."""
        if buckets_of is None:
            yield self._record(owner, bucket, rows)
            return
        divided: dict[int, list[int]] = {}
        for row, one in zip(rows, buckets_of(_pick(self._ids, rows)), strict=True):
            divided.setdefault(one, []).append(row)
        for one, chosen in divided.items():
            yield self._record(owner, one, chosen)

    def _record(self, owner: str, bucket: int, rows: Sequence[int]) -> Encoded:
        record = records.Run(owner=owner, ts=_pick(self._ts, rows), versions=_pick(self._versions, rows))
        if self._priorities and any(priorities := _pick(self._priorities, rows)):
            record.priorities.extend(priorities)
        if self._headers and any(headers := _pick(self._headers, rows)):
            record.headers.extend(headers)
        ids, bodies = IdColumn(_pick(self._ids, rows)), _pick(self._bodies, rows)
        if self._apart and any(apart := _pick(self._apart, rows)):
            record.apart.extend(apart)
            record.bodies.extend(bodies)
            return bucket, record, ids, None
        return bucket, record, ids, BodyBlock(bodies)


def _rows_of(mask: int) -> Sequence[int]:
    first = masks.lowest(mask)
    rows = range(first, mask.bit_length())
    return rows if mask.bit_count() == len(rows) else list(masks.rows(mask))


def _mask_of(rows: Sequence[int]) -> int:
    if isinstance(rows, range):
        return masks.span(rows.start, rows.stop)
    return sum(1 << row for row in rows)


def _extend(column: list[Value], values: Sequence[Value], default: Value, before: int, count: int) -> None:
    """Add values to a column that begins with the first row that needs it."""
    if not values and not column:
        return
    if not column:
        column += [default] * before
    column += values or [default] * count


def _pick(column: list[Value], rows: Sequence[int]) -> list[Value]:
    return list(itemgetter(*rows)(column)) if len(rows) > 1 else [column[row] for row in rows]
