"""Decisions of the memory store: row by row, with the functions that decide for every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from dejaq import limits
from dejaq.domain import transitions
from dejaq.domain.batch import CreateBatch, LeaseRequest, Outcomes, RowRange, whole
from dejaq.domain.changes import Create, Delete, Edit, Edits, Release
from dejaq.domain.headers import edited_headers
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.memory.timeline import HeldLease, HeldMessage, Timeline
from dejaq.storage.transactions import Step

T = TypeVar("T")
# Rows with their ids.
Named = Iterable[tuple[int, str]]


def message_of(topic: Topic, batch: CreateBatch, *, row: int, version: int) -> HeldMessage:
    """One row of a batch as a message."""
    return HeldMessage(
        id=batch.id_of(row),
        natural=batch.ids is not None,
        bucket=batch.bucket_of(row, topic.settings.buckets),
        owner=batch.owner,
        ts=batch.ts[row],
        priority=batch.priorities[row] if batch.priorities is not None else 0,
        body=batch.bodies[row],
        headers=batch.headers[row] if batch.headers is not None else b"",
        version=version,
    )


class Deciding:
    """Decides the rows of a batch of creates, one after the other.

    Without `limited` the number of remembered ids has no limit: the rows were decided before.
    """

    def __init__(self, timeline: Timeline, step: Create, now: int, *, limited: bool = True) -> None:
        self._timeline, self._batch, self._now = timeline, step.batch, now
        counts = limited and step.batch.ids is not None
        self._room = timeline.created.room(step.topic.settings, now) if counts else None

    def decide(self, new: HeldMessage, row: int) -> Code:
        """Whether the new message of a row may be created; it may refer to a large body."""
        timeline = self._timeline
        old = timeline.find_for(new)
        # A lease is no change of time.
        same = old is not None and old.same_content(new) and self._batch.accepts_time(row, old.own_ts)
        created = new.natural and timeline.created.has(new.id, self._now)
        code = transitions.decide_create(exists=old is not None, same_content=same, created=created)
        if code is not Code.OK:
            return code
        if self._batch.large and timeline.bodies.missing(new.body):
            return Code.BODY_MISSING
        if self._room is not None:
            self._room -= 1
            if self._room < 0:
                return Code.LIMIT_EXCEEDED
        return Code.OK


def decide_values(timeline: Timeline, message: HeldMessage, edits: Edits, row: int) -> Code:
    """Whether a message may have its new values: a large body must exist, and the headers must not exceed a limit."""
    if edited_headers(message.headers, cell(edits.headers, row)) is None:
        return Code.INVALID_HEADERS
    return Code.BODY_MISSING if edits.large and timeline.bodies.missing(cell(edits.bodies, row)) else Code.OK


def settle_rows(
    lease: HeldLease | None,
    consumer: str,
    rows: Sequence[RowRange] | None,
    now: int,
    change: Callable[[HeldMessage, int], None],
    *,
    expires: int | None = None,
) -> tuple[Outcomes, list[tuple[int, HeldMessage]]]:
    """Apply `change` to each row that may be settled, with the row's place among the requested rows; returns these
    rows.

    With `expires`, only rows whose lease has this end may be settled.
    """
    if lease is None:
        return _all_lost(rows), []
    outcomes = Outcomes(len(lease.rows))
    settled: list[tuple[int, HeldMessage]] = []
    asked = (row for start, end in whole(rows, len(lease.rows)) for row in range(start, end))
    for position, row in enumerate(asked):
        message = lease.rows[row]
        code = transitions.decide_by_consumer(
            message.standing() if message else None,
            consumer=consumer,
            version=lease.lease_id,
            now=now,
            expires=expires,
        )
        if message is None or code is not Code.OK:
            outcomes.codes[row] = code
        else:
            change(message, position)
            settled.append((position, message))
    return outcomes, settled


Alter = Callable[[HeldMessage, int], None]


def deleting(timeline: Timeline) -> Alter:
    """Remove a row."""
    return lambda message, _: timeline.remove(message)


def leaving(message: HeldMessage, position: int) -> None:
    """Change nothing yet: the dead-letter topic gets the row afterwards."""


def extending(timeline: Timeline, expires: int, extended: list[tuple[int, HeldMessage]]) -> Alter:
    """Move the end of a row's lease, never to an earlier time, and record the rows whose end moved."""

    def extend(message: HeldMessage, position: int) -> None:
        if message.ts < expires:
            timeline.hold(message, expires)
            extended.append((position, message))

    return extend


