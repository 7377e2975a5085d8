"""Merging: rows of many runs that are near each other in priority become runs of their own, in their order.

Every batch over thousands of priorities has its own few rows of each, so that a lease takes a row here and a row there,
and each of them costs as much as a run. A lease that meets this moves the rows that come next in one bucket into a few
runs, in its own atomic write: once for each row, however many leases follow. Nothing else about a row changes, its
version included; what is leased stays where it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.lease import Part
from dejaq.storage.rocksdb.prioritising import MIXED_SPAN, PriorityImage
from dejaq.storage.rocksdb.run import Run, priority_of, rank

T = TypeVar("T")

# A bucket is looked at when a lease took fewer rows of a run than `FEW_ROWS`, from so many runs.
PARTS_MIN = 8
FEW_ROWS = 4
# So many runs are worth a merge, of at most so many rows and bytes at once: a few milliseconds.
RUNS_MIN = 16
ROWS_MAX = 2_048
BYTES_MAX = 1024 * 1024
LOAD_STEPS = 4
# A run with so many free rows is not thin, and a merged one has twice as many.
THIN_ROWS = 256
MERGED_ROWS = 512


def merge_thin(image: PriorityImage, parts: Sequence[Part], batch: Batch) -> None:
    """Merge the runs of the bucket from which a lease took its rows one by one, if there is one."""
    runs = Counter(part.run.bucket for part in parts if part.run.slice >= keys.READY_SLICE)
    bucket, count = next(iter(runs.most_common(1)), (0, 0))
    if count < PARTS_MIN or image.short_of_memory:
        return
    if sum(part.count for part in parts if part.run.bucket == bucket) < FEW_ROWS * count:
        merge(image, bucket, batch)


def merge(image: PriorityImage, bucket: int, batch: Batch) -> None:
    """Bring the next rows of a bucket's thin runs together, where there are enough such runs."""
    ready = image.ready(bucket)
    owner, runs = _thin_runs(ready.runs())
    steps = LOAD_STEPS
    while len(runs) >= RUNS_MIN and steps and _rows_before(runs, ready.unread_priority) < ROWS_MAX:
        # Rows that others come between later would not be together.
        steps = steps - 1 if image.read_on(bucket) else 0
        owner, runs = _thin_runs(ready.runs())
    if len(runs) < RUNS_MIN:
        return
    columns = _Columns()
    for run, rows in _next_rows(runs, ready.unread_priority):
        columns.add(run, rows)
        image.remove_rows(batch, run, rows, keep_bodies=True)
    for record in columns.in_order(image.owner_name(owner)):
        time_slice = keys.ready_slice(record.priorities[0] if record.priorities else 0)
        image.add_run(batch, bucket, time_slice, owner, record)
    ready.prune()


def _thin_runs(runs: Iterable[Run]) -> tuple[int, list[Run]]:
    """The owner that has most thin runs, and those."""
    owners: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        if _is_thin(run):
            owners[run.owner].append(run)
    return max(owners.items(), key=lambda item: len(item[1]), default=(0, []))


def _rows_before(runs: Iterable[Run], priority: int) -> int:
    """How many free rows the runs have that end before a priority."""
    return sum(run.free.bit_count() for run in runs if priority_of(run.ranks()[-1]) < priority)


def _is_thin(run: Run) -> bool:
    """Whether it has few free rows, none of which has been leased or has its body apart."""
    record = run.record
    return run.free.bit_count() < THIN_ROWS and not (record.attempts or record.firsts or record.lasts or record.apart)


def _next_rows(runs: list[Run], end: int) -> Iterator[tuple[Run, int]]:
    """The free rows of the runs before the priority `end`, or before one at which they are not too many."""
    runs.sort(key=_first_priority)
    chosen: list[Run] = []
    size = count = 0
    for run in runs:
        size += run.size
        if chosen and (size > BYTES_MAX or count >= 2 * ROWS_MAX):
            end = min(end, _first_priority(run))
            break
        count += run.free.bit_count()
        chosen.append(run)
    first = _first_priority(chosen[0])
    free = [list(masks.rows(run.free)) for run in chosen]
    priorities = [
        [priority_of(ranks[row]) for row in rows]
        for ranks, rows in zip((run.ranks() for run in chosen), free, strict=True)
    ]
    everything = sorted(priority for column in priorities for priority in column)
    if len(everything) > ROWS_MAX:
        end = min(end, everything[ROWS_MAX])
    # The first priority is taken whole.
    end = max(end, first + 1)
    # Rows of one rank keep the order in which they came.
    for run, rows, column in sorted(zip(chosen, free, priorities, strict=True), key=lambda one: one[0].number):
        cut = bisect_left(column, end)
        if cut:
            yield run, run.free & masks.full(rows[cut - 1] + 1)


def _first_priority(run: Run) -> int:
    return run.sort_key(masks.lowest(run.free))[1]


def _pick(column: Sequence[T], rows: Sequence[int]) -> list[T]:
    return list(map(column.__getitem__, rows))


@dataclass(slots=True)
class _Columns:
    """Rows of several runs."""

    ids: list[str] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add(self, run: Run, rows: int) -> None:
        """Add rows of a run."""
        record = run.record
        for start, end in masks.ranges(rows):
            count = end - start
            self.ids += run.id_span(start, end).expand()
            self.ts += record.ts[start:end]
            self.priorities += record.priorities[start:end] or [0] * count
            self.bodies += record.bodies[start:end]
            self.headers += record.headers[start:end] or [b""] * count
            self.versions += record.versions[start:end] or [run.number] * count

    def in_order(self, owner: str) -> Iterator[records.Run]:
        """Them as runs, in order of (priority, ts)."""
        ranks = list(map(rank, self.priorities, self.ts))
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        start = 0
        while start < len(order):
            first = self.priorities[order[start]]
            chosen = order[start : start + MERGED_ROWS]
            if self.priorities[chosen[-1]] >= first + MIXED_SPAN:
                del chosen[bisect_left(chosen, first + MIXED_SPAN, key=self.priorities.__getitem__) :]
            yield self._record(owner, chosen)
            start += len(chosen)

    def _record(self, owner: str, rows: Sequence[int]) -> records.Run:
        priorities, headers = _pick(self.priorities, rows), _pick(self.headers, rows)
        return records.Run(
            owner=owner,
            ids=_pick(self.ids, rows),
            ts=_pick(self.ts, rows),
            bodies=_pick(self.bodies, rows),
            priorities=priorities if any(priorities) else (),
            headers=headers if any(headers) else (),
            versions=_pick(self.versions, rows),
        )
