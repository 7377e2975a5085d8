"""Rows that were pushed ahead of their time, held until they are due.

Every push is a segment, sorted by (ts, priority), or by (priority, ts) where the topic goes by priority and everything
that is pushed is due; a heap of segment heads merges them. Rows leave as slices, so that
the work grows with the number of slices and not of rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from dejaq.domain.batch import LeaseSet
from dejaq.domain.large import Reference, reference_of
from dejaq.sdk.grant import Delivery, Grant, Portion

Head = tuple[int, int, int, "Segment"]


class Segment:
    """What is left of one push: places in its columns, in order of (ts, priority), from `position` on."""

    __slots__ = ("delivery", "index", "position", "serial", "ts")

    def __init__(self, delivery: Delivery, index: Sequence[int], serial: int) -> None:
        self.delivery = delivery
        self.index = index
        self.serial = serial
        self.position = 0
        column = delivery.columns.ts
        whole = isinstance(index, range) and len(index) == len(column)
        # What goes by priority is due: at the beginning of time only its priority orders it.
        if delivery.columns.by_priority:
            self.ts = [0] * len(index)
        else:
            self.ts = column if whole else [column[place] for place in index]

    def priority(self, position: int) -> int:
        """The priority of one row."""
        column = self.delivery.columns.priorities
        return 0 if column is None else column[self.index[position]]

    def order(self, position: int) -> tuple[int, int, int]:
        """What a row stands by among those of all segments."""
        return self.ts[position], self.priority(position), self.serial

    def head(self) -> Head:
        """What the heap orders by."""
        return *self.order(self.position), self

    def end_until(self, ts: int, priority: int, end: int) -> int:
        """Up to `end`, how far its rows come before, or stand level with, (ts, priority); at least one row."""
        low = bisect_left(self.ts, ts, self.position, end)
        high = bisect_right(self.ts, ts, low, end)
        if self.delivery.columns.priorities is None:
            found = high if priority >= 0 else low
        else:
            found = bisect_right(range(high), priority, low, high, key=self.priority)
        return max(found, self.position + 1)

    def without(self, rows: set[int]) -> tuple[Segment | None, list[int]]:
        """The segment without these row numbers (None when nothing is left), and those that were in it."""
        row_at = self.delivery.row_at
        places = self.index[self.position :]
        removed = [row_at(place) for place in places if row_at(place) in rows]
        if not removed:
            return self, removed
        kept = [place for place in places if row_at(place) not in rows]
        return (Segment(self.delivery, kept, self.serial) if kept else None), removed

    def rest(self) -> Portion:
        """Everything that is left."""
        return Portion(self.delivery, self.index[self.position :])


@dataclass(frozen=True, slots=True)
class LargeRow:
    """A row that is held and has a large body."""

    segment: Segment
    position: int
    reference: Reference

    @property
    def held(self) -> bool:
        """Whether it has not been taken since."""
        return self.segment.position <= self.position

    @property
    def delivery(self) -> Delivery:
        """The push that it came with."""
        return self.segment.delivery

    @property
    def place(self) -> int:
        """Its place in the columns of that."""
        return self.segment.index[self.position]

    @property
    def id(self) -> str:
        """The id of its message."""
        return self.delivery.id_at(self.place)


class Holder:
    """All that a consumer holds: every live lease, and the rows that user code has not seen."""

    def __init__(self) -> None:
        self.grants: dict[int, Grant] = {}
        self._heap: list[Head] = []
        self._serial = 0
        # The leases of the session before, which the broker sends again as it finds them.
        self._earlier: dict[int, Grant] = {}

    def reconnect(self) -> None:
        """A new session begins: what is settled from now on may yet be in what the broker sends again."""
        self._earlier = dict(self.grants)

    def push(self, columns: LeaseSet) -> bool:
        """Take in a push; whether it repeats rows that are here or with user code, which only get their new end."""
        grant = self.grants.get(columns.lease_id) or self._earlier.get(columns.lease_id)
        index: Sequence[int] = range(len(columns))
        known: list[int] = []
        if grant is None:
            total = len(columns) if columns.rows is None else None
            grant = self.grants[columns.lease_id] = Grant(columns.lease_id, expires=columns.expires, total=total)
            grant.unsettled.update(index if columns.rows is None else columns.rows)
        else:
            numbers = index if columns.rows is None else columns.rows
            known = [row for row in numbers if row in grant.unsettled]
            here = grant.settled().union(grant.unsettled)
            fresh = [place for place, row in enumerate(numbers) if row not in here]
            if fresh:
                self.grants[grant.id] = grant
            if known:
                grant.move_end(known, columns.expires)
            grant.unsettled.update(numbers[place] for place in fresh)
            grant.ends.update({numbers[place]: columns.expires for place in fresh})
            index = fresh
        if index:
            self._hold(Delivery(columns, grant), index)
        return bool(known)

    def _hold(self, delivery: Delivery, index: Sequence[int]) -> None:
        columns = delivery.columns
        if not _in_order(columns):
            priorities = columns.priorities or [0] * len(columns)
            if columns.by_priority:
                index = sorted(index, key=lambda place: (priorities[place], columns.ts[place]))
            else:
                index = sorted(index, key=lambda place: (columns.ts[place], priorities[place]))
        self._serial += 1
        segment = Segment(delivery, index, self._serial)
        heappush(self._heap, segment.head())

    @property
    def next_ts(self) -> int | None:
        """When the next row is due."""
        return self._heap[0][0] if self._heap else None

    def take(self, limit: int, *, now: int, latest: int, handed_us: int = 0) -> list[Portion]:
        """At most `limit` rows that are due at `now`, in order; rows whose lease has ended by `latest` are dropped.

        They are marked as handed over at `handed_us` of the broker's clock.
        """
        portions: list[Portion] = []
        heap = self._heap
        while limit > 0 and heap and heap[0][0] <= now:
            segment = heappop(heap)[3]
            start = segment.position
            end = bisect_right(segment.ts, now, start)
            if heap:
                end = segment.end_until(heap[0][0], heap[0][1], end)
            end = min(end, start + limit)
            segment.position = end
            if end < len(segment.ts):
                heappush(heap, segment.head())
            portion = Portion(segment.delivery, segment.index[start:end], handed_us)
            if portion.grant.first_end(portion.rows()) <= latest:
                portion = self._alive(portion, latest)
            if portion:
                portions.append(portion)
                limit -= len(portion)
        return portions

    def _alive(self, portion: Portion, latest: int) -> Portion:
        grant, row_at = portion.grant, portion.delivery.row_at
        ended = [row_at(place) for place in portion.index if grant.end_of(row_at(place)) <= latest]
        grant.lose(ended)
        self.forget_if_settled(grant)
        gone = set(ended)
        kept = [place for place in portion.index if row_at(place) not in gone]
        return Portion(portion.delivery, kept, portion.handed_us)

    def put_back(self, portion: Portion) -> None:
        """Hold rows again that were taken and not handed over."""
        if len(portion):
            self._hold(portion.delivery, portion.index)

    def large(self) -> list[LargeRow]:
        """The rows that have large bodies, in the order in which they are due."""
        rows = [
            LargeRow(segment, position, reference)
            for *_, segment in self._heap
            if segment.delivery.columns.large
            for position in range(segment.position, len(segment.ts))
            if (reference := reference_of(segment.delivery.columns.bodies[segment.index[position]])) is not None
        ]
        return sorted(rows, key=lambda row: row.segment.order(row.position))

    def recall(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Let go of rows that user code has not seen; those that were let go of."""
        grant = self.grants.get(lease_id)
        if grant is None:
            return []
        wanted = set(rows)
        removed: list[int] = []
        kept: list[Head] = []
        for head in self._heap:
            segment: Segment | None = head[3]
            assert segment is not None
            if segment.delivery.grant is grant:
                segment, gone = segment.without(wanted)
                removed.extend(gone)
            if segment is not None:
                kept.append(segment.head())
        heapify(kept)
        self._heap = kept
        grant.unsettled.difference_update(removed)
        self.forget_if_settled(grant)
        return sorted(removed)

    def empty(self) -> list[Portion]:
        """Take out everything that user code has not seen."""
        portions = [head[3].rest() for head in self._heap]
        self._heap = []
        return portions

    def forget_if_settled(self, grant: Grant) -> None:
        """Drop a lease of which nothing is left here."""
        if not grant.unsettled and self.grants.get(grant.id) is grant:
            del self.grants[grant.id]


def _in_order(columns: LeaseSet) -> bool:
    keys: Sequence[object] = columns.ts
    if columns.priorities is not None:
        by_time = (columns.ts, columns.priorities)
        keys = list(zip(*(by_time[::-1] if columns.by_priority else by_time), strict=True))
    return keys == sorted(keys)  # type: ignore[type-var]
