"""A later session of a consumer continues its leases, and a recall by the earlier session ends none of these.

A session that continues leases gives them a later end, and a recall names the end that its broker knows. So the storage
decides which of the two came first, also if the sessions are at different brokers and one of them stopped for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dejaq.broker.delivery.inflight import Inflight
from dejaq.domain.batch import LeaseSet, Outcomes, ranges_of_rows
from dejaq.domain.changes import Extend, Recall
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock


async def continued_leases(
    storage: Storage,
    clock: Clock,
    topic: Topic,
    consumer: str,
    inflight: Inflight,
    context: CallContext,
) -> list[LeaseSet]:
    """What the consumer still holds and is not in `inflight`, with an end that is a millisecond later."""
    held = await _held(storage, clock, topic, consumer, inflight)
    if not held:
        return []
    extends = [
        Extend(
            topic,
            lease.lease_id,
            consumer,
            [(0, len(lease))] if lease.rows is None else ranges_of_rows(lease.rows),
            lease.expires + 1,
        )
        for lease in held
    ]
    await storage.apply(extends, clock.now_ms(), context)
    # Without the rows that were recalled or settled meanwhile, and without leases that the earlier session got since.
    given = {(lease.lease_id, lease.expires + 1) for lease in held}
    return [
        lease
        for lease in await _held(storage, clock, topic, consumer, inflight)
        if (lease.lease_id, lease.expires) in given
    ]


async def recall_known(
    storage: Storage, change: Recall, ends: Sequence[int | None], now: int, context: CallContext
) -> Outcomes:
    """Recall rows whose lease has one of these ends, of which None is every end; the others are LEASE_LOST."""
    # No lease has the end 0.
    answers = await storage.apply([replace(change, expires=end) for end in ends or (0,)], now, context)
    for answer in answers:
        if isinstance(answer, Refused):
            raise answer
    outcomes = [answer for answer in answers if isinstance(answer, Outcomes)]
    lost = set.intersection(*(set(answer.codes) for answer in outcomes))
    return Outcomes(max(answer.count for answer in outcomes), dict.fromkeys(sorted(lost), Code.LEASE_LOST))


async def _held(storage: Storage, clock: Clock, topic: Topic, consumer: str, inflight: Inflight) -> list[LeaseSet]:
    held = await storage.leases_of(topic, consumer, clock.now_ms())
    return [lease for lease in held if lease.lease_id not in inflight]
