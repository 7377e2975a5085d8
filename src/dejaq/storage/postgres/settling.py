"""Settle: a consumer deletes, extends, releases or gives back rows of its lease, each while it holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from dejaq import limits
from dejaq.domain.batch import IdSpan, Outcomes, RowRange, whole
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.v1.journal_pb2 import EventKind
from dejaq.storage.outbox import DELETED, EXTENDED, RECALLED, RELEASED
from dejaq.storage.postgres.change import Change
from dejaq.storage.postgres.keys import bounds_of, spans_of


@dataclass(slots=True)
class Settlement:
    """Which rows of a lease are to be settled, and which of them were held."""

    lease_id: int
    consumer: str
    # The number of each row asked for, and its key.
    rows: list[int]
    keys: list[str]
    outcomes: Outcomes
    # The places, among those asked for, of the rows that were held.
    held: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, lease_id: int, consumer: str, ranges: Sequence[RowRange] | None, keys: Sequence[str] | None
    ) -> Settlement:
        """A settlement of ranges of rows; `keys` are the lease's by row number, None where it is forgotten."""
        if keys is None:
            # Where all rows were asked for and their number is forgotten, row 0 says so.
            asked = [(0, 1)] if ranges is None else whole(ranges, limits.LEASE_ROWS_MAX)
            lost = {row: Code.LEASE_LOST for start, end in asked for row in range(start, end)}
            return cls(lease_id, consumer, [], [], Outcomes(max(lost, default=-1) + 1, lost))
        rows = [row for start, end in whole(ranges, len(keys)) for row in range(start, end)]
        return cls(lease_id, consumer, rows, [keys[row] for row in rows], Outcomes(len(keys)))

    def found(self, records: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
        """Take note of the rows that were held, in the order asked for; the others are lost."""
        found = sorted(records, key=lambda record: record["place"])
        self.held = [record["place"] for record in found]
        if len(found) < len(self.rows):
            places = set(self.held)
            lost = [row for place, row in enumerate(self.rows) if place not in places]
            self.outcomes.codes.update(dict.fromkeys(lost, Code.LEASE_LOST))
        return found

    def end(self, change: Change) -> None:
        """The rows that were held have left the lease."""
        if self.held:
            change.settled(self.lease_id, len(self.held))

    def tell(
        self,
        change: Change,
        kind: EventKind,
        *,
        places: Sequence[int] | None = None,
        expires: int = 0,
        ts: Sequence[int] = (),
        handed_us: Sequence[int] = (),
    ) -> None:
        """Tell the journal of the rows that were held, or of those at `places`."""
        told = self.held if places is None else places
        if change.outbox is None or not told:
            return
        if len(handed_us) > 1:
            handed_us = [handed_us[place] if place < len(handed_us) else 0 for place in told]
        change.outbox.settled(
            kind,
            change.topic.name,
            consumer=self.consumer,
            lease_id=self.lease_id,
            spans=spans_of([self.keys[place] for place in told]),
            expires=expires,
            ts=ts,
            handed_us=handed_us,
        )


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows of one lease that are to be deleted."""

    lease_id: int
    spans: Sequence[IdSpan]
    handed_us: Sequence[int]

    @property
    def count(self) -> int:
        """How many rows."""
        return sum(span.count for span in self.spans)


class NotHeld(DejaqError):
    """Not every row is held: they must be looked at one by one."""


async def delete_all(change: Change, consumer: str, removals: Sequence[Removal]) -> int:
    """Remove rows that are all held, in one statement that commits by itself; the size of its record.

    Raises `NotHeld`, and removes nothing, where one of them is not.
    """
    link, outbox, entry = change.link, change.outbox, None
    firsts: list[str] = []
    lasts: list[str] = []
    leases: list[int] = []
    counts: Counter[int] = Counter()
    for one in removals:
        first, last = bounds_of(one.spans)
        firsts, lasts, leases = firsts + first, lasts + last, leases + [one.lease_id] * len(first)
        counts[one.lease_id] += one.count
        if outbox is not None:
            name, handed_us = change.topic.name, one.handed_us
            outbox.settled(
                DELETED, name, consumer=consumer, lease_id=one.lease_id, spans=one.spans, handed_us=handed_us
            )
    if outbox is not None:
        entry = outbox.take(change.now)
    link.changes += 1
    try:
        await link.value(
            "delete_all",
            change.topic.number,
            firsts,
            lasts,
            leases,
            consumer,
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
        raise NotHeld from None
    return len(entry[1]) if entry is not None else 0


async def delete(change: Change, settlement: Settlement, handed_us: Sequence[int]) -> None:
    """Remove the rows that are held."""
    gone = settlement.found(await change.link.fetch("delete", *asked_of(change, settlement)))
    change.left([record["ts"] for record in gone], _owners(gone), held=True)
    settlement.tell(change, DELETED, handed_us=handed_us)
    settlement.end(change)


async def extend(change: Change, settlement: Settlement, expires: int) -> None:
    """Move the end of the rows that are held, never to an earlier time."""
    held = settlement.found(await change.link.fetch("extend", *asked_of(change, settlement), expires))
    moved = [record for record in held if record["ts"] < expires]
    change.left([record["ts"] for record in moved], _owners(moved), held=True)
    change.arrived([expires] * len(moved), _owners(moved), held=True)
    settlement.tell(change, EXTENDED, places=[record["place"] for record in moved], expires=expires)


async def release(change: Change, settlement: Settlement, ts: int | Sequence[int], handed_us: Sequence[int]) -> None:
    """Put the rows that are held at `ts`."""
    check_times(settlement, ts)
    count = len(settlement.rows)
    times = [ts] * count if isinstance(ts, int) else list(ts[:count])
    found = settlement.found(await change.link.fetch("release", *asked_of(change, settlement), times))
    _moved(change, found)
    told = [ts] if isinstance(ts, int) else [record["new_ts"] for record in found]
    settlement.tell(change, RELEASED, ts=told, handed_us=handed_us)
    settlement.end(change)


def check_times(settlement: Settlement, ts: int | Sequence[int]) -> None:
    """Raise INVALID_ARGUMENT where there is not one time for each row."""
    count = len(settlement.rows)
    if count and not isinstance(ts, int) and len(ts) != count:
        raise error_of(Code.INVALID_ARGUMENT, f"{len(ts)} times for {count} rows to release")


async def lock(change: Change, settlement: Settlement) -> None:
    """See which rows are held, and keep them so."""
    settlement.found(await change.link.fetch("lock_held", *asked_of(change, settlement)))


async def recall(change: Change, settlement: Settlement) -> None:
    """Put the rows that are held back as they were before the lease."""
    _moved(change, settlement.found(await change.link.fetch("recall", *asked_of(change, settlement))))
    settlement.tell(change, RECALLED)
    settlement.end(change)


def asked_of(change: Change, settlement: Settlement) -> tuple[object, ...]:
    """What every settling statement begins with: the rows, and on what condition they are taken."""
    return (change.topic.number, settlement.keys, settlement.lease_id, settlement.consumer, change.now)


def _moved(change: Change, records: Sequence[asyncpg.Record]) -> None:
    change.left([record["ts"] for record in records], _owners(records), held=True)
    change.arrived([record["new_ts"] for record in records], _owners(records), held=False)


def _owners(records: Sequence[asyncpg.Record]) -> list[str]:
    return [record["owner"] for record in records]
