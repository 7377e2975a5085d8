"""Gets messages back that a consumer holds but that are not yet due, because their owner changes them.

A change that met a live lease is answered LEASED, unless every step of this works: the message's time is still
ahead, its holder has a live session here, the SDK lets go of it in time, and the store undoes the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dejaq.broker.carrier.consumer import Consumer
from dejaq.broker.carrier.roster import Roster
from dejaq.domain.batch import Outcomes
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

# The row in the lease and the row in the owner's batch.
_Pairs = list[tuple[int, int]]
_Groups = dict[tuple[int, Consumer], _Pairs]


async def regain(
    *,
    storage: Storage,
    clock: Clock,
    topic: Topic,
    roster: Roster,
    ids: Sequence[str],
    outcomes: Outcomes,
    redo: Callable[[list[int]], Awaitable[Outcomes]],
) -> None:
    """Recall the rows that are LEASED in `outcomes` where that is possible, `redo` them, and record the result."""
    leased = [row for row, code in outcomes.codes.items() if code is Code.LEASED]
    if not leased:
        return
    groups = await _holders(storage, clock, topic, roster, ids, leased)
    returned = await asyncio.gather(
        *(_ask(consumer, lease_id, pairs) for (lease_id, consumer), pairs in groups.items())
    )
    back = [(key, pairs) for key, pairs in zip(groups, returned, strict=True) if pairs]
    if not back:
        return
    rows = [row for _, pairs in back for _, row in pairs]
    # All started before any is awaited, so that no lease can come between the undoing and the change.
    undone = [
        asyncio.ensure_future(consumer.undo(lease_id, [number for number, _ in pairs]))
        for (lease_id, consumer), pairs in back
    ]
    again = asyncio.ensure_future(redo(rows))
    await asyncio.gather(*undone)
    result = await again
    for place, row in enumerate(rows):
        outcomes.codes.pop(row)
        if result[place] is not Code.OK:
            outcomes.codes[row] = result[place]
    if result.failed:
        roster.nudge(clock.now_ms())


async def _holders(
    storage: Storage, clock: Clock, topic: Topic, roster: Roster, ids: Sequence[str], leased: Sequence[int]
) -> _Groups:
    now = clock.now_ms()
    groups: _Groups = {}
    for row, holder in zip(leased, await storage.holders(topic, [ids[row] for row in leased], now), strict=True):
        consumer = None if holder is None else roster.find(holder.consumer)
        if holder is not None and consumer is not None and holder.due > now:
            groups.setdefault((holder.lease_id, consumer), []).append((holder.row, row))
    return groups


async def _ask(consumer: Consumer, lease_id: int, pairs: _Pairs) -> _Pairs:
    numbers = set(await consumer.ask_back(lease_id, [number for number, _ in pairs]))
    return [pair for pair in pairs if pair[0] in numbers]
