"""Leases of the reference storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dejaq.domain.batch import LeaseRequest, LeaseSet
from dejaq.domain.dead_letter import EXHAUSTION, exhausted
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.storage.memory.deciding import fitted, may_lease
from dejaq.storage.memory.state import MemoryState
from dejaq.storage.memory.timeline import HeldLease, HeldMessage, lease_set


def lease(state: MemoryState, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
    """Lease the messages that are free and due, earliest first, then lower priority first."""
    timeline = state.timeline(topic)
    request = fitted(topic, request, now)
    limit = _limit(state, topic, request)
    state.expire_leases(topic, timeline, now)
    chosen: list[HeldMessage] = []
    dead: list[HeldMessage] = []
    skipped: list[HeldMessage] = []
    size = 0
    for message in timeline.due(request.buckets, max(request.until, now)):
        if len(chosen) + len(dead) == request.rows_max or (chosen and size + message.size > request.bytes_max):
            skipped.append(message)
            break
        if not may_lease(message, request, now):
            skipped.append(message)
        elif exhausted(message.attempts, limit):
            dead.append(message)
        else:
            chosen.append(message)
            size += message.size
    for message in skipped:
        timeline.hold(message, message.ts)
    return _grant(state, topic, chosen, dead, request, now)


def lease_these(
    state: MemoryState, topic: Topic, ids: Sequence[str], request: LeaseRequest, now: int, *, dead: Sequence[str] = ()
) -> LeaseSet | None:
    """Lease exactly these messages, in this order, and dead-letter `dead`; None if `request` forbids one of them.

    For comparing a storage with this one: among messages with equal time and priority any order is allowed.
    """
    timeline = state.timeline(topic)
    request = fitted(topic, request, now)
    limit = _limit(state, topic, request)
    state.expire_leases(topic, timeline, now)
    leasable = [
        message
        for message in map(timeline.find, (*ids, *dead))
        if message is not None and message.bucket in request.buckets and may_lease(message, request, now)
    ]
    chosen = [message for message in leasable if not exhausted(message.attempts, limit)]
    moved = [message for message in leasable if exhausted(message.attempts, limit)]
    if (len(chosen), len(moved)) != (len(ids), len(dead)):
        return None
    return _grant(state, topic, chosen, moved, request, now)


def leasable(state: MemoryState, topic: Topic, request: LeaseRequest, now: int) -> list[Message]:
    """Every message that `request` might lease or dead-letter, without its row and byte limits, in order."""
    request = fitted(topic, request, now)
    state.expire_leases(topic, state.timeline(topic), now)
    state.journal.commit(now)
    messages = [m for m in state.timeline(topic).all() if m.bucket in request.buckets]
    messages = [m for m in messages if may_lease(m, request, now)]
    if topic.by_priority:
        messages.sort(key=lambda m: (m.priority, m.ts))
    else:
        messages.sort(key=lambda m: (m.ts, m.priority))
    return [m.message(topic.name) for m in messages]


def leases_of(state: MemoryState, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
    """The remaining rows of the live leases of `consumer`, one set for each end that its rows have."""
    sets: list[LeaseSet] = []
    for lease in state.timeline(topic).leases.values():
        if lease.consumer != consumer:
            continue
        ends: dict[int, list[HeldMessage]] = {}
        for message in lease.messages():
            if message.ts > now:
                ends.setdefault(message.ts, []).append(message)
        sets += [lease_set(lease, expires=end, messages=ends[end]) for end in sorted(ends)]
    return sets


def _grant(
    state: MemoryState,
    topic: Topic,
    chosen: Sequence[HeldMessage],
    dead: Sequence[HeldMessage],
    request: LeaseRequest,
    now: int,
) -> LeaseSet | None:
    if dead:
        assert request.dead_letter is not None
        state.journal.dead_lettered(topic, dead)
        state.to_dead_letters(topic, request.dead_letter, dead, EXHAUSTION, now)
    lease = _hold(state, topic, chosen, request, now) if chosen else None
    if lease is None and dead:
        lease = LeaseSet(0, request.consumer, request.expires, spans=[], ts=[], bodies=[])
    if lease is not None:
        lease.dead_lettered = len(dead)
    state.journal.commit(now)
    return lease


def _limit(state: MemoryState, topic: Topic, request: LeaseRequest) -> int:
    """How many leases a message may have; there is no limit without a dead-letter topic."""
    if request.dead_letter is None:
        return 0
    state.check_live(request.dead_letter)
    return topic.settings.max_attempts


def _hold(state: MemoryState, topic: Topic, chosen: Iterable[HeldMessage], request: LeaseRequest, now: int) -> LeaseSet:
    timeline = state.timeline(topic)
    lease = HeldLease(lease_id=state.next_version(), consumer=request.consumer)
    messages = list(chosen)
    for message in messages:
        timeline.enter_lease(message, lease, now)
        message.version = lease.lease_id
        message.attempts += 1
        timeline.hold(message, request.expires)
    granted = lease_set(lease, expires=request.expires, messages=messages)
    state.journal.leased(topic, granted)
    return granted