def releasing(timeline: Timeline, ts: int | Sequence[int], version: int) -> Alter:
    """End a row's lease and put the message at its new time, with a new version."""

    def release(message: HeldMessage, position: int) -> None:
        timeline.leave_lease(message)
        message.version = version
        timeline.place(message, ts if isinstance(ts, int) else ts[position])

    return release


def recalling(timeline: Timeline, version: int) -> Alter:
    """Recall a row: time, attempts and version are as before the lease.

    When the lease followed an expired lease, that one is not restored: the version is new.
    """

    def recall(message: HeldMessage, position: int) -> None:
        timeline.leave_lease(message)
        message.version = message.before or version
        message.attempts -= 1
        message.first_lease, message.last_lease = message.leased_before
        timeline.place(message, message.due)

    return recall


def check_times(lease: HeldLease | None, rows: Sequence[RowRange] | None, ts: int | Sequence[int]) -> None:
    """Raise INVALID_ARGUMENT unless there is one time per row."""
    if lease is not None and not isinstance(ts, int):
        asked = sum(end - start for start, end in whole(rows, len(lease.rows)))
        if len(ts) != asked:
            raise error_of(Code.INVALID_ARGUMENT, f"{len(ts)} times for {asked} rows to release")


def cell(column: Sequence[T | None] | None, row: int) -> T | None:
    """The value of a row; None when the column is None."""
    return column[row] if column is not None else None


def decide_step(timeline: Timeline, step: Step, now: int) -> tuple[Outcomes, Named]:
    """The outcome that each row would have, and the rows with their ids."""
    if isinstance(step, Create):
        return _decide_create_step(timeline, step, now)
    if isinstance(step, Delete | Release):
        lease = timeline.leases.get(step.lease_id)
        if isinstance(step, Release):
            check_times(lease, step.rows, step.ts)
        settled: list[tuple[int, str]] = []
        outcomes, _ = settle_rows(
            lease, step.consumer, step.rows, now, lambda message, _: settled.append((message.row, message.id))
        )
        return outcomes, settled
    versions = step.edits.versions if isinstance(step, Edit) else step.versions
    ids = step.edits.ids if isinstance(step, Edit) else step.ids
    outcomes = Outcomes(len(ids))
    for row, message in enumerate(map(timeline.find, ids)):
        standing = message.standing() if message else None
        code = transitions.decide_by_owner(standing, owner=step.owner, now=now, version=cell(versions, row))
        if code is Code.OK and message is not None and isinstance(step, Edit):
            code = decide_values(timeline, message, step.edits, row)
        if code is not Code.OK:
            outcomes.codes[row] = code
    return outcomes, enumerate(ids)


def _decide_create_step(timeline: Timeline, step: Create, now: int) -> tuple[Outcomes, Named]:
    batch = step.batch
    done = timeline.used_sequences(batch.session, now).rows(batch.sequence, len(batch), batch.check)
    outcomes = Outcomes(len(batch), dict(batch.refused))
    deciding = Deciding(timeline, step, now)
    for row in range(len(batch)):
        if row not in batch.refused and row not in done:
            code = deciding.decide(message_of(step.topic, batch, row=row, version=0), row)
            if code is not Code.OK:
                outcomes.codes[row] = code
    return outcomes, ((row, batch.id_of(row)) for row in range(len(batch)))


def _all_lost(rows: Sequence[RowRange] | None) -> Outcomes:
    """Every requested row is lost; when all rows were requested and their number is forgotten, only row 0 has the
    outcome.
    """
    asked = [(0, 1)] if rows is None else whole(rows, limits.LEASE_ROWS_MAX)
    lost = {row: Code.LEASE_LOST for start, end in asked for row in range(start, end)}
    return Outcomes(max(lost, default=-1) + 1, lost)


def may_lease(message: HeldMessage, request: LeaseRequest, now: int) -> bool:
    """Whether a request may lease a message, if no other message comes before it."""
    code = transitions.decide_lease(message.standing(), until=request.until, expires=request.expires, now=now)
    return code is Code.OK


def fitted(topic: Topic, request: LeaseRequest, now: int) -> LeaseRequest:
    """The request for a priority topic, which leases nothing ahead of its time: a more urgent message may be created
    until then.
    """
    return replace(request, until=now) if topic.by_priority else request
