"""How the memory store decides: row by row, by the one function that decides for every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from dejaq import limits
from dejaq.domain import transitions
from dejaq.domain.batch import CreateBatch, LeaseRequest, Outcomes, RowRange, whole
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.edits import Edits
from dejaq.storage.memory_timeline import HeldLease, HeldMessage, Timeline
from dejaq.storage.steps import CreateStep, DeleteStep, EditStep, ReleaseStep, Step

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


def decide_create(timeline: Timeline, new: HeldMessage, *, large: bool) -> Code:
    """Whether a new message may enter, which may refer to a large body."""
    old = timeline.find_for(new)
    same = old is not None and old.same_content(new)
    code = transitions.decide_create(exists=old is not None, same_content=same)
    return Code.BODY_MISSING if code is Code.OK and large and timeline.bodies.missing(new.body) else code


def missing_body(timeline: Timeline, edits: Edits, row: int) -> Code:
    """Whether the large body is there that a message is to refer to."""
    return Code.BODY_MISSING if edits.large and timeline.bodies.missing(cell(edits.bodies, row)) else Code.OK


def settle(
    lease: HeldLease | None,
    consumer: str,
    rows: Sequence[RowRange] | None,
    now: int,
    change: Callable[[HeldMessage, int], None],
) -> tuple[Outcomes, list[tuple[int, HeldMessage]]]:
    """Apply `change` to each row that may be settled, with the row's place among those asked for; and those."""
    if lease is None:
        return _all_lost(rows), []
    outcomes = Outcomes(len(lease.rows))
    settled: list[tuple[int, HeldMessage]] = []
    asked = (row for start, end in whole(rows, len(lease.rows)) for row in range(start, end))
    for position, row in enumerate(asked):
        message = lease.rows[row]
        code = transitions.decide_by_consumer(
            message.standing() if message else None, consumer=consumer, version=lease.lease_id, now=now
        )
        if message is None or code is not Code.OK:
            outcomes.codes[row] = code
        else:
            change(message, position)
            settled.append((position, message))
    return outcomes, settled


def check_times(lease: HeldLease | None, rows: Sequence[RowRange] | None, ts: int | Sequence[int]) -> None:
    """Raise INVALID_ARGUMENT where there is not one time for each row."""
    if lease is not None and not isinstance(ts, int):
        asked = sum(end - start for start, end in whole(rows, len(lease.rows)))
        if len(ts) != asked:
            raise error_of(Code.INVALID_ARGUMENT, f"{len(ts)} times for {asked} rows to release")


def cell(column: Sequence[T | None] | None, row: int) -> T | None:
    """The value of a row; None where the column is left out."""
    return column[row] if column is not None else None


def decide_step(timeline: Timeline, step: Step, now: int) -> tuple[Outcomes, Named]:
    """What would become of each row, and the rows with their ids."""
    if isinstance(step, CreateStep):
        return _decide_create_step(timeline, step, now)
    if isinstance(step, DeleteStep | ReleaseStep):
        lease = timeline.leases.get(step.lease_id)
        if isinstance(step, ReleaseStep):
            check_times(lease, step.rows, step.ts)
        settled: list[tuple[int, str]] = []
        outcomes, _ = settle(
            lease, step.consumer, step.rows, now, lambda message, _: settled.append((message.row, message.id))
        )
        return outcomes, settled
    versions = step.edits.versions if isinstance(step, EditStep) else step.versions
    ids = step.edits.ids if isinstance(step, EditStep) else step.ids
    outcomes = Outcomes(len(ids))
    for row, message in enumerate(map(timeline.find, ids)):
        standing = message.standing() if message else None
        code = transitions.decide_by_owner(standing, owner=step.owner, now=now, version=cell(versions, row))
        if code is Code.OK and isinstance(step, EditStep):
            code = missing_body(timeline, step.edits, row)
        if code is not Code.OK:
            outcomes.codes[row] = code
    return outcomes, enumerate(ids)


def _decide_create_step(timeline: Timeline, step: CreateStep, now: int) -> tuple[Outcomes, Named]:
    batch = step.batch
    seen = timeline.seen_counters(batch.session, now)
    outcomes = Outcomes(len(batch), dict(batch.refused))
    for row in range(len(batch)):
        if row not in batch.refused and batch.sequence + row not in seen:
            code = decide_create(timeline, message_of(step.topic, batch, row=row, version=0), large=batch.large)
            if code is not Code.OK:
                outcomes.codes[row] = code
    return outcomes, ((row, batch.id_of(row)) for row in range(len(batch)))


def _all_lost(rows: Sequence[RowRange] | None) -> Outcomes:
    """Every row asked for is lost; where all were asked for and their number is forgotten, row 0 says so."""
    asked = [(0, 1)] if rows is None else whole(rows, limits.LEASE_ROWS_MAX)
    lost = {row: Code.LEASE_LOST for start, end in asked for row in range(start, end)}
    return Outcomes(max(lost, default=-1) + 1, lost)


def may_lease(message: HeldMessage, request: LeaseRequest, now: int) -> bool:
    """Whether a request may have a message, if nothing is before it."""
    code = transitions.decide_lease(message.standing(), until=request.until, expires=request.expires, now=now)
    return code is Code.OK


def fitted(topic: Topic, request: LeaseRequest, now: int) -> LeaseRequest:
    """A topic by priority leases nothing ahead of its time: until then, something more urgent may come."""
    return replace(request, until=now) if topic.by_priority else request
