"""What one consumer holds: rows and bytes under live leases, counted by lease set and not by message.

The store decides who holds what; this is the broker's estimate of it, for flow control.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from heapq import heapify, heappop, heappush
from operator import or_

from dejaq.domain.batch import LeaseSet, RowRange
from dejaq.domain.bodies.body_block import body_bytes

_STALE_MAX = 1_000
# So many ends of extensions without an answer are remembered for each lease set.
_PENDING_MAX = 8


@dataclass(slots=True)
class _HeldSet:
    """One lease set: the mask of the rows that are left, by the time their lease ends."""

    rows: int
    size: int
    ends: dict[int, int]
    # When the last of its rows was both with the client and due.
    due_ms: int = 0
    # A time before which none of its rows is due.
    first_ms: int | None = None
    # The ends that extensions without an answer may have given to rows.
    pending: list[int] = field(default_factory=list)

    def left(self) -> int:
        """How many rows are left."""
        return sum(mask.bit_count() for mask in self.ends.values())

    def drop(self, mask: int) -> None:
        """Forget rows."""
        for expires in list(self.ends):
            rest = self.ends[expires] & ~mask
            if rest:
                self.ends[expires] = rest
            else:
                del self.ends[expires]


class Inflight:
    """The lease sets of one consumer."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        # The buckets that the rows may belong to; None when they may belong to any.
        self.buckets: set[int] | None = set()
        self._held: dict[int, _HeldSet] = {}
        self._expiries: list[tuple[int, int]] = []

    def __contains__(self, lease_id: int) -> bool:
        return lease_id in self._held

    def add(self, lease: LeaseSet, now: int = 0) -> None:
        """Count a lease set that is about to be pushed, at `now`."""
        numbers = lease.rows
        mask = (1 << len(lease)) - 1 if numbers is None else mask_of((row, row + 1) for row in numbers)
        size = body_bytes(lease.bodies)
        held = self._held.get(lease.lease_id)
        if held is None:
            held = self._held[lease.lease_id] = _HeldSet(rows=0, size=0, ends={})
        # What is left of one lease may come back in parts, one for each end that its rows have.
        held.ends[lease.expires] = held.ends.get(lease.expires, 0) | mask
        held.due_ms = max(held.due_ms, now, lease.ts[-1] if lease.ts else 0)
        first_ms = min(lease.ts, default=0)
        held.first_ms = first_ms if held.first_ms is None else min(held.first_ms, first_ms)
        held.rows += len(lease)
        held.size += size
        self._note(lease.expires, lease.lease_id)
        self.rows += len(lease)
        self.bytes += size

    def settle(self, lease_id: int, mask: int | None) -> None:
        """Stop counting rows that are no longer held; None for all of them."""
        held = self._held.get(lease_id)
        if held is None:
            return
        if mask is None:
            self._forget(lease_id)
            return
        before = held.left()
        held.drop(mask)
        after = held.left()
        self.rows -= before - after
        self.bytes -= _share(held, before) - _share(held, after)
        if not after:
            del self._held[lease_id]

    def extending(self, lease_id: int, expires: int) -> None:
        """The storage is asked to move the end of rows; it may have done so before it answers."""
        held = self._held.get(lease_id)
        if held is not None:
            held.pending = [*held.pending, expires][-_PENDING_MAX:]

    def extend(self, lease_id: int, mask: int | None, expires: int) -> None:
        """Move the end of rows that are still held, never to an earlier time; None for all of them."""
        held = self._held.get(lease_id)
        if held is None:
            return
        if expires in held.pending:
            held.pending.remove(expires)
        sooner = [rows if mask is None else rows & mask for end, rows in held.ends.items() if end < expires]
        moved = reduce(or_, sooner, 0)
        if moved:
            held.drop(moved)
            held.ends[expires] = held.ends.get(expires, 0) | moved
            self._note(expires, lease_id)

    def ends_of(self, lease_id: int, mask: int | None) -> list[int]:
        """The ends that the lease of these rows may have, None for all rows; none when they are not held."""
        held = self._held.get(lease_id)
        if held is None:
            return []
        ends = [end for end, rows in held.ends.items() if mask is None or rows & mask]
        return [*ends, *held.pending] if ends else []

    def expire(self, now: int) -> int:
        """Stop counting what has expired by `now`; says how many rows that were."""
        before = self.rows
        while self._expiries and self._expiries[0][0] <= now:
            expires, lease_id = heappop(self._expiries)
            held = self._held.get(lease_id)
            mask = held.ends.get(expires) if held is not None else None
            if mask:
                self.settle(lease_id, mask)
        return before - self.rows

    def due_ms(self, lease_id: int) -> int | None:
        """When the rows of a lease set had all come and were due."""
        held = self._held.get(lease_id)
        return None if held is None else held.due_ms

    def first_ms(self, lease_id: int) -> int:
        """A time before which no row of a lease set was due; 0 where it is not known."""
        held = self._held.get(lease_id)
        return 0 if held is None else held.first_ms or 0

    def overdue(self, before: int) -> list[tuple[int, int]]:
        """(lease, mask of the rows that are left) of what has been due since `before` or longer, the newest first."""
        late = [(lease, held) for lease, held in self._held.items() if held.due_ms <= before]
        return [(lease, _all(held)) for lease, held in reversed(late)]

    def next_expiry(self) -> int | None:
        """A time before which nothing expires."""
        return self._expiries[0][0] if self._expiries else None

    def _note(self, expires: int, lease_id: int) -> None:
        heappush(self._expiries, (expires, lease_id))
        # Settled leases leave their entries behind; with long leases these would accumulate.
        if len(self._expiries) > 2 * len(self._held) + _STALE_MAX:
            self._expiries = [(end, lease) for lease, held in self._held.items() for end in held.ends]
            heapify(self._expiries)

    def _forget(self, lease_id: int) -> None:
        held = self._held.pop(lease_id, None)
        if held is not None:
            left = held.left()
            self.rows -= left
            self.bytes -= _share(held, left)


def _all(held: _HeldSet) -> int:
    return reduce(or_, held.ends.values(), 0)


def _share(held: _HeldSet, left: int) -> int:
    return held.size * left // held.rows


def mask_of(ranges: Iterable[RowRange]) -> int:
    """Rows as the bits of one integer."""
    mask = 0
    for start, end in ranges:
        mask |= ((1 << (end - start)) - 1) << start
    return mask


def rows_in(mask: int) -> list[int]:
    """The rows that are set in a mask."""
    return [row for row in range(mask.bit_length()) if mask >> row & 1]
