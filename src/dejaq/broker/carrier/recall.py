"""Gets messages back that a consumer holds but that are not yet due, because their owner changes them.

A change that met a live lease is answered LEASED, unless every step of this works: the message's time is still
ahead, its holder has a live session here, the SDK lets go of it in time, and the store undoes the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dejaq.broker.carrier.roster import Roster
from dejaq.domain.batch import Outcomes
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

# Lease, holder's name -> pairs of the row in the lease and the row in the owner's batch.
_Groups = dict[tuple[int, str], list[tuple[int, int]]]


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
        *(_ask(roster, holder, lease_id, pairs) for (lease_id, holder), pairs in groups.items())
    )
    back = [(key, pairs) for key, pairs in zip(groups, returned, strict=True) if pairs]
    if not back:
        return
    rows = [row for _, pairs in back for _, row in pairs]
    # All started before any is awaited, so that no lease can come between the undoing and the change.
    undone = [
        asyncio.ensure_future(consumer.undo(lease_id, [number for number, _ in pairs]))
        for (lease_id, holder), pairs in back
        if (consumer := roster.find(holder)) is not None
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
    for row, holder in zip(
        leased, await storage.holders(topic, [ids[row] for row in leased], now), strict=True
    ):
        if holder is not None and holder.due > now and roster.find(holder.consumer) is not None:
            groups.setdefault((holder.lease_id, holder.consumer), []).append((holder.row, row))
    return groups


async def _ask(
    roster: Roster, holder: str, lease_id: int, pairs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    consumer = roster.find(holder)
    if consumer is None:
        return []
    numbers = set(await consumer.ask_back(lease_id, [number for number, _ in pairs]))
    return [pair for pair in pairs if pair[0] in numbers]
