"""Ids and bodies of merged rows as the bytes of their runs, while all ids have one length, and all bodies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.id_column import IdColumn
from dejaq.storage.rocksdb.timeline.far.packed_run import PackedRun

Matrix = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


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

    def add(self, packed: PackedRun, rows: slice | Sequence[int]) -> bool:
        """Add rows of a run, unless the run does not fit: then nothing is added."""
        found = packed.cells
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
