"""The free rows of small runs in memory, one by one in the order of their times.

Messages that are sent one by one lie in runs of a few rows, each of which is due at another time. A lease would visit
such a run again for every row of it, and every consumer would visit the rows of the others. So the rows of a small run
wait in the bucket of each, and a lease takes what comes first there. A row may wait twice, after it was recalled: what
decides is whether its run has it as free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.run import Run

# (ts, number, run, row): the number is that of its arrival.
NearRow = tuple[int, int, Run, int]


class NearRows:
    """The rows of one bucket."""

    __slots__ = ("_order", "heap")

    def __init__(self) -> None:
        self.heap: list[NearRow] = []
        self._order = count()

    def add(self, ts: int, run: Run, row: int) -> None:
        """Add a row of a run, which is due at `ts`."""
        heappush(self.heap, (ts, next(self._order), run, row))

    def first(self) -> int | None:
        """The time of the first row."""
        heap = self.heap
        while heap:
            ts, _, run, row = heap[0]
            if run.in_window and run.free >> row & 1:
                return ts
            heappop(heap)
        return None

    def pop(self) -> tuple[Run, int]:
        """Remove the first row, which `first` has found; returns its run and its mask."""
        _, _, run, row = heappop(self.heap)
        return run, 1 << row

    def forget_dropped(self) -> None:
        """Remove the rows of runs that are no longer in memory."""
        self.heap = [entry for entry in self.heap if entry[2].in_window]
        heapify(self.heap)


def offer_rows(
    run: Run,
    rows: int,
    buckets_of: Callable[[Run, Sequence[str]], Sequence[int]],
    near_of: Callable[[int], NearRows],
) -> None:
    """Add rows of a run, each to those of its bucket."""
    chosen, ts = masks.rows(rows), run.record.ts
    if not run.spread:
        near = near_of(run.bucket)
        for row in chosen:
            near.add(ts[row], run, row)
        return
    ids = run.ids
    for row, bucket in zip(chosen, buckets_of(run, [ids[row] for row in chosen]), strict=True):
        near_of(bucket).add(ts[row], run, row)


class FirstRows:
    """The first rows of some buckets up to a time, at most so many: they are taken, and no longer free."""

    def __init__(self, buckets: Sequence[NearRows], until: int, rows_max: int) -> None:
        self.rows: list[NearRow] = []
        self._heaps: list[list[NearRow]] = []
        # At most; roughly where the rows of a run differ.
        self.bytes = largest = 0
        heaps = [bucket.heap for bucket in buckets if bucket.heap and bucket.heap[0][0] <= until]
        places = [(heap[0][0], number) for number, heap in enumerate(heaps)]
        heapify(places)
        while places and len(self.rows) < rows_max:
            number = places[0][1]
            heap = heaps[number]
            entry = heappop(heap)
            run, bit = entry[2], 1 << entry[3]
            if run.free & bit and run.in_window:
                run.free ^= bit
                self.rows.append(entry)
                self._heaps.append(heap)
                self.bytes += run.size // run.count
                largest = max(largest, run.size)
            if heap and heap[0][0] <= until:
                heapreplace(places, (heap[0][0], number))
            else:
                heappop(places)
        self.bytes += largest

    def parts(self) -> list[LeasePart]:
        """The rows as parts of a lease, one for each run."""
        rows: dict[bytes, int] = {}
        runs: dict[bytes, Run] = {}
        for _, _, run, row in self.rows:
            key = run.key
            runs[key] = run
            rows[key] = rows.get(key, 0) | 1 << row
        return [LeasePart.of_mask(run, rows[key]) for key, run in runs.items()]

    def free(self) -> None:
        """Make all of them free again; they do not wait yet."""
        for _, _, run, row in self.rows:
            run.free |= 1 << row

    def put_back(self) -> None:
        """Let those wait again that are free."""
        for entry, heap in zip(self.rows, self._heaps, strict=True):
            if entry[2].free >> entry[3] & 1:
                heappush(heap, entry)
