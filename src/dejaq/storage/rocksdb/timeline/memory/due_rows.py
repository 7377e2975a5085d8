"""The first due rows of a consumer, found without moving anything in the windows.

Single sends that share a run are due at different times, so a lease takes a row or two of each of many runs. To take
the sources out of the heaps and put them back one by one would cost several times what a row needs otherwise. A heap
also is a tree, whose branches are in order: a search from its root visits only the sources that matter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from dejaq import limits
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.memory.near_rows import NearRow
from dejaq.storage.rocksdb.timeline.run import Key, Run
from dejaq.storage.rocksdb.timeline.window import FreeRows, ReadingAllowance, Window

# Many rows in few runs are cheaper to take run by run than to sort by time.
_ROWS_FACTOR, _ROWS_FEW = 4, 1_024
# What was searched of a window is put in order when so many of its sources have no such row any more, and these are
# half of them.
_STALE_MIN = 16

# Which rows of a run over several buckets belong to the consumer.
MaskOf = Callable[[Run], int]


@dataclass(slots=True)
class DueRows:
    """The first due rows of some windows. `divided` is the window of which only the rows of `mask_of` count."""

    windows: Sequence[Window]
    divided: Window | None
    mask_of: MaskOf
    until: int
    # The time of the first row, and the rows, of each run that has one.
    _found: list[tuple[int, Run, int]] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0
    _largest: int = 0

    def find(self, rows_max: int, bytes_max: int) -> bool:
        """Find the first rows; False where rows have priorities, are of an expired lease or too large, or are in few
        runs.
        """
        return self._find(rows_max) and self._bytes + self._largest <= bytes_max

    def take(self, allowance: ReadingAllowance) -> list[LeasePart]:
        """Take the first of the rows that were found, in the exact order of their times."""
        parts: list[LeasePart] = []
        for bound in self._bounds(allowance.rows):
            for first, run, rows in self._found:
                if first <= bound and not allowance.spent:
                    parts += FreeRows(run, rows).take((bound, limits.PRIORITY_MAX), allowance)
        return parts

    def add(self, rows: Iterable[NearRow]) -> None:
        """Add rows of small runs, which were found elsewhere."""
        known: dict[bytes, int] = {}
        for _, run, some in self._found:
            known[run.key] = known.get(run.key, 0) | some
        for ts, _, run, row in rows:
            # A row that waits twice is counted once.
            if not known.get(run.key, 0) >> row & 1:
                self._found.append((ts, run, 1 << row))
                self._rows += 1

    def first(self) -> int | None:
        """The time of the first row that was found."""
        return min((first for first, _, _ in self._found), default=None)

    def _bounds(self, rows_max: int) -> list[int]:
        """Up to which times rows are taken, one after the other: only some of the rows of the last time may fit."""
        if self._rows <= rows_max:
            return [self.until]
        times = sorted([ts for _, run, rows in self._found for ts in masks.pick(run.record.ts, rows)])
        return [times[rows_max - 1] - 1, times[rows_max - 1]]

    def _find(self, rows_max: int) -> bool:
        """Find runs that together have the first rows; False where this is not worth while."""
        heaps = [window.sources for window in self.windows]
        places: list[tuple[Key, int, int]] = [(heap[0][0], number, 0) for number, heap in enumerate(heaps) if heap]
        heapify(places)
        visited, stale = [0] * len(self.windows), [0] * len(self.windows)
        seen: dict[bytes, int] = {}
        # Rows that are not found are not before the next place: so many runs have an earlier row.
        certain, heads, last = 0, list[int](), 0
        while places and places[0][0][0] <= self.until and certain < rows_max:
            (last, _), number, place = heappop(places)
            while heads and heads[0] <= last:
                heappop(heads)
                certain += 1
            heap = heaps[number]
            child = 2 * place + 1
            if child < len(heap):
                heappush(places, (heap[child][0], number, child))
                if child + 1 < len(heap):
                    heappush(places, (heap[child + 1][0], number, child + 1))
            source = heap[place][2]
            visited[number] += 1
            if not isinstance(source, FreeRows):
                return False
            run = source.run
            rows = run.free & source.rows & ~seen.get(run.key, 0) if run.in_window else 0
            if not rows:
                stale[number] += 1
                continue
            seen[run.key] = seen.get(run.key, 0) | rows
            if self.windows[number] is self.divided:
                rows &= self.mask_of(run)
            if rows and not self._add(run, rows, heads):
                return False
            if self._rows > _ROWS_FACTOR * rows_max + _ROWS_FEW:
                return False
        for number, window in enumerate(self.windows):
            if stale[number] > max(_STALE_MIN, visited[number] // 2):
                window.tidy(last)
        return True

    def _add(self, run: Run, rows: int, heads: list[int]) -> bool:
        """Add those rows of a run that are due; False where the run is not a simple one."""
        record = run.record
        if record.priorities or record.apart:
            return False
        times = record.ts
        if times[-1] > self.until:
            rows &= masks.full(bisect_right(times, self.until))
        if rows:
            count, first = rows.bit_count(), times[masks.lowest(rows)]
            self._found.append((first, run, rows))
            self._rows += count
            self._bytes += run.size * count // run.count
            self._largest = max(self._largest, run.size)
            heappush(heads, first)
        return True
