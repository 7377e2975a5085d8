"""What stays in memory of a leased run when most of its rows are settled: the columns of the others.

A consumer that works on one message for an hour would otherwise keep a thousand others in memory, which were leased
with it and deleted long ago. The row numbers stay as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast, overload

from dejaq.domain.id_column import IdColumn
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.run import Run

Value = TypeVar("Value")

# When only one row in so many is left, the others are forgotten. A run with fewer rows stays as it is.
_ONE_IN = 8
_ROWS_MIN = 16


class RemainingColumn(Sequence[Value]):
    """The values of some rows of a column; the other rows have `gap`, or that of the remaining row before them.

    A column of times or priorities remains sorted in this way.
    """

    __slots__ = ("_count", "_gap", "_rows", "_values")

    def __init__(self, rows: Sequence[int], column: Sequence[Value], gap: Value | None = None) -> None:
        self._rows, self._count, self._gap = rows, len(column), gap
        self._values = [column[row] for row in rows]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> Value: ...
    @overload
    def __getitem__(self, row: slice) -> list[Value]: ...
    def __getitem__(self, row: int | slice) -> Value | list[Value]:
        if isinstance(row, slice):
            return [self._at(one) for one in range(*row.indices(self._count))]
        if not -self._count <= row < self._count:
            raise IndexError(row)
        return self._at(row % self._count)

    def _at(self, row: int) -> Value:
        place = max(bisect_right(self._rows, row) - 1, 0)
        if self._gap is not None and self._rows[place] != row:
            return self._gap
        return self._values[place]


@dataclass(slots=True)
class RemainingRecord:
    """The columns of a record of a run, as far as rows remain."""

    owner: str
    session: bytes
    first: int
    ts: Sequence[int]
    bodies: Sequence[bytes]
    ids: Sequence[str]
    priorities: Sequence[int]
    attempts: Sequence[int]
    headers: Sequence[bytes]
    apart: Sequence[int]
    firsts: Sequence[int]
    lasts: Sequence[int]
    versions: Sequence[int]
    counted: bool


def is_mostly_settled(run: Run) -> bool:
    """Whether most rows that are held in memory left, and those that remain are leased."""
    return not run.free and run.held >= _ROWS_MIN and run.live.bit_count() * _ONE_IN <= run.held


def forget_settled(run: Run) -> None:
    """Forget the columns of the rows that left; nothing else about the run changes."""
    record, rows = run.record, list(masks.rows(run.live))

    def column(values: Sequence[Value], gap: Value | None = None) -> Sequence[Value]:
        return RemainingColumn(rows, values, gap) if values else ()

    ids = () if run.generated else column(run.ids, "")
    remaining = RemainingRecord(
        record.owner,
        record.session,
        record.first,
        column(record.ts),
        column(run.bodies, b""),
        ids,
        column(record.priorities),
        column(record.attempts),
        column(record.headers, b""),
        column(record.apart, 0),
        column(record.firsts, 0),
        column(record.lasts, 0),
        column(record.versions),
        record.counted,
    )
    run.replace_columns(cast(records.Run, remaining), None if run.generated else IdColumn(ids), held=len(rows))
