"""Settle: a consumer deletes, extends, releases or recalls rows of its lease, each while it holds the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from dejaq import limits
from dejaq.domain.batch import IdSpan, Outcomes, RowRange, whole
from dejaq.errors import Code, error_of
from dejaq.protocol.v1.journal_pb2 import EventKind
from dejaq.storage.outbox import DELETED, EXTENDED, RECALLED, RELEASED
from dejaq.storage.postgres.joint_calls import NotTogether
from dejaq.storage.postgres.keys import bounds_of, spans_of
from dejaq.storage.postgres.operations.change import TopicTransaction


@dataclass(slots=True, eq=False)
class RowsToSettle:
    """The rows of a lease that are settled, and which of them the consumer held."""

    lease_id: int
    consumer: str
    # The number of each requested row, and its key.
    rows: list[int]
    keys: list[str]
    outcomes: Outcomes
    # The places, among the requested rows, of the rows that were held.
    held: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, lease_id: int, consumer: str, ranges: Sequence[RowRange] | None, keys: Sequence[str] | None
    ) -> RowsToSettle:
        """A settlement of ranges of rows; `keys` are the lease's by row number, None when the lease is forgotten."""
        if keys is None:
            # When all rows were requested and their number is forgotten, only row 0 has the outcome.
            asked = [(0, 1)] if ranges is None else whole(ranges, limits.LEASE_ROWS_MAX)
            lost = {row: Code.LEASE_LOST for start, end in asked for row in range(start, end)}
            return cls(lease_id, consumer, [], [], Outcomes(max(lost, default=-1) + 1, lost))
        rows = [row for start, end in whole(ranges, len(keys)) for row in range(start, end)]
        return cls(lease_id, consumer, rows, [keys[row] for row in rows], Outcomes(len(keys)))

    def found(self, records: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
        """Record the rows that were held, in the requested order; the others are lost."""
        found = sorted(records, key=lambda record: record["place"])
        self.hold([record["place"] for record in found])
        return found

    def hold(self, places: list[int]) -> None:
        """Record the places of the rows that were held; the others are lost."""
        self.held = places
        if len(places) < len(self.rows):
            held = set(places)
            lost = [row for place, row in enumerate(self.rows) if place not in held]
            self.outcomes.codes.update(dict.fromkeys(lost, Code.LEASE_LOST))

    def end(self, change: TopicTransaction) -> None:
        """Record that the rows that were held have left the lease."""
        if self.held:
            change.settled(self.lease_id, len(self.held))

    def record(
        self,
        change: TopicTransaction,
        kind: EventKind,
        *,
        places: Sequence[int] | None = None,
        expires: int = 0,
        ts: Sequence[int] = (),
        handed_us: Sequence[int] = (),
    ) -> None:
        """Record in the journal the rows that were held, or those at `places`."""
        recorded = self.held if places is None else places
        if change.outbox is None or not recorded:
            return
        if len(handed_us) > 1:
            handed_us = [handed_us[place] if place < len(handed_us) else 0 for place in recorded]
        change.outbox.settled(
            kind,
            change.topic.name,
            consumer=self.consumer,
            lease_id=self.lease_id,
            spans=spans_of([self.keys[place] for place in recorded]),
            expires=expires,
            ts=ts,
            handed_us=handed_us,
        )


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows of one lease to delete."""

    lease_id: int
    consumer: str
    spans: Sequence[IdSpan]
    handed_us: Sequence[int]
    # How many rows the lease had at first.
    lease_rows: int

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(span.count for span in self.spans)


async def delete_all(change: TopicTransaction, removals: Sequence[Removal]) -> int:
    """Remove rows that are all held, in one statement that commits by itself; returns the size of its record.

    Raises `NotTogether`, and removes nothing, when one of them is not held.
    """
    link, outbox, entry = change.link, change.outbox, None
    firsts: list[str] = []
    lasts: list[str] = []
    leases: list[int] = []
    consumers: list[str] = []
    counts: Counter[int] = Counter()
    for one in removals:
        first, last = bounds_of(one.spans)
        firsts += first
        lasts += last
        leases += [one.lease_id] * len(first)
        consumers += [one.consumer] * len(first)
        counts[one.lease_id] += one.count
        if outbox is not None:
            name, handed_us = change.topic.name, one.handed_us
            outbox.settled(
                DELETED, name, consumer=one.consumer, lease_id=one.lease_id, spans=one.spans, handed_us=handed_us
            )
    if outbox is not None:
        entry = outbox.take(change.now, change.context.principal)
    link.changes += 1
    try:
        await link.value(
            "delete_all",
            change.topic.number,
            firsts,
            lasts,
            leases,
            consumers,
            change.now,
            change.origin,
            [entry[1]] if entry is not None else [],
            link.shard,
            list(counts),
            list(counts.values()),
            link.writer,
            link.changes,
            counts.total(),
        )
    except asyncpg.InvalidTextRepresentationError:
        raise NotTogether from None
    return len(entry[1]) if entry is not None else 0


async def delete(change: TopicTransaction, settlement: RowsToSettle, handed_us: Sequence[int]) -> None:
    """Remove the rows that are held."""
    gone = settlement.found(await change.link.fetch("delete", *asked_of(change, settlement)))
    change.left([record["ts"] for record in gone], _owners(gone), held=True)
    settlement.record(change, DELETED, handed_us=handed_us)
    settlement.end(change)


async def extend(change: TopicTransaction, settlement: RowsToSettle, expires: int) -> None:
    """Move the end of the rows that are held, never to an earlier time."""
    held = settlement.found(await change.link.fetch("extend", *asked_of(change, settlement), expires))
    moved = [record for record in held if record["ts"] < expires]
    change.left([record["ts"] for record in moved], _owners(moved), held=True)
    change.arrived([expires] * len(moved), _owners(moved), held=True)
    settlement.record(change, EXTENDED, places=[record["place"] for record in moved], expires=expires)


async def release(
    change: TopicTransaction, settlement: RowsToSettle, ts: int | Sequence[int], handed_us: Sequence[int]
) -> None:
    """Put the rows that are held at `ts`."""
    check_times(settlement, ts)
    count = len(settlement.rows)
    times = [ts] * count if isinstance(ts, int) else list(ts[:count])
    found = settlement.found(await change.link.fetch("release", *asked_of(change, settlement), times))
    _moved(change, found)
    times = [ts] if isinstance(ts, int) else [record["new_ts"] for record in found]
    settlement.record(change, RELEASED, ts=times, handed_us=handed_us)
    settlement.end(change)


def check_times(settlement: RowsToSettle, ts: int | Sequence[int]) -> None:
    """Raise INVALID_ARGUMENT unless there is one time per row."""
    count = len(settlement.rows)
    if count and not isinstance(ts, int) and len(ts) != count:
        raise error_of(Code.INVALID_ARGUMENT, f"{len(ts)} times for {count} rows to release")


async def lock(change: TopicTransaction, settlement: RowsToSettle) -> None:
    """Find the rows that are held, and lock them."""
    settlement.found(await change.link.fetch("lock_held", *asked_of(change, settlement)))


async def recall(change: TopicTransaction, *settlements: tuple[RowsToSettle, int | None]) -> None:
    """Put the rows that are held back into the state before the lease; where an end is given, those with this end."""
    every = [(one, place) for one, _ in settlements for place in range(len(one.rows))]
    records = await change.link.fetch(
        "recall",
        change.topic.number,
        [one.keys[place] for one, place in every],
        [one.lease_id for one, _ in every],
        [one.consumer for one, _ in every],
        change.now,
        [expires for one, expires in settlements for _ in one.rows],
    )
    _moved(change, records)
    held = {every[record["place"]] for record in records}
    for one, _ in settlements:
        one.hold([place for place in range(len(one.rows)) if (one, place) in held])
        one.record(change, RECALLED)
        one.end(change)


def asked_of(change: TopicTransaction, settlement: RowsToSettle) -> tuple[object, ...]:
    """The first arguments of every settling statement: the rows, and the condition on them."""
    return (change.topic.number, settlement.keys, settlement.lease_id, settlement.consumer, change.now)


def _moved(change: TopicTransaction, records: Sequence[asyncpg.Record]) -> None:
    change.left([record["ts"] for record in records], _owners(records), held=True)
    change.arrived([record["new_ts"] for record in records], _owners(records), held=False)


def _owners(records: Sequence[asyncpg.Record]) -> list[str]:
    return [record["owner"] for record in records]
