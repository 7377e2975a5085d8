"""Settle: a consumer deletes, extends, releases or gives back rows of its lease."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from dejaq.domain.batch import Deletion, Outcomes, RowRange, whole
from dejaq.domain.transitions import Standing, decide_by_consumer
from dejaq.errors import Code, error_of
from dejaq.protocol.v1.journal_pb2 import EventKind
from dejaq.storage.outbox import DELETED, EXTENDED, RECALLED, RELEASED
from dejaq.storage.rocksdb import masks
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.image import Draft, Image
from dejaq.storage.rocksdb.lease import Lease, Part


class Settlement:
    """One settlement: which of the asked rows its consumer still holds, and what is to be said of the others."""

    def __init__(self, image: Image, lease_id: int, consumer: str, ranges: Sequence[RowRange] | None, now: int) -> None:
        self.image = image
        self.lease = image.leases.get(lease_id)
        if self.lease is None:
            count = max((end for _, end in ranges), default=0) if ranges is not None else 1
            self.asked = whole(ranges, count)
        else:
            self.asked = whole(ranges, self.lease.count)
        asked = masks.of_ranges(self.asked)
        self.held = _held(self.lease, consumer, asked, now)
        refused = asked & ~self.held
        self.outcomes = Outcomes(asked.bit_length(), dict.fromkeys(masks.rows(refused), Code.LEASE_LOST))

    def tell(
        self,
        kind: EventKind,
        *,
        expires: int = 0,
        ts: int | Mapping[int, int] = 0,
        handed_us: Sequence[int] = (),
    ) -> None:
        """Tell the journal what becomes of the held rows; before it is done, while their ids are at hand."""
        image, lease = self.image, self.lease
        if image.outbox is None or lease is None:
            return
        rows = list(masks.rows(self.held)) if isinstance(ts, Mapping) or len(handed_us) > 1 else []
        times = [ts[row] for row in rows] if isinstance(ts, Mapping) else [ts] if ts else []
        if len(handed_us) > 1:
            asked = [row for start, end in self.asked for row in range(start, end)]
            handed = dict(zip(asked, handed_us, strict=False))
            handed_us = [handed.get(row, 0) for row in rows]
        image.outbox.settled(
            kind,
            image.topic.name,
            consumer=lease.consumer,
            lease_id=lease.id,
            spans=image.spans(lease, self.held),
            expires=expires,
            ts=times,
            handed_us=handed_us,
        )

    def named(self) -> Iterator[tuple[int, str]]:
        """Each row asked for that is held, with its id."""
        if self.lease is None:
            return
        ids: dict[int, str] = {}
        for part, rows in self.parts():
            for row in masks.rows(rows):
                ids[part.offset + row - part.start] = part.run.id_at(row)
        for start, end in self.asked:
            yield from ((row, ids[row]) for row in range(start, end) if row in ids)

    def parts(self) -> Iterator[tuple[Part, int]]:
        """Each part with rows to change, and those rows as a mask of its run."""
        assert self.lease is not None
        for part in self.lease.parts:
            rows = part.in_run(self.held)
            if rows:
                yield part, rows


def _held(lease: Lease | None, consumer: str, asked: int, now: int) -> int:
    """The asked rows whose live lease this is. Rows of one term share one decision."""
    if lease is None:
        return 0
    held = 0
    for expires, rows in lease.terms.items():
        standing = Standing(expires, "", lease.consumer, lease.id)
        if rows & asked and decide_by_consumer(standing, consumer=consumer, version=lease.id, now=now) is Code.OK:
            held |= rows & asked
    return held


def delete(settlement: Settlement, handed_us: Sequence[int], batch: Batch) -> None:
    """Remove the held rows."""
    image, lease = settlement.image, settlement.lease
    if lease is None or not settlement.held:
        return
    settlement.tell(DELETED, handed_us=handed_us)
    for part, rows in settlement.parts():
        image.remove_rows(batch, part.run, rows)
    image.drop_from_lease(batch, lease, settlement.held, gone=True)


def delete_many(image: Image, consumer: str, deletions: Sequence[Deletion], now: int, batch: Batch) -> list[Outcomes]:
    """Remove the rows of each deletion that its consumer holds."""
    settlements = []
    for deletion in deletions:
        settlements.append(Settlement(image, deletion.lease_id, consumer, deletion.rows, now))
        delete(settlements[-1], deletion.handed_us, batch)
    return [settlement.outcomes for settlement in settlements]


def extend(settlement: Settlement, expires: int, batch: Batch) -> None:
    """Give the held rows a later end; those that have one already keep it."""
    image, lease = settlement.image, settlement.lease
    if lease is None:
        return
    sooner = [rows for end, rows in lease.terms.items() if end < expires]
    settlement.held &= reduce(or_, sooner, 0)
    if not settlement.held:
        return
    settlement.tell(EXTENDED, expires=expires)
    lease.move(settlement.held, expires)
    image.leases.schedule(lease, expires)
    image.write_terms(batch, lease)


def release(settlement: Settlement, ts: int | Sequence[int], handed_us: Sequence[int], batch: Batch) -> None:
    """Move the held rows into new runs at their new time, with the attempts they have had."""
    image, lease = settlement.image, settlement.lease
    times = times_of(settlement, ts)
    if lease is None or not settlement.held:
        return
    settlement.tell(RELEASED, ts=times, handed_us=handed_us)
    draft = Draft()
    for part, rows in settlement.parts():
        for row in masks.rows(rows):
            at = times[part.offset + row - part.start] if isinstance(times, dict) else times
            new = image.row(part.run, row, ts=at, attempts=part.attempts_at(row))
            new.first, new.last = part.first_at(row) or lease.granted, lease.granted
            draft.add(image.bucket_of(part.run, new.id), part.run.owner, new)
        image.remove_rows(batch, part.run, rows, keep_bodies=True)
    image.drop_from_lease(batch, lease, settlement.held, gone=True)
    image.add_rows(batch, draft)


def recall(settlement: Settlement, batch: Batch) -> None:
    """Undo the lease of the held rows, as if it had never been."""
    image, lease = settlement.image, settlement.lease
    if lease is None or not settlement.held:
        return
    settlement.tell(RECALLED)
    draft = Draft()
    given_back: list[tuple[Part, int]] = []
    for part, rows in settlement.parts():
        if not part.due:
            given_back.append((part, rows))
            continue
        # Rows that were lost before: their place and attempts are no longer those of their run.
        for row in masks.rows(rows):
            new = image.row(part.run, row, ts=part.due, attempts=part.attempts_at(row) - 1)
            new.first, new.last = part.first_at(row), 0
            draft.add(image.bucket_of(part.run, new.id), part.run.owner, new)
        image.remove_rows(batch, part.run, rows, keep_bodies=True)
    image.drop_from_lease(batch, lease, settlement.held, gone=False)
    for part, rows in given_back:
        image.give_back(part.run, rows)
    image.add_rows(batch, draft)


def times_of(settlement: Settlement, ts: int | Sequence[int]) -> int | dict[int, int]:
    """One time for all rows, or the time of each row of the lease."""
    if isinstance(ts, int):
        return ts
    rows = [row for start, end in settlement.asked for row in range(start, end)]
    if len(rows) != len(ts):
        raise error_of(Code.INVALID_ARGUMENT, f"{len(ts)} times for {len(rows)} rows to release")
    return dict(zip(rows, ts, strict=True))
