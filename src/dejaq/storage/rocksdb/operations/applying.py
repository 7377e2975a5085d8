"""Apply: one change, applied to the topics in memory and put into its write batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit, Extend, Recall, Redrive, Reject, Release
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused, error_of
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.operations import creating, dead_letters, owning, settling
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# The topics of a change, by number.
TopicStates = Mapping[int, TopicState]


def target_of(change: Change) -> Topic | None:
    """The topic to which a change moves messages; None for other changes."""
    match change:
        case Redrive():
            if change.target.number == change.topic.number:
                raise error_of(Code.INVALID_ARGUMENT, f"{change.topic.name!r} cannot be redriven to itself")
            return change.target
        case Reject():
            return change.dead_letter
        case _:
            return None


def unknown(topic: Topic) -> Refused:
    """The refusal of a change to a topic that the store does not have."""
    error = error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} is not in this store")
    assert isinstance(error, Refused)
    return error


def attempt(states: TopicStates, change: Change, now: int, batch: Batch) -> Outcomes | Refused:
    """Apply the change, or return the reason why it is refused."""
    try:
        return apply(states, change, now, batch)
    except Refused as refusal:
        return refusal


def attempt_all(
    states: TopicStates, changes: Sequence[Change], refusals: Sequence[Refused | None], now: int, batch: Batch
) -> list[Outcomes | Refused]:
    """The answer to each change: why it was refused before, or that of `attempt`."""
    return [refusal or attempt(states, change, now, batch) for change, refusal in zip(changes, refusals, strict=True)]


def apply(states: TopicStates, change: Change, now: int, batch: Batch) -> Outcomes:
    """Apply the change; raises a refusal before anything is altered."""
    state = states[change.topic.number]
    match change:
        case Create():
            return creating.create(state, change.batch, now, batch)
        case Edit():
            return owning.edit(state, change.owner, change.edits, now, batch)
        case Cancel():
            return owning.cancel(
                state, change.owner, change.ids, now, batch, versions=change.versions, name=change.name
            )
        case Redrive():
            state.expire_leases(now, batch)
            return dead_letters.redrive(state, states[change.target.number], change.ids, now, batch)
    expires = change.expires if isinstance(change, Recall) else None
    settlement = settling.LeaseChange(state, change.lease_id, change.consumer, change.rows, now, expires)
    match change:
        case Delete():
            settling.delete(settlement, change.handed_us, batch)
        case Extend():
            settling.extend(settlement, change.expires, batch)
        case Release():
            settling.release(settlement, change.ts, change.handed_us, batch)
        case Recall():
            settling.recall(settlement, batch)
        case Reject():
            target = states[change.dead_letter.number]
            dead_letters.reject(settlement, target, change.cause, change.handed_us, now, batch)
    return settlement.outcomes
