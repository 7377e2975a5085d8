"""Histograms, of which a count is one with a single step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from dejaq import limits
from dejaq.domain.message import Status
from dejaq.storage.base import Filter
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.counting import CountReading, Tally
from dejaq.storage.rocksdb.reading.leased import CopiedLease, LeaseReading, matching_terms, rows_between
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.reading.tallying import tally_ready_rows, tally_rows
from dejaq.storage.rocksdb.reading.touching import RunsTouching
from dejaq.storage.rocksdb.timeline.memory.owner_counts import OwnerCounts
from dejaq.storage.rocksdb.timeline.minute_counts import MinuteCounts
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

TS_END = 2**62

# Waits until what is pending now is durable.
Durable = Callable[[], asyncio.Future[None] | None]


def free_range(where: Filter, now: int) -> tuple[int, int]:
    """The time range in which rows without a lease match the filter; empty as (0, 0)."""
    start, end = max(where.start, 0), min(where.end, TS_END)
    if where.consumer is not None or where.status is Status.PROCESSING:
        return 0, 0
    if where.status is Status.AVAILABLE:
        end = min(end, now + 1)
    elif where.status is Status.WAITING:
        start = max(start, now + 1)
    return (start, end) if start < end else (0, 0)


class Histogram:
    """One histogram of one topic. `pending` returns what has to be durable before the answer is given."""

    def __init__(self, state: TopicState, where: Filter, step: int, now: int, pending: Durable) -> None:
        self._state, self._where, self._now = state, where, now
        self._pending = pending
        self._low, self._high = free_range(where, now)
        self._tally = Tally(max(where.start, 0), step)
        self._pace = QueryPace()
        self._owner: int | None = None

    async def answer(self) -> list[tuple[int, int]]:
        """(start of step, count) of each step that has messages."""
        if self._where.owner is not None:
            self._owner = self._state.owners.known(self._where.owner)
            if self._owner is None:
                return []
        readings = await self._readings() if self._low < self._high else []
        with LeaseReading(self._state) as copying:
            try:
                for reading in readings:
                    await reading.read(self._pace)
                await copying.read(self._pace)
            finally:
                for reading in readings:
                    reading.end()
            # From here to the next `await` is the moment of the answer.
            leases, durable = copying.taken(), self._pending()
        ready = self._ready_ranges()
        with ExitStack() as stack:
            view: View | None = None
            ranges = sorted(self._tally.unread + self._tally.excess)
            if ranges or ready:
                view = self._state.database.view()
                stack.callback(view.close)
            touching = RunsTouching(self._state, view, ranges, self._owner) if view is not None and ranges else None
            await self._tally_leases(leases)
            if touching is not None:
                await tally_rows(touching, self._tally, self._pace)
            if view is not None and ready:
                await tally_ready_rows(self._state, view, ready, self._owner, self._tally, self._pace)
        if durable is not None:
            await asyncio.shield(durable)
        return self._tally.steps()

    async def _readings(self) -> list[CountReading]:
        """The maintained counts that have the answer, as far as there are any."""
        counts: MinuteCounts | None = self._state.minute_counts
        if self._owner is not None and len(self._state.owners) > 1:
            by_owner = await owner_counts(self._state, self._pace)
            counts = None if by_owner.refused else by_owner.of(self._owner)
        if counts is None:
            self._tally.unread.append((self._low, self._high))
            return []
        # Waiting messages begin now. If the caller's own limit is there, its minute is divided as any other.
        low_is_now = self._where.status is Status.WAITING and self._low == self._now + 1
        readings = [CountReading(counts, self._tally, self._low, self._high, low_is_now=low_is_now)]
        if self._has_ready and not self._reads_ready:
            assert isinstance(self._state, PriorityTopicState)
            # All of them are due, so the present time divides no minute.
            readings.append(CountReading(self._state.ready_minute_counts, self._tally, self._low, self._ready_high))
        return readings

    @property
    def _has_ready(self) -> bool:
        """Whether rows in the order of priority may match. All of them are due."""
        return isinstance(self._state, PriorityTopicState) and self._low < self._high and self._low <= self._now

    @property
    def _ready_high(self) -> int:
        """The end of the range, or of the present minute if the present time is the end."""
        if self._high <= self._now:
            return self._high
        return max(self._high, (self._now // keys.MINUTE_MS + 1) * keys.MINUTE_MS)

    @property
    def _reads_ready(self) -> bool:
        """Whether the counts of the rows in the order of priority do not have the answer."""
        width = keys.MINUTE_MS
        aligned = self._tally.step % width == 0 or self._tally.step > TS_END
        cut = self._low % width or (self._high <= self._now and self._high % width)
        return (
            (self._owner is not None and len(self._state.owners) > 1)
            or bool(cut)
            or not (aligned and self._tally.start % width == 0)
        )

    def _ready_ranges(self) -> Sequence[tuple[int, int]]:
        return ((self._low, self._high),) if self._has_ready and self._reads_ready else ()

    async def _tally_leases(self, leases: Sequence[CopiedLease]) -> None:
        """Leased rows count at the end of their lease, and not at their own times."""
        tally, owner = self._tally, self._owner
        for lease in leases if self._low < self._high else ():
            rows = lease.rows
            for part, record in lease.parts:
                if owner is None or part.run.owner == owner:
                    mine = part.in_run(rows) & rows_between(part, record, self._low, self._high)
                    tally.add_rows(record, mine, -1, sorted_by_time=not part.run.by_priority)
            await self._pace.rest()
        for term in await matching_terms(leases, self._where, self._now, self._pace):
            if owner is None:
                tally.add(term.expires, term.rows.bit_count())
            else:
                parts = (part for part, _ in term.lease.parts if part.run.owner == owner)
                tally.add(term.expires, sum(part.in_run(term.rows).bit_count() for part in parts))
            await self._pace.rest()


async def owner_counts(state: TopicState, pace: QueryPace) -> OwnerCounts:
    """The counts by producer group. The first call reads every run of the topic once, and later ones wait for it."""
    counts = state.owner_counts
    while counts is not None and not (counts.complete or counts.refused):
        await counts.changed.wait()
        counts = state.owner_counts
    if counts is not None:
        return counts
    counts = state.owner_counts = OwnerCounts(state.topic.number)
    view = state.database.view()
    try:
        runs = RunsTouching(state, view, [(0, limits.TS_MS_MAX + 1)])
        async for owner, times in runs.times(pace):
            minutes, rows = np.unique(times // keys.MINUTE_MS, return_counts=True)
            counts.add(owner, minutes.tolist(), rows.tolist())
            if counts.refused:
                break
        counts.complete = True
    finally:
        view.close()
        if not counts.complete:
            state.owner_counts = None
        counts.changed.set()
    return counts
