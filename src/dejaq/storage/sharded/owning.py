"""Changes by the owner over several shards: each message is changed on the shard that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import ByOwner, Cancel, Edit, Edits, Redrive
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError
from dejaq.storage.base import apply_one
from dejaq.storage.postgres.connection.failures import Moving
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded.bodies import ShardedBodies
from dejaq.storage.sharded.placement import is_whole
from dejaq.storage.sharded.routing import Router
from dejaq.storage.sharded.shards import MOVING_SECONDS, POLL_SECONDS, Ask, Shards, raise_if_all_failed


class OwnerChanges:
    """Edits, cancels and redrives, divided by shard."""

    def __init__(self, shards: Shards, router: Router, bodies: ShardedBodies) -> None:
        self._shards = shards
        self._router = router
        self._bodies = bodies

    async def edit(self, change: Edit, now: int, context: CallContext) -> Outcomes:
        """Change the fields that the owner may change."""
        edits = change.edits

        async def part(shard: PostgresShard, rows: Sequence[int]) -> Outcomes:
            columns = (edits.ts, edits.bodies, edits.priorities, edits.headers, edits.versions)
            cut = [None if column is None else [column[row] for row in rows] for column in columns]
            own = Edits([edits.ids[row] for row in rows], *cut)  # type: ignore[arg-type]
            if edits.large:
                await self._bodies.bring(shard, own.bodies or (), now)
            return await apply_one(shard, replace(change, edits=replace(own, large=edits.large)), now, context)

        return await self._by_id(change, edits.ids, now, context, part)

    async def cancel(self, change: Cancel, now: int, context: CallContext) -> Outcomes:
        """Remove messages that no consumer holds."""
        return await self._by_id(
            change,
            change.ids,
            now,
            context,
            lambda shard, rows: apply_one(shard, _cancel_of(change, rows), now, context),
        )

    async def _by_id(
        self,
        change: ByOwner | Redrive,
        ids: Sequence[str],
        now: int,
        context: CallContext,
        part: Callable[[PostgresShard, Sequence[int]], Awaitable[Outcomes]],
    ) -> Outcomes:
        """Change messages by id, each on its shard; rows of a shard that fails have its error's code."""
        topic = change.topic
        await self.requeue_expired(topic, now, context)
        outcomes = Outcomes(len(ids))
        deadline = asyncio.get_running_loop().time() + MOVING_SECONDS
        left: Sequence[int] = range(len(ids))
        while left:
            await self._shards.steady(topic)
            rows_of = await self._router.rows_of(topic, [ids[row] for row in left])
            asked = {place: [left[row] for row in rows] for place, rows in rows_of.items()}
            answers = await self._shards.ask_all({place: _ask_rows(part, rows) for place, rows in asked.items()})
            left = [row for place, answer in answers.items() if isinstance(answer, Moving) for row in asked[place]]
            if left:
                await self._shards.another_map(deadline, poll=POLL_SECONDS)
                answers = {place: answer for place, answer in answers.items() if not isinstance(answer, Moving)}
            raise_if_all_failed(answers)
            for place, answer in answers.items():
                for number, row in enumerate(asked[place]):
                    code = answer.code if isinstance(answer, DejaqError) else answer[number]
                    if code is not Code.OK:
                        outcomes.codes[row] = code
        return outcomes

    async def requeue_expired(self, topic: Topic, now: int, context: CallContext) -> None:
        """Put messages of expired leases at the time that the back-off computes; a shard that fails does it later."""
        if topic.settings.expiry_backoff and not is_whole(topic):
            await self._shards.ask_all(
                self._router.everywhere(topic, lambda shard: shard.expire_leases(topic, now, context))
            )

    async def redrive(self, change: Redrive, now: int, context: CallContext) -> Outcomes:
        """Move dead letters back to a topic that delivers them; ids that are taken on another shard are found first."""
        ids = change.ids
        taken = await self._router.taken_before(change.topic, change.target, ids, now)

        async def part(shard: PostgresShard, rows: Sequence[int]) -> Outcomes:
            own = [row for row in rows if ids[row] not in taken]
            outcomes = Outcomes(len(rows))
            part = replace(change, ids=[ids[row] for row in own])
            done = await apply_one(shard, part, now, context) if own else Outcomes(0)
            places = {row: number for number, row in enumerate(rows)}
            for number, row in enumerate(own):
                if done[number] is not Code.OK:
                    outcomes.codes[places[row]] = done[number]
            for row in rows:
                if ids[row] in taken:
                    outcomes.codes[places[row]] = taken[ids[row]]
            return outcomes

        return await self._by_id(change, ids, now, context, part)


def _ask_rows(
    part: Callable[[PostgresShard, Sequence[int]], Awaitable[Outcomes]], rows: Sequence[int]
) -> Ask[Outcomes]:
    return lambda shard: part(shard, rows)


def _cancel_of(change: Cancel, rows: Sequence[int]) -> Cancel:
    """The part of a cancel that belongs to one shard."""
    versions = None if change.versions is None else [change.versions[row] for row in rows]
    name = None if change.name is None else change.name.of(rows)
    return replace(change, ids=[change.ids[row] for row in rows], versions=versions, name=name)
