"""The leases of a topic at one instant, for a query that works in steps while they change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dejaq.domain.message import Status
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import Filter
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# So few leases are copied in one step at the end.
_LAST_LEASES = 128
# Where leases change faster than they are copied, more of them are left to the end after so many rounds.
_ROUNDS_MAX = 8


@dataclass(frozen=True, slots=True)
class CopiedLease:
    """A lease: the parts with the columns of their runs, and the rows of each end."""

    id: int
    consumer: str
    # A run may forget the columns of rows that leave, so the columns of this instant are kept here.
    parts: list[tuple[LeasePart, records.Run]]
    terms: dict[int, int]

    @classmethod
    def of(cls, lease: LeaseState) -> CopiedLease:
        """The lease as it is now."""
        return cls(lease.id, lease.consumer, [(part, part.run.record) for part in lease.parts], lease.terms.copy())

    @property
    def rows(self) -> int:
        """The rows that remain in it."""
        mask = 0
        for rows in self.terms.values():
            mask |= rows
        return mask


class LeaseReading:
    """Copies every lease of a topic, expired ones included, in short steps; `taken` is exact as of its own moment.

    What changes after it was copied is copied again, the last few leases in the step of `taken`.
    """

    def __init__(self, state: TopicState) -> None:
        self._book = state.leases
        self._copies: dict[int, CopiedLease] = {}
        self._changed = self._book.watch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._book.unwatch(self._changed)

    async def read(self, pace: QueryPace) -> None:
        """Copy all of them, and again those that change meanwhile; other tasks run meanwhile."""
        waiting = self._book.ids
        for _ in range(_ROUNDS_MAX):
            for lease_id in waiting:
                self._copy(lease_id)
                await pace.rest()
            if len(self._changed) <= _LAST_LEASES:
                return
            waiting = list(self._changed)
            self._changed.clear()

    def taken(self) -> list[CopiedLease]:
        """Every lease as it is now."""
        for lease_id in self._changed:
            self._copy(lease_id)
        self._changed.clear()
        return list(self._copies.values())

    def _copy(self, lease_id: int) -> None:
        lease = self._book.get(lease_id)
        if lease is None:
            self._copies.pop(lease_id, None)
        else:
            self._copies[lease_id] = CopiedLease.of(lease)


class LeasedRows:
    """The leased rows of runs; of a run they are found when it is read."""

    def __init__(self) -> None:
        # Of each run, its parts of leases, each with the rows that remain in the lease.
        self._parts: dict[bytes, list[tuple[LeasePart, int]]] = {}
        self._rows: dict[bytes, int] = {}

    def add(self, lease: CopiedLease) -> None:
        """Add what remains in a lease."""
        rows = lease.rows
        for part, _ in lease.parts:
            self._parts.setdefault(part.run.key, []).append((part, rows))

    def of(self, key: bytes) -> int:
        """The leased rows of a run, as a mask."""
        mask = self._rows.get(key)
        if mask is None:
            mask = 0
            for part, rows in self._parts.get(key, ()):
                mask |= part.in_run(rows)
            self._rows[key] = mask
        return mask


@dataclass(frozen=True, slots=True)
class Term:
    """Rows of a lease that end at the same time."""

    expires: int
    lease: CopiedLease
    rows: int


async def matching_terms(leases: Sequence[CopiedLease], where: Filter, now: int, pace: QueryPace) -> list[Term]:
    """The leased rows that match the filter, except for the owner; other tasks run meanwhile."""
    if where.status is Status.WAITING:
        return []
    found: list[Term] = []
    for lease in leases:
        if where.consumer is None or lease.consumer == where.consumer:
            for expires, rows in lease.terms.items():
                status = Status.AVAILABLE if expires <= now else Status.PROCESSING
                if where.start <= expires < where.end and where.status in (None, status):
                    found.append(Term(expires, lease, rows))
        await pace.rest()
    return found


def rows_between(part: LeasePart, record: records.Run, start_ms: int, end_ms: int) -> int:
    """The rows of the run with start_ms <= ts < end_ms, as a mask; at least those of the part are examined."""
    ts = record.ts
    end = part.end
    if len(ts) < end:
        # The run has gone: every row of it has left.
        return 0
    if part.run.by_priority:
        rows = range(part.start, end)
        return masks.of_ranges((row, row + 1) for row in rows if start_ms <= ts[row] < end_ms)
    low = bisect_left(ts, start_ms, part.start, end)
    high = bisect_left(ts, end_ms, part.start, end)
    return masks.span(low, high) if high > low else 0
