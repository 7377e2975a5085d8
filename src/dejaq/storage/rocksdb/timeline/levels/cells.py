"""Ids and bodies of merged rows as the bytes of their runs, while all ids have one length, and all bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dejaq.domain.bodies.body_block import BodyBlock, varint
from dejaq.domain.id_column import ID_TAG, IdColumn
from dejaq.storage.rocksdb.timeline.run import Run

Matrix = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

# The two hexadecimal digits of each byte, as one number; and how many bytes the counter of a generated id has.
_DIGITS = np.frombuffer("".join(f"{number:02x}" for number in range(256)).encode(), dtype=np.uint16)
_COUNTER_BYTES = 4
_NO_CELLS = object()


class CellColumn(Protocol):
    """Values of one length with their prefixes: the rows of a matrix, and the prefix of each."""

    @property
    def head(self) -> bytes:
        """The prefix of the first value."""

    @property
    def matrix(self) -> Matrix:
        """The values with their prefixes, a row each."""


CellPair = tuple[CellColumn, CellColumn]


@dataclass(frozen=True, slots=True)
class RunColumns:
    """The columns of a run in memory: ids and bodies as cells, and the priority and time of each row."""

    cells: CellPair
    priorities: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]


def columns_of(run: Run) -> RunColumns | None:
    """The columns of a run, kept with the run; None if ids or bodies differ in length, or it has more than these."""
    if run.cells is None:
        cells = cells_of(run)
        if cells is None:
            run.cells = _NO_CELLS
            return None
        priorities, times = (np.array(column, dtype=np.int64) for column in (run.record.priorities, run.record.ts))
        run.cells = RunColumns(cells, priorities if len(priorities) else np.zeros_like(times), times)
    return run.cells if isinstance(run.cells, RunColumns) else None


@dataclass(frozen=True, slots=True)
class _RunCells:
    head: bytes
    matrix: Matrix


def cells_of(run: Run) -> CellPair | None:
    """The ids and the bodies of a run in memory, if each has one length, and no row has headers or a body apart."""
    record = run.record
    if record.headers or record.apart or not run.count or run.held < run.count:
        return None
    block = run.block or BodyBlock(list(run.bodies))
    ids = _counted_ids(run) if run.generated else _listed_ids(run)
    if block.size is None or ids is None:
        return None
    bodies = np.frombuffer(block.data, dtype=np.uint8).reshape(run.count, -1)
    return ids, _RunCells(block.data[: bodies.shape[1] - block.size], bodies)


def _counted_ids(run: Run) -> _RunCells:
    span = run.id_span(0, run.count)
    prefix = span.prefix.encode()
    head = ID_TAG + varint(len(prefix) + 2 * _COUNTER_BYTES)
    counters = np.arange(span.first, span.first + run.count, dtype=">u4")
    digits = _DIGITS[counters.view(np.uint8).reshape(run.count, _COUNTER_BYTES)]
    start = np.frombuffer(head + prefix, dtype=np.uint8)
    return _RunCells(head, np.hstack((np.broadcast_to(start, (run.count, len(start))), digits.view(np.uint8))))


def _listed_ids(run: Run) -> _RunCells | None:
    ids = run.ids
    if ids.length is None:
        return None
    matrix = np.frombuffer(ids.wire, dtype=np.uint8).reshape(run.count, -1)
    return _RunCells(ids.wire[: matrix.shape[1] - ids.length], matrix)


class _CellColumn:
    """Values of one length, each behind the same prefix: the rows of a matrix."""

    def __init__(self) -> None:
        self.head: bytes | None = None
        self._parts: list[Matrix] = []
        self.rows: Matrix = np.zeros((0, 0), dtype=np.uint8)

    def add(self, head: bytes, rows: Matrix) -> None:
        self.head = head
        self._parts.append(rows)

    def join(self) -> None:
        """Make one matrix of all parts."""
        if self._parts:
            self.rows, self._parts = np.concatenate(self._parts), []

    def values(self) -> list[bytes]:
        """The values as objects."""
        self.join()
        behind = len(self.head or b"")
        return [row[behind:] for row in map(bytes, self.rows)]


class Cells:
    """Both columns of the rows that were added."""

    def __init__(self) -> None:
        self._ids, self._bodies = _CellColumn(), _CellColumn()

    def add(self, found: CellPair | None, rows: slice | Sequence[int]) -> bool:
        """Add rows of a run, given by its ids and bodies, unless it does not fit: then nothing is added."""
        if found is None:
            return False
        ids, bodies = found
        if self._ids.head not in (None, ids.head) or self._bodies.head not in (None, bodies.head):
            return False
        self._ids.add(ids.head, ids.matrix[rows])
        self._bodies.add(bodies.head, bodies.matrix[rows])
        return True

    def join(self) -> None:
        """Say that all rows are here. May run in a thread."""
        self._ids.join()
        self._bodies.join()

    def ids(self) -> list[str]:
        """All ids as objects."""
        return [one.decode() for one in self._ids.values()]

    def bodies(self) -> list[bytes]:
        """All bodies as objects."""
        return self._bodies.values()

    def ids_of(self, rows: Positions) -> IdColumn:
        """The ids of the rows at these positions."""
        return IdColumn.of_cells(self._ids.rows.take(rows, axis=0).tobytes(), len(rows))

    def bodies_of(self, rows: Positions) -> BodyBlock:
        """The bodies of the rows at these positions."""
        cells = self._bodies.rows.take(rows, axis=0)
        return BodyBlock.of_equal(cells.tobytes(), len(rows), cells.shape[1] - len(self._bodies.head or b""))
