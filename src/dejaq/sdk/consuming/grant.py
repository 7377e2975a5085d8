"""The leases that a consumer holds, and the columns of rows that it received under them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import ReferenceType, ref

from dejaq.domain.batch import IdSpan, LeaseSet, RowRange
from dejaq.domain.row_set import RowSet
from dejaq.errors import DejaqError

# When so small a part of a lease's rows is left, each row that user code holds is copied out of the push.
COPY_SHARE = 8


class Detachable(Protocol):
    """A view of one row, which can keep its own copy of it."""

    def _detach(self) -> None:
        """Hold nothing of the push any more."""


class Grant:
    """One lease: its rows that are not settled, held in the buffer or by user code, and its end.

    User code may keep one message of a push for hours. So that it does not keep the others in memory, the views that
    user code has of single rows are copied when most rows of the lease are settled.
    """

    __slots__ = ("_gone", "_views", "ends", "expires", "id", "total", "unsettled")

    def __init__(self, lease_id: int, *, expires: int, total: int | None) -> None:
        self.id = lease_id
        self.expires = expires
        # How many rows the whole lease has; None when this session received only the rows that were left of it.
        self.total = total
        self.unsettled = RowSet()
        # The ends of rows whose end differs from that of the lease.
        self.ends: dict[int, int] = {}
        self._gone = RowSet()
        self._views: list[ReferenceType[Detachable]] = []

    def settle(self, rows: Sequence[int]) -> None:
        """Record the broker's answer that rows were settled or lost."""
        self.unsettled.difference_update(rows)
        self._gone.update(rows)
        if self._views and COPY_SHARE * len(self.unsettled) <= len(self._gone):
            views, self._views = self._views, []
            for view in views:
                if (found := view()) is not None:
                    found._detach()

    def viewed(self, view: Detachable) -> None:
        """User code has got a view of one of the rows."""
        self._views.append(ref(view))

    def knows(self, row: int) -> bool:
        """Whether a row is here, or the broker reported it as settled or lost."""
        return row in self.unsettled or row in self._gone

    def settled_here(self, row: int) -> bool:
        """Whether this consumer settled a row, as opposed to having lost its lease."""
        return row not in self.unsettled and self.ends.get(row) != 0

    def end_of(self, row: int) -> int:
        """When the lease of a row ends, in UTC ms."""
        return self.ends.get(row, self.expires)

    def first_end(self, rows: Sequence[int]) -> int:
        """When the first of `rows` ends."""
        return min(map(self.end_of, rows)) if self.ends else self.expires

    def move_end(self, rows: Iterable[int], expires: int) -> None:
        """Set the end of rows."""
        moved = set(rows)
        if moved.issuperset(self.unsettled):
            self.expires = expires
            for row in moved:
                self.ends.pop(row, None)
        else:
            self.ends.update(dict.fromkeys(moved, expires))

    def lose(self, rows: Iterable[int]) -> None:
        """Mark rows as lost: their lease has ended."""
        for row in rows:
            self.ends[row] = 0
            self.unsettled.discard(row)

    def ending_before(self, ts: int) -> list[int]:
        """The unsettled rows whose lease ends before `ts`, in order."""
        if not self.ends:
            return sorted(self.unsettled) if self.expires < ts else []
        return sorted(row for row in self.unsettled if self.end_of(row) < ts)

    def ranges(self, rows: Sequence[int]) -> list[int]:
        """Ascending row numbers as pairs of start and end.

        The pairs are given also for a whole lease, although the protocol allows to leave them out: a broker that has
        forgotten the lease could not say how many rows its LEASE_LOST is about.
        """
        return [edge for pair in ranges_of(rows) for edge in pair]


def ranges_of(rows: Sequence[int]) -> list[RowRange]:
    """Ascending row numbers as half-open ranges."""
    if isinstance(rows, range) and rows.step == 1:
        return [(rows.start, rows.stop)] if rows else []
    ranges: list[RowRange] = []
    start = end = -1
    for row in rows:
        if row != end:
            if end > start:
                ranges.append((start, end))
            start = row
        end = row + 1
    if end > start:
        ranges.append((start, end))
    return ranges


class Delivery:
    """The columns of one push and their lease. Ids are computed when they are first used."""

    __slots__ = ("_ids", "ahead", "columns", "grant")

    def __init__(self, columns: LeaseSet, grant: Grant) -> None:
        self.columns = columns
        self.grant = grant
        self._ids: list[str] | None = None
        # Large bodies that were fetched before their rows are due, by place.
        self.ahead: dict[int, asyncio.Future[bytes]] = {}

    def id_at(self, index: int) -> str:
        """The id of one row."""
        spans = self.columns.spans
        if self._ids is None and len(spans) == 1 and spans[0].ids is None:
            return f"{spans[0].prefix}{spans[0].first + index:08x}"
        return self.ids()[index]

    def ids(self) -> list[str]:
        """The id of every row."""
        if self._ids is None:
            self._ids = self.columns.ids()
        return self._ids

    def row_at(self, index: int) -> int:
        """The row number in the lease."""
        return index if self.columns.rows is None else self.columns.rows[index]

    def only(self, index: int) -> Delivery:
        """A delivery of one row alone, which keeps nothing of the others in memory."""
        columns = self.columns
        row = LeaseSet(
            columns.lease_id,
            columns.consumer,
            columns.expires,
            spans=[IdSpan(1, ids=[self.id_at(index)])],
            ts=[columns.ts[index]],
            bodies=[columns.bodies[index]],
            attempts=None if columns.attempts is None else [columns.attempts[index]],
            priorities=None if columns.priorities is None else [columns.priorities[index]],
            headers=None if columns.headers is None else [columns.headers[index]],
            rows=[self.row_at(index)],
            by_priority=columns.by_priority,
            large=columns.large,
        )
        return Delivery(row, self.grant)


@dataclass(frozen=True, slots=True)
class DeliveryPart:
    """Some rows of one delivery, by their places in its columns, and when user code got them (0: not yet).

    `fetched` has the large bodies of these rows by place, or the error of a body that could not be read.
    """

    delivery: Delivery
    index: Sequence[int]
    handed_us: int = 0
    fetched: Mapping[int, bytes | DejaqError] | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def grant(self) -> Grant:
        """The lease of the rows."""
        return self.delivery.grant

    def rows(self) -> Sequence[int]:
        """The row numbers, in the order of the places."""
        numbers = self.delivery.columns.rows
        return self.index if numbers is None else [numbers[place] for place in self.index]
