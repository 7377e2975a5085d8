"""Recalls messages that a consumer holds but that are not yet due, because their owner changes them.

A change that met a live lease is answered LEASED, unless every step of this works: the message's time is still
ahead, its consumer has a live session at some broker, the SDK releases it in time, and the storage recalls
the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dejaq.broker.delivery.continuing import recall_known
from dejaq.broker.delivery.peers import ReleasedRows
from dejaq.broker.delivery.roster import Roster
from dejaq.domain.batch import Outcomes, ranges_of_rows
from dejaq.domain.changes import Recall
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

# The row in the lease and the row in the owner's batch.
_Pairs = list[tuple[int, int]]
# By lease and by the name of its holder.
_Groups = dict[tuple[int, str], _Pairs]


async def recall_and_retry(
    context: CallContext,
    *,
    storage: Storage,
    clock: Clock,
    topic: Topic,
    roster: Roster,
    ids: Sequence[str],
    outcomes: Outcomes,
    redo: Callable[[list[int]], Awaitable[Outcomes]],
    versions: list[int | None] | None = None,
) -> None:
    """Recall the rows that are LEASED in `outcomes` where that is possible, `redo` them, and record the result.

    A version in `versions` that names the recalled lease is removed: the message is then the one that the owner read.
    """
    leased = [row for row, code in outcomes.codes.items() if code is Code.LEASED]
    if not leased:
        return
    groups = await _holders(storage, clock, topic, ids, leased)
    returned = await asyncio.gather(
        *(
            roster.request_recall(name, lease, [number for number, _ in pairs])
            for (lease, name), pairs in groups.items()
        )
    )
    back = [(key, groups[key], released) for key, released in zip(groups, returned, strict=True) if released.rows]
    if not back:
        return
    places = [
        (lease, [pair for pair in pairs if pair[0] in set(released.rows)]) for (lease, _), pairs, released in back
    ]
    rows = [row for _, pairs in places for _, row in pairs]
    # All are started before any is awaited, so that no lease can come between the recall and the change.
    undone = [
        asyncio.ensure_future(_recall(context, storage, clock, roster, name, lease, released))
        for (lease, name), _, released in back
    ]
    if versions is not None and not storage.capabilities.shared:
        # In a shared storage, another client may change the message before the retry.
        for lease, pairs in places:
            for _, row in pairs:
                versions[row] = None if versions[row] == lease else versions[row]
    if storage.capabilities.shared:
        # A shared storage does not keep the order of changes that run at the same time.
        await asyncio.gather(*undone)
    again = asyncio.ensure_future(redo(rows))
    await asyncio.gather(*undone)
    result = await again
    for place, row in enumerate(rows):
        outcomes.codes.pop(row)
        if result[place] is not Code.OK:
            outcomes.codes[row] = result[place]
    if result.failed:
        roster.notify(clock.now_ms())


async def _holders(storage: Storage, clock: Clock, topic: Topic, ids: Sequence[str], leased: Sequence[int]) -> _Groups:
    now = clock.now_ms()
    groups: _Groups = {}
    for row, holder in zip(leased, await storage.holders(topic, [ids[row] for row in leased], now), strict=True):
        if holder is not None and holder.due > now:
            groups.setdefault((holder.lease_id, holder.consumer), []).append((holder.row, row))
    return groups


async def _recall(
    context: CallContext,
    storage: Storage,
    clock: Clock,
    roster: Roster,
    name: str,
    lease_id: int,
    released: ReleasedRows,
) -> None:
    consumer = roster.find(name)
    if consumer is not None:
        await consumer.recall(context, lease_id, released)
    else:
        change = Recall(roster.topic, lease_id, name, ranges_of_rows(released.rows))
        await recall_known(storage, change, released.ends, clock.now_ms(), context)
