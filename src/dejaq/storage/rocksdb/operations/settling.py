"""Settle: a consumer deletes, extends, releases or recalls rows of its lease."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from dejaq import limits
from dejaq.domain.batch import Outcomes, RowRange, ranges_of_rows, whole
from dejaq.domain.transitions import Standing, decide_by_consumer
from dejaq.errors import Code, error_of
from dejaq.protocol.v1.journal_pb2 import EventKind
from dejaq.storage.outbox import DELETED, EXTENDED, RECALLED, RELEASED
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.draft import Draft, draft_of
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


class LeaseChange:
    """One settlement: the requested rows that the consumer still holds, and the outcomes of the others."""

    def __init__(
        self,
        state: TopicState,
        lease_id: int,
        consumer: str,
        ranges: Sequence[RowRange] | None,
        now: int,
        expires: int | None = None,
    ) -> None:
        """With `expires`, only rows whose lease has this end are held."""
        self.state = state
        self.lease = state.leases.get(lease_id)
        if self.lease is None:
            self.asked = whole(ranges, 1 if ranges is None else limits.LEASE_ROWS_MAX)
        else:
            self.asked = whole(ranges, self.lease.count)
        asked = masks.of_ranges(self.asked)
        self.held = _held(self.lease, consumer, asked, now, expires)
        self._parts: tuple[int, list[tuple[LeasePart, int]]] | None = None
        refused = asked & ~self.held
        self.outcomes = Outcomes(asked.bit_length(), dict.fromkeys(masks.rows(refused), Code.LEASE_LOST))

    def record(
        self,
        kind: EventKind,
        *,
        expires: int = 0,
        ts: int | Mapping[int, int] = 0,
        handed_us: Sequence[int] = (),
    ) -> None:
        """Record in the journal the change of the held rows; before the change, while their ids are known."""
        state, lease = self.state, self.lease
        if state.outbox is None or lease is None:
            return
        rows = list(masks.rows(self.held)) if isinstance(ts, Mapping) or len(handed_us) > 1 else []
        times = [ts[row] for row in rows] if isinstance(ts, Mapping) else [ts] if ts else []
        if len(handed_us) > 1:
            asked = [row for start, end in self.asked for row in range(start, end)]
            handed = dict(zip(asked, handed_us, strict=False))
            handed_us = [handed.get(row, 0) for row in rows]
        state.outbox.settled(
            kind,
            state.topic.name,
            consumer=lease.consumer,
            lease_id=lease.id,
            spans=[span for part, mask in self.parts() for span in part.id_spans(mask)],
            expires=expires,
            ts=times,
            handed_us=handed_us,
        )

    def named(self) -> Iterator[tuple[int, str]]:
        """Each requested row that is held, with its id."""
        if self.lease is None:
            return
        ids: dict[int, str] = {}
        for part, rows in self.parts():
            for row in masks.rows(rows):
                ids[part.lease_row(row)] = part.run.id_at(row)
        for start, end in self.asked:
            yield from ((row, ids[row]) for row in range(start, end) if row in ids)

    def include(self, others: Iterable[LeaseChange]) -> None:
        """Add the rows of other settlements of the same lease."""
        every = [self, *others]
        self.asked = ranges_of_rows(row for one in every for start, end in one.asked for row in range(start, end))
        self.held = reduce(or_, [one.held for one in every])

    def parts(self) -> list[tuple[LeasePart, int]]:
        """Each part with rows to change, and these rows as a mask of its run."""
        assert self.lease is not None
        if self._parts is None or self._parts[0] != self.held:
            chosen = ((part, part.in_run(self.held)) for part in self.lease.parts_of(self.held))
            self._parts = self.held, [(part, rows) for part, rows in chosen if rows]
        return self._parts[1]


def _held(lease: LeaseState | None, consumer: str, asked: int, now: int, expires: int | None) -> int:
    """The requested rows whose live lease this is. Rows with the same end share one decision."""
    if lease is None:
        return 0
    held = 0
    for end, rows in lease.terms.items():
        if not rows & asked:
            continue
        standing = Standing(end, "", lease.consumer, lease.id)
        code = decide_by_consumer(standing, consumer=consumer, version=lease.id, now=now, expires=expires)
        if code is Code.OK:
            held |= rows & asked
    return held


def delete(settlement: LeaseChange, handed_us: Sequence[int], batch: Batch) -> None:
    """Remove the held rows."""
    state, lease = settlement.state, settlement.lease
    if lease is None or not settlement.held:
        return
    settlement.record(DELETED, handed_us=handed_us)
    leaving: dict[bytes, tuple[Run, int]] = {}
    for part, rows in settlement.parts():
        leaving[part.run.key] = part.run, leaving.get(part.run.key, (part.run, 0))[1] | rows
    for run, rows in leaving.values():
        state.remove_rows(batch, run, rows)
    state.drop_from_lease(batch, lease, settlement.held, gone=True)


def extend(settlement: LeaseChange, expires: int, batch: Batch) -> None:
    """Give the held rows a later end; rows that already have a later end keep it."""
    state, lease = settlement.state, settlement.lease
    if lease is None:
        return
    sooner = [rows for end, rows in lease.terms.items() if end < expires]
    settlement.held &= reduce(or_, sooner, 0)
    if not settlement.held:
        return
    settlement.record(EXTENDED, expires=expires)
    lease.move(settlement.held, expires)
    state.leases.schedule(lease, expires)
    state.write_terms(batch, lease)


def release(settlement: LeaseChange, ts: int | Sequence[int], handed_us: Sequence[int], batch: Batch) -> None:
    """Move the held rows into new runs at their new time, with their attempts."""
    state, lease = settlement.state, settlement.lease
    times = times_of(settlement, ts)
    if lease is None or not settlement.held:
        return
    settlement.record(RELEASED, ts=times, handed_us=handed_us)
    draft = Draft()
    for part, rows in settlement.parts():
        for row in masks.rows(rows):
            at = times[part.lease_row(row)] if isinstance(times, dict) else times
            new = draft_of(part.run, row, ts=at, attempts=part.attempts_at(row))
            new.first, new.last = part.first_at(row) or lease.granted, lease.granted
            draft.add(state.bucket_of(part.run, new.id), part.run.owner, new)
        state.remove_rows(batch, part.run, rows, keep_bodies=True)
    state.drop_from_lease(batch, lease, settlement.held, gone=True)
    state.add_rows(batch, draft)


def recall(settlement: LeaseChange, batch: Batch) -> None:
    """Recall the held rows, as if they had never been leased."""
    state, lease = settlement.state, settlement.lease
    if lease is None or not settlement.held:
        return
    settlement.record(RECALLED)
    draft = Draft()
    freed: list[tuple[LeasePart, int]] = []
    for part, rows in settlement.parts():
        if not part.due:
            freed.append((part, rows))
            continue
        # Rows that were lost before: their place and attempts differ from those of their run.
        for row in masks.rows(rows):
            new = draft_of(part.run, row, ts=part.due, attempts=part.attempts_at(row) - 1)
            new.first, new.last = part.first_at(row), 0
            draft.add(state.bucket_of(part.run, new.id), part.run.owner, new)
        state.remove_rows(batch, part.run, rows, keep_bodies=True)
    state.drop_from_lease(batch, lease, settlement.held, gone=False)
    for part, rows in freed:
        state.free_rows(part.run, rows)
    state.add_rows(batch, draft)


def times_of(settlement: LeaseChange, ts: int | Sequence[int]) -> int | dict[int, int]:
    """One time for all rows, or the time of each row of the lease."""
    if isinstance(ts, int):
        return ts
    rows = [row for start, end in settlement.asked for row in range(start, end)]
    if len(rows) != len(ts):
        raise error_of(Code.INVALID_ARGUMENT, f"{len(ts)} times for {len(rows)} rows to release")
    return dict(zip(rows, ts, strict=True))
