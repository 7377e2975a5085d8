"""Pages of a timeline: messages in the order of (ts, id), read region by region, each as it was at one moment.

A region is a range of time with about as many rows as are still needed. Its runs and the leases that end in it are
read from a view in short steps. What changes meanwhile has either happened or not, as between two pages.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby, islice

from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter, Page
from dejaq.storage.rocksdb.bodies.large import LARGE
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.histograms import TS_END, free_range
from dejaq.storage.rocksdb.reading.leased import CopiedLease, copied_leases, matching_terms
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.reading.touching import RunsTouching
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# A region has at least about so many rows, and at most so many minutes with rows.
_REGION_ROWS = 256
_REGION_MINUTES = 2_000
# So many messages are made in one go.
_MESSAGES_AT_ONCE = 32
# Behind every id.
_LAST_ID = "\x7f"

_CURSOR = struct.Struct(">q")

# Its place in the order, its run and row, and the lease that holds it.
Entry = tuple[int, str, bytes, int, Run, CopiedLease | None, LeasePart | None]


class Browsing:
    """One page of one topic."""

    def __init__(self, state: TopicState, where: Filter, cursor: bytes | None, limit: int, now: int) -> None:
        self._state, self._where, self._limit, self._now = state, where, limit, now
        self._after = unpack_cursor(cursor)
        self._start, self._end = max(where.start, 0), min(where.end, TS_END)
        self._low, self._high = free_range(where, now)
        self._owner: int | None = None
        self._found: list[Message] = []
        self._pace = QueryPace()
        # It grows while few rows of a region match the filter.
        self._region_rows = _REGION_ROWS

    async def page(self) -> Page:
        """The page; other tasks run meanwhile."""
        if self._where.owner is not None:
            self._owner = self._state.owners.known(self._where.owner)
            if self._owner is None:
                return Page([], None)
        while self._start < self._end and len(self._found) <= self._limit:
            behind = await self._read_region()
            if behind is not None:
                self._after = behind, _LAST_ID
                self._start = behind + 1
            await self._pace.rest()
        messages = self._found[: self._limit]
        return Page(messages, pack_cursor(messages[-1]) if len(self._found) > self._limit else None)

    async def _read_region(self) -> int | None:
        """Read the next region; the last time in it, or None if not all of its rows were wanted."""
        wanted = self._limit + 1 - len(self._found)
        first = max(self._start, self._after[0])
        low, high = max(self._low, first), self._high
        end = self._region_end(low, high, max(wanted, self._region_rows)) if low < high else self._end
        leases = copied_leases(self._state)
        view = self._state.database.view()
        try:
            ranges = [(low, min(end, high))] if low < min(end, high) else []
            touching = RunsTouching(self._state, view, ranges, self._owner)
            sources: list[Iterator[Entry]] = []
            leased = await self._leased(leases, first, end, sources)
            if ranges:
                async for run, live in touching.each(self._pace):
                    rows = live & ~leased.get(run.key, 0) & run.rows_between(*ranges[0])
                    if rows:
                        sources.append(_in_order(run, rows, self._after))
            made = await self._make(islice(heapq.merge(*sources), wanted), view)
        finally:
            view.close()
        if made < wanted // 2:
            self._region_rows *= 2
        return None if made >= wanted else end - 1

    def _region_end(self, low: int, high: int, rows_wanted: int) -> int:
        """Where a region that begins at `low` ends: behind about so many rows."""
        rows = 0
        for first, behind, count in islice(self._state.minute_counts.between(low, high), _REGION_MINUTES):
            if rows + count > rows_wanted:
                # About as much of a full minute as is needed, if its rows lie evenly.
                begin = max(first, low)
                return min(begin + max(1, (rows_wanted - rows) * (behind - first) // count), behind, self._end)
            rows += count
            end = behind
        else:
            if not rows or low >= high:
                return self._end
        return min(end, self._end) if self._has_rows(end, high) else self._end

    def _has_rows(self, low: int, high: int) -> bool:
        return low < high and next(iter(self._state.minute_counts.between(low, high)), None) is not None

    async def _leased(
        self, leases: list[CopiedLease], first: int, end: int, sources: list[Iterator[Entry]]
    ) -> dict[bytes, int]:
        """Enter the leased rows of the region; the leased rows of every run."""
        leased: dict[bytes, int] = {}
        for lease in leases:
            rows = lease.rows
            for part, _ in lease.parts:
                key = part.run.key
                leased[key] = leased.get(key, 0) | part.in_run(rows)
            await self._pace.rest()
        for lease, expires, rows in matching_terms(leases, self._where, self._now):
            if first <= expires < end:
                for part, _ in lease.parts:
                    run = part.run
                    if self._owner is None or run.owner == self._owner:
                        mask = part.in_run(rows)
                        # A run in memory may have forgotten rows that left meanwhile.
                        mask = mask if run.held == run.count else mask & run.live
                        sources.append(self._of_lease(lease, part, expires, mask))
            await self._pace.rest()
        return leased

    def _of_lease(self, lease: CopiedLease, part: LeasePart, expires: int, rows: int) -> Iterator[Entry]:
        run = part.run
        named = sorted((run.id_at(row), row) for row in masks.rows(rows)) if rows else []
        for message_id, row in named:
            if (expires, message_id) > self._after:
                yield expires, message_id, run.key, row, run, lease, part

    async def _make(self, entries: Iterator[Entry], view: View) -> int:
        """Make the messages of entries that are in order; how many."""
        before = len(self._found)
        for entry in entries:
            self._found.append(self._message(entry, view))
            if len(self._found) % _MESSAGES_AT_ONCE == 0:
                await self._pace.rest()
        return len(self._found) - before

    def _message(self, entry: Entry, view: View) -> Message:
        ts, message_id, _, row, run, lease, part = entry
        record = run.record
        return Message(
            id=message_id,
            topic=self._state.topic.name,
            bucket=self._state.bucket_of(run, message_id),
            ts=ts,
            priority=run.sort_key(row)[1],
            body=self._body(run, row, view),
            producer_group=record.owner,
            lock_consumer=lease.consumer if lease is not None else "",
            version=lease.id if lease is not None else run.version_at(row),
            attempts=part.attempts_at(row) if part is not None else run.attempts_at(row),
            headers=decode_headers(record.headers[row]) if record.headers else {},
        )

    def _body(self, run: Run, row: int, view: View) -> bytes:
        apart = run.record.apart[row] if run.record.apart else 0
        if not 0 < apart < LARGE:
            return run.bodies[row]
        body = view.get(keys.numbered(keys.BODY, self._state.topic.number, apart))
        return self._state.body_store.get(apart) if body is None else body


def _in_order(run: Run, rows: int, after: tuple[int, str]) -> Iterator[Entry]:
    """Free rows of one run after a position in the order of (ts, id)."""
    ts, key = run.record.ts, run.key
    if run.generated:
        # Their order is the order of their counters.
        for start, end in masks.ranges(rows):
            first = start
            if ts[start] <= after[0]:
                first += bisect_right(range(start, end), after, key=lambda row: (ts[row], run.id_at(row)))
            yield from ((ts[row], run.id_at(row), key, row, run, None, None) for row in range(first, end))
        return
    ids = run.ids
    for at, alike in groupby(masks.rows(rows), key=ts.__getitem__):
        named = [(ids[row], row) for row in alike if (at, ids[row]) > after]
        named.sort()
        yield from ((at, message_id, key, row, run, None, None) for message_id, row in named)


def pack_cursor(last: Message) -> bytes:
    """The cursor of the page behind a message."""
    return _CURSOR.pack(last.ts) + last.id.encode()


def unpack_cursor(cursor: bytes | None) -> tuple[int, str]:
    """The place behind which a page begins."""
    if cursor is None:
        return -1, ""
    try:
        return _CURSOR.unpack_from(cursor)[0], cursor[8:].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that browse returned") from None
