"""Dead letters, which leave their topic and enter another topic in one write; and waits after a lost lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dejaq.domain.batch import IdSpan, Outcomes
from dejaq.domain.dead_letter import (
    EXHAUSTION,
    Cause,
    DeadLetterHistory,
    exhausted,
    expiry_delay_ms,
    free_id,
    id_before,
    without_history,
)
from dejaq.domain.ids import bucket_of
from dejaq.domain.transitions import decide_redrive
from dejaq.errors import Code
from dejaq.storage.outbox import CANCELLED, CREATED, DEAD_LETTERED, EXPIRED
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.operations.owning import Leaving
from dejaq.storage.rocksdb.operations.settling import LeaseChange
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.draft import Draft, DraftRow, draft_of
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A row that moves to the dead-letter topic, and its history."""

    run: Run
    row: int
    history: DeadLetterHistory


class Arrivals:
    """Rows that move into a topic from another topic, under ids that are free there."""

    def __init__(self, state: TopicState, now: int, batch: Batch) -> None:
        self._state, self._now, self._batch = state, now, batch
        self._draft = Draft()
        self._rows: dict[str, list[tuple[DraftRow, bytes]]] = {}
        self._ids: set[str] = set()

    def taken(self, ids: Sequence[str]) -> Callable[[str], bool]:
        """Whether an id is taken; the first ids that will be checked are looked up together."""
        there = {one for one, at in zip(ids, self._state.locate(ids), strict=True) if at is not None}
        known = set(ids)

        def is_taken(one: str) -> bool:
            return one in self._ids or one in there or (one not in known and self._state.locate([one])[0] is not None)

        return is_taken

    def add(self, source: TopicState, run: Run, row: int, message_id: str, headers: bytes) -> None:
        """Add a row of another topic, due now and with zero attempts."""
        body = source.body(run, row)
        inline, apart = self._state.body_store.put(self._batch, body)
        new = DraftRow(
            id=message_id,
            ts=self._now,
            body=inline,
            priority=run.sort_key(row)[1],
            attempts=0,
            headers=headers,
            apart=apart,
        )
        owner = str(run.record.owner)
        bucket = bucket_of(message_id, self._state.topic.settings.buckets)
        self._draft.add(bucket, self._state.owners.number(owner, self._batch), new)
        self._rows.setdefault(owner, []).append((new, body))
        self._ids.add(message_id)

    def enter(self) -> None:
        """Write the rows."""
        self._state.add_rows(self._batch, self._draft)
        if self._state.outbox is None:
            return
        for owner, rows in self._rows.items():
            self._state.outbox.changed(
                CREATED,
                self._state.topic.name,
                owner=owner,
                ids=[row.id for row, _ in rows],
                ts=[row.ts for row, _ in rows],
                priorities=[row.priority for row, _ in rows],
                bodies=[body for _, body in rows],
                mask=self._state.database.values.mask(self._state.topic.number),
            )


def split(state: TopicState, parts: Sequence[LeasePart], now: int) -> tuple[list[LeasePart], list[DeadRow]]:
    """The parts without the rows that have had all their attempts, and these rows."""
    limit = state.topic.settings.max_attempts
    alive: list[LeasePart] = []
    dead: list[DeadRow] = []
    for part in parts:
        # The attempts of a part include the lease that is being created.
        if not part.attempts or max(part.attempts) <= limit:
            alive.append(part)
            continue
        for start, end in _alike(part, limit):
            if exhausted(part.attempts_at(start) - 1, limit):
                dead += [DeadRow(part.run, row, _exhaustion(state, part, row, now)) for row in range(start, end)]
            else:
                alive.append(part.cut(start, end))
    return alive, dead


def _alike(part: LeasePart, limit: int) -> Iterator[tuple[int, int]]:
    """The rows of a part as ranges in which all rows are exhausted or none is."""
    start, stop = part.start, part.start + part.count
    for row in range(part.start + 1, stop):
        if (part.attempts_at(row) > limit) != (part.attempts_at(start) > limit):
            yield start, row
            start = row
    yield start, stop


def _exhaustion(state: TopicState, part: LeasePart, row: int, now: int) -> DeadLetterHistory:
    expired = part.expired_lease
    return DeadLetterHistory(
        topic=state.topic.name,
        cause=EXHAUSTION,
        attempts=part.attempts_at(row) - 1,
        at=now,
        due=part.due_at(row),
        first_lease=part.first_at(row),
        last_lease=expired.granted if expired else part.run.last_at(row),
        consumer=expired.consumer if expired else "",
    )


def move_exhausted(state: TopicState, target: TopicState, dead: Sequence[DeadRow], now: int, batch: Batch) -> None:
    """Move rows that no lease holds any more to the dead-letter topic."""
    if state.outbox is not None:
        spans = [IdSpan(count=len(dead), ids=[one.run.id_at(one.row) for one in dead])]
        state.outbox.settled(DEAD_LETTERED, state.topic.name, consumer="", lease_id=0, spans=spans)
    _move(state, target, dead, now, batch)


