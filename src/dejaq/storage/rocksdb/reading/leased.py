"""The leases of a topic at one instant, for a query that works in steps while they change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dejaq.domain.message import Status
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import Filter
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


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


def copied_leases(state: TopicState) -> list[CopiedLease]:
    """Every lease, expired ones included, as it is now."""
    return [CopiedLease.of(lease) for lease in state.leases]


def matching_terms(leases: Sequence[CopiedLease], where: Filter, now: int) -> Iterator[tuple[CopiedLease, int, int]]:
    """(lease, its end, rows) of the leased rows that match the filter, except for the owner."""
    if where.status is Status.WAITING:
        return
    for lease in leases:
        if where.consumer is not None and lease.consumer != where.consumer:
            continue
        for expires, rows in lease.terms.items():
            status = Status.AVAILABLE if expires <= now else Status.PROCESSING
            if where.start <= expires < where.end and where.status in (None, status):
                yield lease, expires, rows


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
