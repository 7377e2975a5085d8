"""Changes by the owner of messages in the reference storage: create, edit, cancel, redrive."""

from __future__ import annotations

from dejaq.domain import transitions
from dejaq.domain.batch import Outcomes, RowRange
from dejaq.domain.changes import Cancel, Create, Edit, Redrive
from dejaq.domain.headers import edited_headers
from dejaq.errors import Code, error_of
from dejaq.storage.memory.deciding import Deciding, cell, decide_values, message_of
from dejaq.storage.memory.state import MemoryState
from dejaq.storage.memory.timeline import HeldMessage
from dejaq.storage.used_sequences import UsedSequences


def create(state: MemoryState, change: Create, now: int, *, decided: bool = False) -> Outcomes:
    """Create the admitted rows. A row counts as used only when it succeeded.

    Rows that were `decided` before are not subject to the limit of remembered ids.
    """
    topic, batch = change.topic, change.batch
    timeline = state.timeline(topic)
    used = timeline.used_sequences(batch.session, now)
    used.acknowledge(batch.acknowledged)
    done = used.rows(batch.sequence, len(batch), batch.check)
    if len(done.union(batch.refused)) < len(batch):
        used.check_room()
    version = state.next_version()
    outcomes = Outcomes(len(batch), dict(batch.refused))
    created: list[RowRange] = []
    deciding = Deciding(timeline, change, now, limited=not decided)
    for row in range(len(batch)):
        if row in batch.refused:
            continue
        if row in done:
            outcomes.codes[row] = Code.ALREADY_EXISTS
            continue
        new = message_of(topic, batch, row=row, version=version)
        code = deciding.decide(new, row)
        if code is Code.OK:
            timeline.add(new)
            if new.natural:
                timeline.created.add(new.id, now)
            start = created.pop()[0] if created and created[-1][1] == row else row
            created.append((start, row + 1))
        else:
            outcomes.codes[row] = code
        if code.succeeded:
            used.use(batch.sequence + row, batch.sequence + row + 1)
            used.remember(batch.sequence, batch.check)
    state.journal.created(topic, batch, created)
    state.journal.commit(now)
    return outcomes


def edit(state: MemoryState, change: Edit, now: int) -> Outcomes:
    """Change the fields that the owner may change; a changed message has a new version and no lock."""
    topic, owner, edits = change.topic, change.owner, change.edits
    timeline = state.timeline(topic)
    state.expire_leases(topic, timeline, now)
    version = state.next_version()
    outcomes = Outcomes(len(edits.ids))
    changed: dict[int, HeldMessage] = {}
    for row, message_id in enumerate(edits.ids):
        message = timeline.find(message_id)
        code = transitions.decide_by_owner(
            message.standing() if message else None,
            owner=owner,
            now=now,
            version=cell(edits.versions, row),
        )
        if message is not None and code is Code.OK:
            code = decide_values(timeline, message, edits, row)
        if message is None or code is not Code.OK:
            outcomes.codes[row] = code
            continue
        timeline.leave_lease(message)
        message.version = version
        if (body := cell(edits.bodies, row)) is not None:
            timeline.replace_body(message, body)
        if (headers := edited_headers(message.headers, cell(edits.headers, row))) is not None:
            message.headers = headers
        if (priority := cell(edits.priorities, row)) is not None:
            message.priority = priority
        ts = cell(edits.ts, row)
        timeline.place(message, message.ts if ts is None else ts)
        changed[id(message)] = message
    state.journal.edited(topic, owner, edits, list(changed.values()))
    state.journal.commit(now)
    return outcomes


def cancel(state: MemoryState, change: Cancel, now: int) -> Outcomes:
    """Remove messages that no consumer holds."""
    topic, owner, ids, versions = change.topic, change.owner, change.ids, change.versions
    name = change.name
    timeline = state.timeline(topic)
    state.expire_leases(topic, timeline, now)
    outcomes = Outcomes(len(ids))
    cancelled: list[str] = []
    used = timeline.used_sequences(name.session, now) if name is not None else UsedSequences()
    done = used.rows_of(name.numbers) if name is not None else set()
    if name is not None and len(done) < len(ids):
        used.check_room()
    for row, message_id in enumerate(ids):
        if row in done:
            continue
        message = timeline.find(message_id)
        standing, version = message.standing() if message else None, cell(versions, row)
        code = transitions.decide_by_owner(standing, owner=owner, now=now, version=version)
        if message is None or code is not Code.OK:
            outcomes.codes[row] = code
        else:
            timeline.remove(message)
            cancelled.append(message_id)
            if name is not None:
                used.use(name.numbers[row], name.numbers[row] + 1)
    state.journal.cancelled(topic, owner, cancelled)
    state.journal.commit(now)
    return outcomes


def redrive(state: MemoryState, change: Redrive, now: int) -> Outcomes:
    """Move dead letters back to a topic that delivers them."""
    topic, target = change.topic, change.target
    state.check_live(target)
    if target.number == topic.number:
        raise error_of(Code.INVALID_ARGUMENT, f"{topic.name!r} cannot be redriven to itself")
    state.expire_leases(topic, state.timeline(topic), now)
    outcomes, left, came = state.topic_move(topic, target, now).redrive(change.ids)
    for owner in dict.fromkeys(message.owner for message in left):
        state.journal.cancelled(topic, owner, [message.id for message in left if message.owner == owner])
    state.journal.arrived(target, came)
    state.journal.commit(now)
    return outcomes
