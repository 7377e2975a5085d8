"""What a consumer holds: leases, and the columns of rows that came under them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dejaq.domain.batch import LeaseSet, RowRange
from dejaq.errors import DejaqError
from dejaq.sdk.row_set import RowSet


class Grant:
    """One lease: the rows of it that are not settled, held here or by user code, and when it ends."""

    __slots__ = ("_settled", "ends", "expires", "id", "total", "unsettled")

    def __init__(self, lease_id: int, *, expires: int, total: int | None) -> None:
        self.id = lease_id
        self.expires = expires
        # How many rows the whole lease has; None when only what was left of it came here.
        self.total = total
        self.unsettled = RowSet()
        # Rows whose end is not that of the lease.
        self.ends: dict[int, int] = {}
        self._settled: list[Sequence[int]] = []

    def settle(self, rows: Sequence[int]) -> None:
        """Note the broker's answer that rows were settled, or lost."""
        self.unsettled.difference_update(rows)
        self._settled.append(rows)

    def settled(self) -> set[int]:
        """The rows of which the broker has answered that they were settled, or lost."""
        return set().union(*self._settled)

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
        """Rows that are no longer ours: their lease has ended."""
        for row in rows:
            self.ends[row] = 0
            self.unsettled.discard(row)

    def ending_before(self, ts: int) -> list[int]:
        """The unsettled rows whose lease ends before `ts`, in order."""
        if not self.ends:
            return sorted(self.unsettled) if self.expires < ts else []
        return sorted(row for row in self.unsettled if self.end_of(row) < ts)

    def ranges(self, rows: Sequence[int]) -> list[int]:
        """Row numbers in order as pairs of start and end.

        Also where they are the whole lease, which the protocol allows to leave out: a broker that has forgotten the
        lease could not say how many rows its LEASE_LOST is about.
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
    """The columns of one push, and the lease they came under. Ids are made when they are asked for."""

    __slots__ = ("_ids", "ahead", "columns", "grant")

    def __init__(self, columns: LeaseSet, grant: Grant) -> None:
        self.columns = columns
        self.grant = grant
        self._ids: list[str] | None = None
        # Large bodies that are fetched before their rows are due, by place.
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
        """The number under which the lease knows a row."""
        return index if self.columns.rows is None else self.columns.rows[index]


@dataclass(frozen=True, slots=True)
class Portion:
    """Some rows of one delivery, by their places in its columns, and when user code got them (0: not yet).

    `fetched` has the large bodies among them, by place, or why one could not be had.
    """

    delivery: Delivery
    index: Sequence[int]
    handed_us: int = 0
    fetched: Mapping[int, bytes | DejaqError] | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def grant(self) -> Grant:
        """The lease they are under."""
        return self.delivery.grant

    def rows(self) -> Sequence[int]:
        """The row numbers, in the order of the places."""
        numbers = self.delivery.columns.rows
        return self.index if numbers is None else [numbers[place] for place in self.index]
