"""Merging: rows of many runs with similar priorities are moved into new runs that are sorted by priority.

Every batch with thousands of priorities has only a few rows of each priority, so that a lease takes single rows from
many runs, and each row costs as much as a run. When a lease finds this, it moves the next rows of one bucket into a few
runs, in its own atomic write: once per row, however many leases follow. Nothing else about a row changes, including its
version; leased rows are not moved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.prioritising import MIXED_SPAN, PriorityTopicState
from dejaq.storage.rocksdb.timeline.run import Run, priorities_of, priority_of, rank, times_of

T = TypeVar("T")

# A bucket is examined when a lease took fewer than `FEW_ROWS` rows per run, from at least so many runs.
PARTS_MIN = 8
FEW_ROWS = 4
# So many runs are worth a merge, of at most so many rows and bytes at once: this takes a few milliseconds.
RUNS_MIN = 16
ROWS_MAX = 2_048
BYTES_MAX = 1024 * 1024
LOAD_STEPS = 4
# When the next so many leases will use the merged rows up, more rows are merged.
LEASES_AHEAD = 2
# A run with so many free rows is not thin; a merged run has twice as many.
THIN_ROWS = 256
MERGED_ROWS = 512


def merge_thin(state: PriorityTopicState, parts: Sequence[LeasePart], batch: Batch) -> None:
    """Merge the bucket from which a lease took single rows, or whose merged rows are nearly used
    up, if there is one.
    """
    if state.short_of_memory:
        return
    bucket = _thin_bucket(parts)
    if bucket is None:
        bucket = _ending_bucket(state, parts)
    if bucket is None:
        return
    end = merge(state, bucket, batch)
    if end is None:
        state.merged_until.pop(bucket, None)
    else:
        state.merged_until[bucket] = end


def _thin_bucket(parts: Sequence[LeasePart]) -> int | None:
    """The bucket with most parts in a lease, if there were many small parts."""
    runs = Counter(part.run.bucket for part in parts if part.run.slice >= keys.READY_SLICE)
    bucket, count = next(iter(runs.most_common(1)), (0, 0))
    if count < PARTS_MIN or sum(part.count for part in parts if part.run.bucket == bucket) >= FEW_ROWS * count:
        return None
    return bucket


def _ending_bucket(state: PriorityTopicState, parts: Sequence[LeasePart]) -> int | None:
    """The bucket whose merged rows are too few for the next leases, if these are like this one."""
    if not state.merged_until:
        return None
    rows = [(part.run.ranks(), part.start, part.start + part.count - 1) for part in parts]
    first = min((priority_of(ranks[start]) for ranks, start, _ in rows), default=0)
    last = max((priority_of(ranks[end]) for ranks, _, end in rows), default=0)
    bucket, end = min(state.merged_until.items(), key=itemgetter(1))
    return bucket if end <= last + LEASES_AHEAD * (last - first + 1) else None


def merge(state: PriorityTopicState, bucket: int, batch: Batch) -> int | None:
    """Merge the next rows of a bucket's thin runs; returns the priority up to which it did, or None when they are too
    few.
    """
    ready = state.ready(bucket)
    owner, runs = _thin_runs(ready.runs())
    steps = LOAD_STEPS
    while len(runs) >= RUNS_MIN and steps and _rows_before(runs, ready.unread_priority) < ROWS_MAX:
        # Unread runs may have rows between the merged rows, so they are read first.
        steps = steps - 1 if state.read_on(bucket) else 0
        owner, runs = _thin_runs(ready.runs())
    if len(runs) < RUNS_MIN:
        return None
    chosen, end = _next_runs(runs, ready.unread_priority)
    columns = _MergedColumns()
    # Rows with the same rank keep their order.
    for run in sorted(chosen, key=lambda run: run.number):
        rows = run.free & masks.full(bisect_left(run.ranks(), rank(end, 0)))
        if rows:
            columns.add(run, rows)
            state.remove_rows(batch, run, rows, keep_bodies=True)
    for record, block, ranks in columns.in_order(state.owners.name(owner)):
        merged = state.add_run(batch, bucket, keys.ready_slice(priority_of(ranks[0])), owner, record, block=block)
        merged.ranked, merged.latest = ranks, max(record.ts)
    ready.prune()
    return end


def _thin_runs(runs: Iterable[Run]) -> tuple[int, list[Run]]:
    """The owner with most thin runs, and these runs."""
    owners: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        if _is_thin(run):
            owners[run.owner].append(run)
    return max(owners.items(), key=lambda item: len(item[1]), default=(0, []))


def _rows_before(runs: Iterable[Run], priority: int) -> int:
    """How many free rows the runs have that end before a priority."""
    return sum(run.free.bit_count() for run in runs if priority_of(run.ranks()[-1]) < priority)


def _is_thin(run: Run) -> bool:
    """Whether a run has few free rows, none of which was leased or has a separately stored body."""
    record = run.record
    return run.free.bit_count() < THIN_ROWS and not (record.attempts or record.firsts or record.lasts or record.apart)


def _next_runs(runs: list[Run], end: int) -> tuple[list[Run], int]:
    """The first of the runs, and the priority up to which their rows are merged: `end`, or when
    there are enough rows.
    """
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
    # All rows of the first priority are included.
    return chosen, max(end, _first_priority(chosen[0]) + 1)


def _first_priority(run: Run) -> int:
    return priority_of(run.ranks()[masks.lowest(run.free)])


def _pick(column: Sequence[T], rows: Sequence[int]) -> list[T]:
    return list(map(column.__getitem__, rows))


@dataclass(slots=True)
class _MergedColumns:
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
        """The rows as sorted runs, with their bodies and ranks."""
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
