"""How a batch of a priority topic is divided into runs.

A run has one priority; or, if its rows are due at once, the rows of an aligned block of priorities. A block is the
larger, the fewer rows the batch has in it; so batches that are alike have runs in the same blocks, whose rows a merge
puts in order (`levels.thin_runs`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from dejaq.domain.batch import CreateBatch, RowRange
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.run import BLOCK_BITS

# A run of several priorities has at most so many rows.
BLOCK_ROWS = 128
# (bucket, slice) of a run.
RunPlace = tuple[int, int]


def cuts(
    incoming: CreateBatch, buckets: Sequence[int], stretches: list[RowRange], now: int, *, spread: bool
) -> Iterator[tuple[RunPlace, Sequence[int]]]:
    """(bucket, slice) and the rows of each run: consecutive counters for generated ids, listed ids in their order.

    With `spread`, runs of listed ids that are due lie over several buckets.
    """
    ts = incoming.ts
    priorities = incoming.priorities or [0] * len(ts)
    if incoming.ids is None:
        for start, end in stretches:
            # The positions at which the counters continue.
            for time_slice, first, last in _cut(ts[start:end], priorities[start:end], now):
                yield (incoming.bucket, time_slice), range(start + first, start + last)
        return
    by_bucket: dict[int, list[int]] = {}
    for start, end in stretches:
        for row in range(start, end):
            by_bucket.setdefault(keys.SPREAD if spread and ts[row] <= now else buckets[row], []).append(row)
    for bucket, chosen in by_bucket.items():
        chosen.sort(key=lambda row: (ts[row] > now, priorities[row], ts[row]))
        times, column = [ts[row] for row in chosen], [priorities[row] for row in chosen]
        for time_slice, first, last in _cut(times, column, now):
            yield (bucket, time_slice), chosen[first:last]


def slice_for(ts: int, priority: int, now: int) -> int:
    """The slice of a row that is written now."""
    return keys.ready_slice(priority) if ts <= now else ts // keys.SLICE_MS


def _cut(ts: Sequence[int], priorities: Sequence[int], now: int) -> Iterator[tuple[int, int, int]]:
    """(slice, first row, row behind the last one) of each run of consecutive rows."""
    start = 0
    while start < len(ts):
        end = _in_order_until(ts, priorities, start) if ts[start] <= now else start
        if end - start > 1:
            for first, last in _blocks(priorities, start, end):
                yield keys.ready_slice(priorities[first]), first, last
        else:
            end = _alike_until(ts, priorities, start, now)
            yield slice_for(ts[start], priorities[start], now), start, end
        start = end


def _in_order_until(ts: Sequence[int], priorities: Sequence[int], start: int) -> int:
    """The end of the rows from `start` on that have one time and whose priorities do not fall."""
    at, last = ts[start], priorities[start]
    for row in range(start + 1, len(ts)):
        priority = priorities[row]
        if ts[row] != at or priority < last:
            # Rows of the last priority may have later times, which belong to it.
            return bisect_left(priorities, last, start, row) if ts[row] != at and priority == last else row
        last = priority
    return len(ts)


def _alike_until(ts: Sequence[int], priorities: Sequence[int], start: int, now: int) -> int:
    """The end of the rows from `start` on that have the slice and the priority of the first."""
    place, priority = slice_for(ts[start], priorities[start], now), priorities[start]
    row = start + 1
    while row < len(ts) and priorities[row] == priority and slice_for(ts[row], priority, now) == place:
        row += 1
    return row


def _blocks(priorities: Sequence[int], start: int, end: int) -> Iterator[RowRange]:
    """Rows start to end-1, whose priorities do not fall, as the rows of aligned blocks."""
    while start < end:
        behind = (priorities[start] >> BLOCK_BITS) + 1 << BLOCK_BITS
        cut = bisect_left(priorities, behind, start, end)
        yield from _halves(priorities, start, cut, BLOCK_BITS)
        start = cut


def _halves(priorities: Sequence[int], start: int, end: int, bits: int) -> Iterator[RowRange]:
    """The rows of a block, divided into halves until few rows or one priority are left."""
    if end - start <= BLOCK_ROWS or priorities[start] == priorities[end - 1]:
        yield start, end
        return
    middle = (priorities[start] >> bits << bits) + (1 << bits - 1)
    cut = bisect_left(priorities, middle, start, end)
    if start < cut:
        yield from _halves(priorities, start, cut, bits - 1)
    if cut < end:
        yield from _halves(priorities, cut, end, bits - 1)
