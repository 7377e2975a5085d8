"""Exact counts per cell of time, written in the same batch as the change that moves them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Batch, Database

# Above every cell of time: the counts of what is kept in the order of priority, by its time all the same.
READY_CELLS = 1 << 40


class Cells:
    """How many messages stand in each cell by their own ts (a lease does not move a message here).

    A topic may have two of them, whose records are told apart by `base`.
    """

    def __init__(self, topic: int, base: int = 0) -> None:
        self._topic = topic
        self._base = base
        self._counts: dict[int, int] = {}
        # The cells that have messages, in order.
        self._order: list[int] = []
        self._dirty: set[int] = set()
        self.total = 0

    def load(self, database: Database) -> None:
        """Read every cell of the topic."""
        start = keys.numbered(keys.CELL, self._topic, self._base)
        end = keys.numbered(keys.CELL, self._topic, self._base + READY_CELLS)
        for key, value in database.scan(start, end):
            count = int.from_bytes(value, "big")
            self._counts[int.from_bytes(key[5:], "big") - self._base] = count
            self.total += count
        self._order = sorted(self._counts)

    def add(self, time_slice: int, delta: int) -> None:
        """Count `delta` more messages in the cell of a slice."""
        cell = time_slice * keys.SLICE_MS // keys.CELL_MS
        if cell not in self._counts:
            insort(self._order, cell)
        self._counts[cell] = self._counts.get(cell, 0) + delta
        self.total += delta
        self._dirty.add(cell)

    def write(self, batch: Batch) -> None:
        """Put every changed cell into the batch."""
        for cell in self._dirty:
            key = keys.numbered(keys.CELL, self._topic, self._base + cell)
            if self._counts[cell]:
                batch.put(key, self._counts[cell].to_bytes(8, "big"))
            else:
                batch.delete(key)
                del self._counts[cell]
                del self._order[bisect_left(self._order, cell)]
        self._dirty.clear()

    def between(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int, int]]:
        """(start, end, count) of each cell that has messages and touches [start_ms, end_ms), in order."""
        low = bisect_left(self._order, start_ms // keys.CELL_MS)
        high = bisect_right(self._order, (end_ms - 1) // keys.CELL_MS)
        for cell in self._order[low:high]:
            yield cell * keys.CELL_MS, (cell + 1) * keys.CELL_MS, self._counts[cell]