def _move(state: TopicState, target: TopicState, dead: Sequence[DeadRow], now: int, batch: Batch) -> None:
    arrivals = Arrivals(target, now, batch)
    taken = arrivals.taken([one.run.id_at(one.row) for one in dead])
    leaving: dict[bytes, tuple[Run, int]] = {}
    for one in dead:
        run, row = one.run, one.row
        old_id = run.id_at(row)
        new_id = free_id(old_id, now, taken)
        headers = run.record.headers[row] if run.record.headers else b""
        arrivals.add(
            state, run, row, new_id, one.history.headers(headers, renamed_from="" if new_id == old_id else old_id)
        )
        leaving[run.key] = (run, leaving.get(run.key, (run, 0))[1] | 1 << row)
    for run, rows in leaving.values():
        state.remove_rows(batch, run, rows)
    arrivals.enter()


def reject(
    settlement: LeaseChange, target: TopicState, cause: Cause, handed_us: Sequence[int], now: int, batch: Batch
) -> None:
    """Move the rows that the consumer holds to the dead-letter topic."""
    state, lease = settlement.state, settlement.lease
    if lease is None or not settlement.held:
        return
    settlement.record(DEAD_LETTERED, handed_us=handed_us)
    dead = [
        DeadRow(part.run, row, _rejection(state, lease, part, row, cause, now))
        for part, rows in settlement.parts()
        for row in masks.rows(rows)
    ]
    _move(state, target, dead, now, batch)
    state.drop_from_lease(batch, lease, settlement.held, gone=True)


def _rejection(
    state: TopicState, lease: LeaseState, part: LeasePart, row: int, cause: Cause, now: int
) -> DeadLetterHistory:
    return DeadLetterHistory(
        topic=state.topic.name,
        cause=cause,
        attempts=part.attempts_at(row),
        at=now,
        due=part.due_at(row),
        first_lease=part.first_at(row) or lease.granted,
        last_lease=lease.granted,
        consumer=lease.consumer,
    )


def redrive(state: TopicState, goal: TopicState, ids: Sequence[str], now: int, batch: Batch) -> Outcomes:
    """Move messages that no consumer holds to another topic, as they were before they became dead letters."""
    outcomes = Outcomes(len(ids))
    found = state.locate(ids)
    before = [id_before(one, _headers(at)) for one, at in zip(ids, found, strict=True)]
    arrivals = Arrivals(goal, now, batch)
    taken = arrivals.taken(before)
    left: dict[str, list[str]] = {}
    leaving = Leaving()
    for item, at in enumerate(found):
        # An id that occurs twice in the batch is gone the second time.
        if at is not None and leaving.has(*at):
            at = None
        standing, holding = state.standing(*at) if at is not None else (None, None)
        code = decide_redrive(standing, now=now)
        if code is Code.OK and taken(before[item]):
            code = Code.ID_TAKEN
        if at is None or code is not Code.OK:
            outcomes.codes[item] = code
            continue
        arrivals.add(state, *at, before[item], without_history(_headers(at)))
        left.setdefault(str(at[0].record.owner), []).append(ids[item])
        leaving.add(*at, holding)
    leaving.leave(state, batch, keep_bodies=False)
    if state.outbox is not None:
        for owner, gone in left.items():
            state.outbox.changed(CANCELLED, state.topic.name, owner=owner, ids=gone)
    arrivals.enter()
    return outcomes


def _headers(at: tuple[Run, int] | None) -> bytes:
    return bytes(at[0].record.headers[at[1]]) if at is not None and at[0].record.headers else b""


def delay_expired(state: TopicState, now: int, batch: Batch) -> None:
    """Put the rows of expired leases at the times that the topic's back-off computes; rows without a wait stay lost."""
    draft = Draft()
    settings = state.topic.settings
    for lease, expires in state.leases.take_ended(now):
        gone = 0
        times: list[int] = []
        spans = state.spans(lease, lease.terms[expires])
        for part in lease.parts:
            waiting = 0
            for row in masks.rows(part.in_run(lease.terms[expires])):
                attempts = part.attempts_at(row)
                spent = exhausted(attempts, settings.max_attempts)
                delay = 0 if spent else expiry_delay_ms(settings, part.run.id_at(row), attempts)
                times.append(expires + delay)
                if delay:
                    waiting |= 1 << row
                    new = draft_of(part.run, row, ts=expires + delay, attempts=attempts)
                    new.first, new.last = part.first_at(row) or lease.granted, lease.granted
                    draft.add(state.bucket_of(part.run, new.id), part.run.owner, new)
            if waiting:
                gone |= part.to_lease(waiting)
                state.remove_rows(batch, part.run, waiting, keep_bodies=True)
        if state.outbox is not None and expires not in lease.reported:
            state.outbox.settled(
                EXPIRED,
                state.topic.name,
                consumer=lease.consumer,
                lease_id=lease.id,
                spans=spans,
                expires=expires,
                ts=times,
            )
        _close_ended(state, lease, expires, gone, batch)
    state.add_rows(batch, draft)


def _close_ended(state: TopicState, lease: LeaseState, expires: int, gone: int, batch: Batch) -> None:
    state.drop_from_lease(batch, lease, gone, gone=True)
    if expires not in lease.terms:
        return
    state.offer_expired(lease, expires)
    if state.outbox is not None and expires not in lease.reported:
        lease.reported.add(expires)
        state.write_terms(batch, lease)
