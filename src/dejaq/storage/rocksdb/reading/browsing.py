"""Pages of a timeline: messages in the order of (ts, id), read region by region in short steps.

A region is a range of time with about as many rows as are needed. Several regions are read as they were at one moment,
from a view of the database and a copy of the leases. What changes between two moments has either happened or not, as
between two pages.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter

from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter, Page
from dejaq.storage.rocksdb.bodies.large import LARGE
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.histograms import TS_END, free_range
from dejaq.storage.rocksdb.reading.leased import CopiedLease, LeasedRows, LeaseReading, Term, matching_terms
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.reading.touching import RunsTouching, lost_run
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# About so many regions are read from one view.
_REGIONS_PER_MOMENT = 32
# A region has at least about so many rows, and at most so many minutes with rows.
_REGION_ROWS = 256
_REGION_MINUTES = 2_000
# So many sources are freed, and so many messages made, in one go.
_SOURCES_AT_ONCE = 64
_MESSAGES_AT_ONCE = 32
# So many leased rows are found and sorted in one go.
_LEASED_ROWS = 512
# Behind every id.
_LAST_ID = "\x7f"
_expires_of = attrgetter("expires")

_CURSOR = struct.Struct(">q")

# Its place in the order, its run and row, and the lease that holds it.
Entry = tuple[int, str, bytes, int, Run, CopiedLease | None, LeasePart | None]
# The first entry of a source, and the source.
Head = tuple[Entry, Iterator[Entry]]


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
            await self._read_moment()
        messages = self._found[: self._limit]
        return Page(messages, pack_cursor(messages[-1]) if len(self._found) > self._limit else None)

    async def _read_moment(self) -> None:
        """Read some regions as they are now."""
        with LeaseReading(self._state) as copying:
            await copying.read(self._pace)
            leases = copying.taken()
        # From here to the next `await` is the moment of the regions.
        low = max(self._low, self._start, self._after[0])
        rows = _REGIONS_PER_MOMENT * max(self._limit, self._region_rows)
        horizon = self._region_end(low, self._high, rows) if low < self._high else self._end
        wide = (
            [(self._state.wide.at(key), key) for key in self._state.wide.between(low, horizon)] if low < horizon else []
        )
        view = self._state.database.view()
        try:
            leased = await self._leased_rows(leases)
            terms = await matching_terms(leases, self._where, self._now, self._pace)
            # They are in the order of the leases, and stay so where they end at the same time.
            terms.sort(key=_expires_of)
            while self._start < horizon and len(self._found) <= self._limit:
                low = max(self._low, self._start, self._after[0])
                end = horizon
                if low < self._high:
                    end = min(self._region_end(low, self._high, max(self._limit, self._region_rows)), horizon)
                touched = [(run.first, key) for run, key in wide if run.first < end and run.last >= low]
                if await self._read_region(end, view, touched, terms, leased):
                    self._after = end - 1, _LAST_ID
                    self._start = end
                await self._pace.rest()
        finally:
            view.close()

    async def _read_region(
        self, end: int, view: View, wide: list[tuple[int, bytes]], terms: list[Term], leased: LeasedRows
    ) -> bool:
        """Read the rows up to `end`; False if not all of them were wanted.

        Of the wide runs, given with their first times, those are read that may have one of the next rows: a region may
        be much larger than what is wanted, because rows do not lie evenly.
        """
        wanted = self._limit + 1 - len(self._found)
        first = max(self._start, self._after[0])
        low, high = max(self._low, first), min(end, self._high)
        # The first entry of each source, and the source.
        heads = await self._of_leases(terms, first, end, wanted)
        sources = Sources(heads)
        if low < high:
            of_owner = [(at, key) for at, key in wide if self._owner is None or keys.owner_of(key) == self._owner]
            touching = RunsTouching(
                self._state, view, [(low, high)], wide=[key for _, key in of_owner], owner=self._owner
            )

            def source_of(run: Run, live: int) -> Iterator[Entry]:
                rows = live & ~leased.of(run.key) & run.rows_between(low, high)
                return _in_order(run, rows, self._after)

            async for run, live in touching.narrow(self._pace):
                heads += head_of(source_of(run, live))
            sources = Sources(heads, of_owner, lambda key: source_of(*touching.wide(key)))
        made = await self._make(sources, wanted, view)
        # To free a thousand sources with their runs takes many milliseconds.
        while heads:
            del heads[-_SOURCES_AT_ONCE:]
            await self._pace.rest()
        if made < wanted // 2:
            self._region_rows *= 2 if sources.any_read else 8
        return made < wanted

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

    async def _leased_rows(self, leases: list[CopiedLease]) -> LeasedRows:
        """The leased rows of every run."""
        leased = LeasedRows()
        if self._low < self._high:
            for lease in leases:
                leased.add(lease)
                await self._pace.rest()
        return leased

    async def _of_leases(self, terms: list[Term], first: int, end: int, wanted: int) -> list[Head]:
        """Sources of the leased rows of a region, with as many as are wanted of those with the earliest ends.

        Thousands of rows may end at the same time, so they are sorted a few at a time, and merged as they are taken.
        """
        heads: list[Head] = []
        entries: list[Entry] = []
        last, found = -1, 0
        for term in islice(terms, bisect_left(terms, first, key=_expires_of), None):
            expires = term.expires
            if expires >= end or (found >= wanted and expires > last):
                break
            last = expires
            for part, _ in term.lease.parts:
                run = part.run
                if self._owner is None or run.owner == self._owner:
                    mask = part.in_run(term.rows)
                    for start in range(masks.lowest(mask) if mask else 0, mask.bit_length(), _LEASED_ROWS):
                        some = mask & masks.span(start, start + _LEASED_ROWS)
                        # A run in memory may have forgotten rows that left meanwhile.
                        some = some if run.held == run.count else some & run.live
                        for row in masks.rows(some):
                            message_id = run.id_at(row)
                            if (expires, message_id) > self._after:
                                entries.append((expires, message_id, run.key, row, run, term.lease, part))
                                found += 1
                        if len(entries) >= _LEASED_ROWS:
                            heads += _sorted_source(entries)
                            entries = []
                        await self._pace.rest()
                await self._pace.rest()
        return heads + _sorted_source(entries)

    async def _make(self, sources: Sources, wanted: int, view: View) -> int:
        """Make the messages of the first entries, as many as are wanted; how many they are."""
        made = 0
        while made < wanted:
            while sources.must_read:
                sources.read()
                await self._pace.rest()
            entry = sources.take()
            if entry is None:
                break
            self._found.append(self._message(entry, view))
            made += 1
            if made % _MESSAGES_AT_ONCE == 0:
                await self._pace.rest()
        return made

    def _message(self, entry: Entry, view: View) -> Message:
        ts, message_id, key, row, run, lease, part = entry
        if run.held < run.count:
            # Meanwhile it has forgotten rows that left.
            run = self._stored(key, view)
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

    def _stored(self, key: bytes, view: View) -> Run:
        """A run as the view has it."""
        value = view.get(key)
        if value is None:
            raise lost_run(self._state)
        return Run.parse(key, view.run_at(key, value))

    def _body(self, run: Run, row: int, view: View) -> bytes:
        apart = run.record.apart[row] if run.record.apart else 0
        if not 0 < apart < LARGE:
            return run.bodies[row]
        key = keys.numbered(keys.BODY, self._state.topic.number, apart)
        value = view.get(key)
        if value is None:
            return self._state.body_store.get(apart)
        return self._state.database.values.opened_body(key, value)


def head_of(source: Iterator[Entry]) -> list[Head]:
    """The first entry of a source with the source, if it has one."""
    entry = next(source, None)
    return [] if entry is None else [(entry, source)]


def _sorted_source(entries: list[Entry]) -> list[Head]:
    """A source of these entries in order."""
    entries.sort(key=lambda entry: entry[:4])
    return head_of(iter(entries))


class Sources:
    """All entries of some sources in order.

    `heads` has sources with their first entries; `later` has the keys of runs with the first times of their rows, each
    of which `open_run` makes a source of when its turn comes.
    """

    def __init__(
        self,
        heads: list[Head],
        later: Sequence[tuple[int, bytes]] = (),
        open_run: Callable[[bytes], Iterator[Entry]] = lambda key: iter(()),
    ) -> None:
        self._heads = heads
        self._later = sorted(later, reverse=True)
        self._open_run = open_run
        # Whether there was any source.
        self.any_read = bool(heads)
        heapq.heapify(heads)

    @property
    def must_read(self) -> bool:
        """Whether a run that was not read may have the next entry."""
        return bool(self._later) and (not self._heads or self._later[-1][0] <= self._heads[0][0][0])

    def read(self) -> None:
        """Read the next run."""
        self.any_read = True
        for head in head_of(self._open_run(self._later.pop()[1])):
            heapq.heappush(self._heads, head)

    def take(self) -> Entry | None:
        """The next entry; None behind the last one."""
        if not self._heads:
            return None
        entry, source = self._heads[0]
        following = next(source, None)
        if following is None:
            heapq.heappop(self._heads)
        else:
            heapq.heapreplace(self._heads, (following, source))
        return entry


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
