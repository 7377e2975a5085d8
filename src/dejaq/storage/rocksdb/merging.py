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
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from dejaq.domain.body_block import BodyBlock
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.lease import Part
from dejaq.storage.rocksdb.prioritising import MIXED_SPAN, PriorityImage
from dejaq.storage.rocksdb.run import Run, priorities_of, priority_of, rank, times_of

T = TypeVar("T")

# A bucket is looked at when a lease took fewer rows of a run than `FEW_ROWS`, from so many runs.
PARTS_MIN = 8
FEW_ROWS = 4
# So many runs are worth a merge, of at most so many rows and bytes at once: a few milliseconds.
RUNS_MIN = 16
ROWS_MAX = 2_048
BYTES_MAX = 1024 * 1024
LOAD_STEPS = 4
# Merged rows that will be leased by the next so many leases are nearly used up.
LEASES_AHEAD = 2
# A run with so many free rows is not thin, and a merged one has twice as many.
THIN_ROWS = 256
MERGED_ROWS = 512


def merge_thin(image: PriorityImage, parts: Sequence[Part], batch: Batch) -> None:
    """Merge the bucket from which a lease took its rows one by one, or whose merged rows are nearly used up, if any."""
    if image.short_of_memory:
        return
    bucket = _thin_bucket(parts)
    if bucket is None:
        bucket = _ending_bucket(image, parts)
    if bucket is None:
        return
    end = merge(image, bucket, batch)
    if end is None:
        image.merged_until.pop(bucket, None)
    else:
        image.merged_until[bucket] = end


def _thin_bucket(parts: Sequence[Part]) -> int | None:
    """The bucket that had most parts in a lease, if these were many and small."""
    runs = Counter(part.run.bucket for part in parts if part.run.slice >= keys.READY_SLICE)
    bucket, count = next(iter(runs.most_common(1)), (0, 0))
    if count < PARTS_MIN or sum(part.count for part in parts if part.run.bucket == bucket) >= FEW_ROWS * count:
        return None
    return bucket


def _ending_bucket(image: PriorityImage, parts: Sequence[Part]) -> int | None:
    """The bucket whose merged rows will not do for the next leases, if these go on as this one."""
    if not image.merged_until:
        return None
    rows = [(part.run.ranks(), part.start, part.start + part.count - 1) for part in parts]
    first = min((priority_of(ranks[start]) for ranks, start, _ in rows), default=0)
    last = max((priority_of(ranks[end]) for ranks, _, end in rows), default=0)
    bucket, end = min(image.merged_until.items(), key=itemgetter(1))
    return bucket if end <= last + LEASES_AHEAD * (last - first + 1) else None


def merge(image: PriorityImage, bucket: int, batch: Batch) -> int | None:
    """Bring the next rows of a bucket's thin runs together; up to which priority, or None when they are too few."""
    ready = image.ready(bucket)
    owner, runs = _thin_runs(ready.runs())
    steps = LOAD_STEPS
    while len(runs) >= RUNS_MIN and steps and _rows_before(runs, ready.unread_priority) < ROWS_MAX:
        # Rows that others come between later would not be together.
        steps = steps - 1 if image.read_on(bucket) else 0
        owner, runs = _thin_runs(ready.runs())
    if len(runs) < RUNS_MIN:
        return None
    chosen, end = _next_runs(runs, ready.unread_priority)
    columns = _Columns()
    # Rows of one rank keep the order in which they came.
    for run in sorted(chosen, key=lambda run: run.number):
        rows = run.free & masks.full(bisect_left(run.ranks(), rank(end, 0)))
        if rows:
            columns.add(run, rows)
            image.remove_rows(batch, run, rows, keep_bodies=True)
    for record, block, ranks in columns.in_order(image.owner_name(owner)):
        merged = image.add_run(batch, bucket, keys.ready_slice(priority_of(ranks[0])), owner, record, block=block)
        merged.ranked, merged.latest = ranks, max(record.ts)
    ready.prune()
    return end


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


def _next_runs(runs: list[Run], end: int) -> tuple[list[Run], int]:
    """The first of the runs, and up to which priority their rows are merged: `end`, or where they are enough."""
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
    ranks = sorted(chain.from_iterable(run.ranks()[masks.lowest(run.free) :] for run in chosen))
    if len(ranks) > ROWS_MAX:
        end = min(end, priority_of(ranks[ROWS_MAX]))
    # The first priority is taken whole.
    return chosen, max(end, _first_priority(chosen[0]) + 1)


def _first_priority(run: Run) -> int:
    return priority_of(run.ranks()[masks.lowest(run.free)])


def _pick(column: Sequence[T], rows: Sequence[int]) -> list[T]:
    return list(map(column.__getitem__, rows))


@dataclass(slots=True)
class _Columns:
    """Rows of several runs."""

    ids: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add(self, run: Run, rows: int) -> None:
        """Add rows of a run."""
        record = run.record
        for start, end in masks.ranges(rows):
            count = end - start
            self.ids += run.id_span(start, end).expand()
            self.ranks += run.ranks()[start:end]
            self.bodies += run.bodies[start:end]
            self.headers += record.headers[start:end] or [b""] * count
            self.versions += record.versions[start:end] or [run.number] * count

    def in_order(self, owner: str) -> Iterator[tuple[records.Run, BodyBlock, list[int]]]:
        """Them as runs with their bodies and ranks, in order."""
        order = sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        ranks = _pick(self.ranks, order)
        start = 0
        while start < len(order):
            behind = rank(priority_of(ranks[start]) + MIXED_SPAN, 0)
            end = bisect_left(ranks, behind, start, min(start + MERGED_ROWS, len(ranks)))
            rows = order[start:end]
            yield self._record(owner, rows, ranks[start:end]), BodyBlock(_pick(self.bodies, rows)), ranks[start:end]
            start = end

    def _record(self, owner: str, rows: Sequence[int], ranks: Sequence[int]) -> records.Run:
        priorities, headers = priorities_of(ranks), _pick(self.headers, rows)
        return records.Run(
            owner=owner,
            ids=_pick(self.ids, rows),
            ts=times_of(ranks),
            priorities=priorities if any(priorities) else (),
            headers=headers if any(headers) else (),
            versions=_pick(self.versions, rows),
        )
