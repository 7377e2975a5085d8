"""Pages of a priority topic: messages in the order of (priority, ts, id), read from one view in short steps.

Due rows lie in this order on disk, roughly, so each bucket is read until no run can have a row of the page. Rows that
are ahead of their time, and leased rows, are looked through for every page.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice

from dejaq import limits
from dejaq.domain.message import Message
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter, Page
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.browsing import Browsing, Sources, head_of
from dejaq.storage.rocksdb.reading.leased import CopiedLease, LeasedRows, LeaseReading, matching_terms
from dejaq.storage.rocksdb.reading.touching import RunsTouching, gone_rows
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.run import BLOCK_BITS, Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

_CURSOR = struct.Struct(">iq")
# So many runs of a bucket are found in one go, and so many rows are looked through.
_KEYS_AT_ONCE = 64
_ROWS_AT_ONCE = 128

Place = tuple[int, int, str]
# Its place in the order, its run and row, and the lease that holds it.
PriorityEntry = tuple[int, int, str, bytes, int, Run, CopiedLease | None, LeasePart | None]


class _FirstEntries:
    """The first entries of all that are added, up to a number, behind a place in the order."""

    def __init__(self, count: int, behind: Place) -> None:
        self._count, self._behind = count, behind
        self._entries: list[PriorityEntry] = []
        # No entry with a higher priority is among the first.
        self.priority_max = limits.PRIORITY_MAX

    def add(self, entries: Iterable[PriorityEntry]) -> None:
        """Add a few entries."""
        last = self.priority_max
        self._entries += [entry for entry in entries if entry[0] <= last and entry[:3] > self._behind]
        if len(self._entries) >= self._count + _ROWS_AT_ONCE:
            self.in_order()

    def in_order(self) -> list[PriorityEntry]:
        """The first entries, sorted."""
        self._entries.sort(key=lambda entry: entry[:5])
        del self._entries[self._count :]
        if len(self._entries) == self._count:
            self.priority_max = self._entries[-1][0]
        return self._entries


class PriorityBrowsing(Browsing):
    """One page of one priority topic."""

    def __init__(self, state: TopicState, where: Filter, cursor: bytes | None, limit: int, now: int) -> None:
        super().__init__(state, where, None, limit, now)
        self._behind = _unpack_cursor(cursor)
        self._first = _FirstEntries(limit + 1, self._behind)

    async def page(self) -> Page:
        """The page; other tasks run meanwhile."""
        if self._where.owner is not None:
            self._owner = self._state.owners.known(self._where.owner)
        if self._start >= self._end or (self._where.owner is not None and self._owner is None):
            return Page([], None)
        with LeaseReading(self._state) as copying:
            await copying.read(self._pace)
            leases, view = copying.taken(), self._state.database.view()
        ranges = [(self._low, self._high)] if self._low < self._high else []
        touching = RunsTouching(self._state, view, ranges, self._owner)
        try:
            await self._add_leased(leases)
            if ranges:
                leased = await self._leased_rows(leases)
                for bucket in (*range(self._state.topic.settings.buckets), keys.SPREAD):
                    await self._add_ready(bucket, touching, view, leased)
                async for run, live in touching.each(self._pace):
                    await self._add_free(run, live & ~leased.of(run.key))
            found = self._first.in_order()
            await self._make(Sources(head_of(entry[1:] for entry in found[: self._limit])), self._limit, view)
        finally:
            view.close()
        messages = self._found
        return Page(messages, pack_priority_cursor(messages[-1]) if len(found) > self._limit else None)

    async def _add_leased(self, leases: list[CopiedLease]) -> None:
        for term in await matching_terms(leases, self._where, self._now, self._pace):
            for part, _ in term.lease.parts:
                run = part.run
                if self._owner is not None and run.owner != self._owner:
                    continue
                mask = part.in_run(term.rows)
                # A run in memory may have forgotten rows that left meanwhile.
                mask = mask if run.held == run.count else mask & run.live
                self._first.add(
                    (run.sort_key(row)[1], term.expires, run.id_at(row), run.key, row, run, term.lease, part)
                    for row in masks.rows(mask)
                )
                await self._pace.rest()

    async def _add_ready(self, bucket: int, touching: RunsTouching, view: View, leased: LeasedRows) -> None:
        """Add due rows of a bucket, until its next run begins behind the entries of the page."""
        topic = self._state.topic.number
        # A run of several priorities has the first one in its key.
        first = max(self._behind[0] - (1 << BLOCK_BITS) + 1, limits.PRIORITY_MIN)
        start, end = keys.slice_start(topic, bucket, keys.ready_slice(first)), keys.ready_end(topic, bucket)
        while start < end:
            items = list(islice(view.items(start, end), _KEYS_AT_ONCE))
            gone = gone_rows(view, items)
            for key, stored in items:
                if keys.ready_priority(keys.slice_of(key)) > self._first.priority_max:
                    return
                if self._owner is None or keys.owner_of(key) == self._owner:
                    run, live = touching.run_of(key, stored, gone.get(key[1:], 0))
                    await self._add_free(run, live & ~leased.of(key))
                await self._pace.rest()
            start = items[-1][0] + b"\0" if len(items) == _KEYS_AT_ONCE else end

    async def _add_free(self, run: Run, rows: int) -> None:
        """Add rows of a run without a lease."""
        if not run.by_priority and not run.mixed and run.sort_key(0)[1] > self._first.priority_max:
            return
        record, chosen = run.record, list(masks.rows(rows & run.rows_between(self._low, self._high)))
        ts, priorities = record.ts, record.priorities or [0] * run.count
        for at in range(0, len(chosen), _ROWS_AT_ONCE):
            self._first.add(
                (priorities[row], ts[row], run.id_at(row), run.key, row, run, None, None)
                for row in chosen[at : at + _ROWS_AT_ONCE]
                if priorities[row] <= self._first.priority_max
            )
            await self._pace.rest()


def pack_priority_cursor(last: Message) -> bytes:
    """The cursor of the page behind a message."""
    return _CURSOR.pack(last.priority, last.ts) + last.id.encode()


def _unpack_cursor(cursor: bytes | None) -> Place:
    if cursor is None:
        return limits.PRIORITY_MIN - 1, -1, ""
    try:
        priority, ts = _CURSOR.unpack_from(cursor)
        return priority, ts, cursor[_CURSOR.size :].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that browse returned") from None
