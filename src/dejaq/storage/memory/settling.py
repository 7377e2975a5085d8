"""Changes by the consumer of a lease in the reference storage."""

from __future__ import annotations

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import ByConsumer, Delete, Extend, Recall, Reject, Release
from dejaq.storage.memory.deciding import (
    Alter,
    check_times,
    deleting,
    extending,
    leaving,
    recalling,
    releasing,
    settle_rows,
)
from dejaq.storage.memory.state import MemoryState
from dejaq.storage.memory.timeline import HeldMessage
from dejaq.storage.outbox import DEAD_LETTERED, DELETED, EXTENDED, RECALLED, RELEASED


def settle(state: MemoryState, change: ByConsumer, now: int) -> Outcomes:
    """Change the rows that the consumer still holds."""
    topic, timeline = change.topic, state.timeline(change.topic)
    lease = timeline.leases.get(change.lease_id)
    outcomes, record = Outcomes(0), state.journal.settled

    def held(alter: Alter, expires: int | None = None) -> list[tuple[int, HeldMessage]]:
        nonlocal outcomes
        outcomes, settled = settle_rows(lease, change.consumer, change.rows, now, alter, expires=expires)
        return settled

    match change:
        case Delete():
            record(DELETED, topic, lease, held(deleting(timeline)), handed_us=change.handed_us)
        case Extend():
            extended: list[tuple[int, HeldMessage]] = []
            held(extending(timeline, change.expires, extended))
            record(EXTENDED, topic, lease, extended, expires=change.expires)
        case Release():
            check_times(lease, change.rows, change.ts)
            released = held(releasing(timeline, change.ts, state.next_version()))
            record(RELEASED, topic, lease, released, ts=change.ts, handed_us=change.handed_us)
        case Recall():
            record(RECALLED, topic, lease, held(recalling(timeline, state.next_version()), change.expires))
        case Reject():
            state.check_live(change.dead_letter)
            rejected = held(leaving)
            record(DEAD_LETTERED, topic, lease, rejected, handed_us=change.handed_us)
            state.to_dead_letters(topic, change.dead_letter, [message for _, message in rejected], change.cause, now)
    state.journal.commit(now)
    return outcomes
