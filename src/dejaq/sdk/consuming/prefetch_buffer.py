"""Holds rows that the broker pushed before their time until they are due.

Every push is a segment. Its rows are sorted by (ts, priority); in a priority topic, where all pushed rows are due, they
are sorted by (priority, ts). A heap of the first rows of the segments merges them. Rows leave as slices, so that the
work grows with the number of slices and not with the number of rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from dejaq.domain.batch import LeaseSet
from dejaq.domain.bodies.large import Reference, reference_of
from dejaq.sdk.consuming.grant import Delivery, DeliveryPart, Grant

Head = tuple[int, int, int, "PushRemainder"]

# Rows that are late by at least so long are a backlog. There, a row may be passed by rows that are due later by a part
# of its lateness, as in the broker's leases.
_BACKLOG_MS = 1_000
_LATE_PARTS = 4
_SLACK_MS_MAX = 10_000


class PushRemainder:
    """The rows of one push that are left: places in its columns, in order of (ts, priority), from `position` on."""

    __slots__ = ("delivery", "index", "position", "serial", "ts")

    def __init__(self, delivery: Delivery, index: Sequence[int], serial: int) -> None:
        self.delivery = delivery
        self.index = index
        self.serial = serial
        self.position = 0
        column = delivery.columns.ts
        whole = isinstance(index, range) and len(index) == len(column)
        # All rows of a priority topic are due. They get time 0, so that only the priority orders them.
        if delivery.columns.by_priority:
            self.ts = [0] * len(index)
        else:
            self.ts = column if whole else [column[place] for place in index]

    @property
    def is_prioritised(self) -> bool:
        """Whether rows have priorities."""
        return self.delivery.columns.priorities is not None or self.delivery.columns.by_priority

    def priority(self, position: int) -> int:
        """The priority of one row."""
        column = self.delivery.columns.priorities
        return 0 if column is None else column[self.index[position]]

    def order(self, position: int) -> tuple[int, int, int]:
        """The sort key of a row among the rows of all segments."""
        return self.ts[position], self.priority(position), self.serial

    def head(self) -> Head:
        """The entry of the segment in the heap."""
        return *self.order(self.position), self

    def end_until(self, ts: int, priority: int, end: int) -> int:
        """The end of the rows that are not after (ts, priority), at most `end`; the range has at least one row."""
        low = bisect_left(self.ts, ts, self.position, end)
        high = bisect_right(self.ts, ts, low, end)
        if self.delivery.columns.priorities is None:
            found = high if priority >= 0 else low
        else:
            found = bisect_right(range(high), priority, low, high, key=self.priority)
        return max(found, self.position + 1)

    def without(self, rows: set[int]) -> tuple[PushRemainder | None, list[int]]:
        """The segment without these row numbers (None when nothing is left), and the removed row numbers."""
        row_at = self.delivery.row_at
        places = self.index[self.position :]
        removed = [row_at(place) for place in places if row_at(place) in rows]
        if not removed:
            return self, removed
        kept = [place for place in places if row_at(place) not in rows]
        return (PushRemainder(self.delivery, kept, self.serial) if kept else None), removed

    def rest(self) -> DeliveryPart:
        """All rows that are left."""
        return DeliveryPart(self.delivery, self.index[self.position :])


@dataclass(frozen=True, slots=True)
class LargeRow:
    """A row that is held and has a large body."""

    segment: PushRemainder
    position: int
    reference: Reference

    @property
    def held(self) -> bool:
        """Whether the row is still held."""
        return self.segment.position <= self.position

    @property
    def delivery(self) -> Delivery:
        """The push that brought the row."""
        return self.segment.delivery

    @property
    def place(self) -> int:
        """The place of the row in the columns of the push."""
        return self.segment.index[self.position]

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.delivery.id_at(self.place)


class PrefetchBuffer:
    """All that a consumer holds: every live lease, and the rows that user code has not seen."""

    def __init__(self) -> None:
        self.grants: dict[int, Grant] = {}
        self._heap: list[Head] = []
        self._serial = 0
        # The leases of the previous session, which the broker sends again with the rows that are left of them.
        self._earlier: dict[int, Grant] = {}

    def reconnect(self) -> None:
        """Begin a new session: the broker may send again rows that are settled from now on."""
        self._earlier = dict(self.grants)

    def push(self, columns: LeaseSet) -> bool:
        """Add a push; returns whether it repeats rows that are held or with user code, which only get their new end."""
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
            fresh = [place for place, row in enumerate(numbers) if not grant.knows(row)]
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
        segment = PushRemainder(delivery, index, self._serial)
        heappush(self._heap, segment.head())

    @property
    def handed_out(self) -> int:
        """How many rows user code has and has not settled."""
        held = sum(len(head[3].index) - head[3].position for head in self._heap)
        return sum(len(grant.unsettled) for grant in self.grants.values()) - held

    @property
    def next_ts(self) -> int | None:
        """When the next row is due."""
        return self._heap[0][0] if self._heap else None

    def take(self, limit: int, *, now: int, latest: int, handed_us: int = 0) -> list[DeliveryPart]:
        """At most `limit` rows that are due at `now`, in order; rows whose lease has ended by `latest` are dropped.

        The rows are marked as handed over at `handed_us` of the broker's clock.
        """
        portions: list[DeliveryPart] = []
        heap = self._heap
        while limit > 0 and heap and heap[0][0] <= now:
            segment = heappop(heap)[3]
            start = segment.position
            end = bisect_right(segment.ts, now, start)
            if heap:
                end = segment.end_until(heap[0][0] + self._order_slack(now), heap[0][1], end)
            end = min(end, start + limit)
            segment.position = end
            if end < len(segment.ts):
                heappush(heap, segment.head())
            portion = DeliveryPart(segment.delivery, segment.index[start:end], handed_us)
            if portion.grant.first_end(portion.rows()) <= latest:
                portion = self._alive(portion, latest)
            if portion:
                portions.append(portion)
                limit -= len(portion)
        return portions

    def _order_slack(self, now: int) -> int:
        """By how much later rows may leave before the next row of another push.

        The broker leases a large backlog in slices that lie between each other. If their rows were merged one by one,
        each row would be settled by itself, which costs ten times as much.
        """
        lateness = now - self._heap[0][0]
        if lateness < _BACKLOG_MS or self._heap[0][3].is_prioritised:
            return 0
        return min(lateness // _LATE_PARTS, _SLACK_MS_MAX)

    def _alive(self, portion: DeliveryPart, latest: int) -> DeliveryPart:
        grant, row_at = portion.grant, portion.delivery.row_at
        ended = [row_at(place) for place in portion.index if grant.end_of(row_at(place)) <= latest]
        grant.lose(ended)
        self.forget_if_settled(grant)
        gone = set(ended)
        kept = [place for place in portion.index if row_at(place) not in gone]
        return DeliveryPart(portion.delivery, kept, portion.handed_us)

    def put_back(self, portion: DeliveryPart) -> None:
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
        """Drop rows that user code has not seen; returns the dropped rows."""
        grant = self.grants.get(lease_id)
        if grant is None:
            return []
        wanted = set(rows)
        removed: list[int] = []
        kept: list[Head] = []
        for head in self._heap:
            segment: PushRemainder | None = head[3]
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

    def empty(self) -> list[DeliveryPart]:
        """Remove and return all rows that user code has not seen."""
        portions = [head[3].rest() for head in self._heap]
        self._heap = []
        return portions

    def forget_if_settled(self, grant: Grant) -> None:
        """Forget a lease that has no rows left in this consumer."""
        if not grant.unsettled and self.grants.get(grant.id) is grant:
            del self.grants[grant.id]


def _in_order(columns: LeaseSet) -> bool:
    keys: Sequence[object] = columns.ts
    if columns.priorities is not None:
        by_time = (columns.ts, columns.priorities)
        keys = list(zip(*(by_time[::-1] if columns.by_priority else by_time), strict=True))
    return keys == sorted(keys)  # type: ignore[type-var]
