"""The storage contract over several PostgreSQL stores, each of which has some of the buckets.

A request is cut by shard and the answers are joined. What one call does on several shards is one commit on each: a part
that fails leaves the others done, and the repeat under the same names finds out. A transaction stays on one shard.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from dejaq.domain.batch import CreateBatch, Deletion, LeaseRequest, LeaseSet, Outcomes, RowRange
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError
from dejaq.storage.base import Capabilities, Edits, Filter, Holder, Page, outermost
from dejaq.storage.postgres.change import Away
from dejaq.storage.postgres.failures import Moving
from dejaq.storage.postgres.querying import page_of
from dejaq.storage.postgres.shard import PostgresShard
from dejaq.storage.postgres.store import CAPABILITIES
from dejaq.storage.postgres.turns import Turns
from dejaq.storage.sharded import joining
from dejaq.storage.sharded.bodies import ShardedBodies
from dejaq.storage.sharded.courier import Courier
from dejaq.storage.sharded.creating import Creator
from dejaq.storage.sharded.joining import Asked
from dejaq.storage.sharded.journal import MergedJournal
from dejaq.storage.sharded.leasing import Leases
from dejaq.storage.sharded.placement import ShardMap, is_whole
from dejaq.storage.sharded.routing import Router
from dejaq.storage.sharded.shards import MOVING_SECONDS, POLL_SECONDS, Ask, MakeShard, Shards, raise_if_all_failed
from dejaq.storage.sharded.snapshot import ShardedSnapshot
from dejaq.storage.sharded.stepping import bodies_of, shard_of
from dejaq.storage.steps import Transaction, Verdict

log = logging.getLogger(__name__)
T = TypeVar("T")
_LEASES_KNOWN_MAX = 10_000
# What the first shard may count between this and the end of a topic.
_TICKETS_BETWEEN = 1 << 20


class ShardedStorage:
    """Topics and messages on several shards. The first has the topics' numbers, names and whatever must be whole."""

    def __init__(self, first: ShardMap, make: MakeShard) -> None:
        self.shards = Shards(first, make)
        self._router = Router(self.shards)
        self.bodies = ShardedBodies(self.shards)
        self._creator = Creator(self.shards, self._router, self.bodies)
        self._journal = MergedJournal(self.shards)
        self._leases = Leases(self.shards, self._router)
        self._courier = Courier(self.shards, self.bodies)

    @property
    def capabilities(self) -> Capabilities:
        """Durable, for several brokers, and in parts."""
        return replace(CAPABILITIES, parts=len(self.shards))

    @property
    def identity(self) -> str:
        """The name of the first shard's store."""
        return self.shards.at(0).identity

    # Life

    async def open(self, now: int) -> None:
        """Open the shards, and bring to each what it missed."""
        await self.shards.open(now)
        self._place_all()
        await self._journal.open()
        await self._teach_topics()
        await self._courier.carry(now)

    def _place_all(self) -> None:
        """Tell each shard which buckets are elsewhere."""
        for place, shard in enumerate(self.shards):
            shard.set_away(self._away_from(place))

    def _away_from(self, place: int) -> Away:
        return lambda topic, bucket: self.shards.map.owner(topic, bucket) != place

    async def _teach_topics(self) -> None:
        topics = {topic.number: topic for topic in await self.shards.at(0).topics()}
        for shard in list(self.shards)[1:]:
            if shard.failure is None:
                known = {topic.number: topic for topic in await shard.topics()}
                for topic in known.values():
                    if topic.number not in topics:
                        await shard.drop_topic(_silent(topic), 0)
                for topic in topics.values():
                    if known.get(topic.number) != topic:
                        await shard.put_topic(topic)

    async def close(self) -> None:
        """Close the shards."""
        await self.shards.close()
        self._leases.forget()

    @property
    def failure(self) -> str | None:
        """Why no shard takes requests, or None while one does."""
        reasons = [shard.failure for shard in self.shards]
        return reasons[0] if reasons and None not in reasons else None if reasons else "the store is not open"

    async def recover(self, now: int) -> None:
        """Bring the shards back."""
        await self.shards.recover(now)

    def stats(self) -> dict[str, float]:
        """The sums of the shards' numbers."""
        sums: Counter[str] = Counter()
        for shard in self.shards:
            sums.update(shard.stats())
        return dict(sums)

    # The map

    @property
    def map(self) -> ShardMap:
        """The map that it works by."""
        return self.shards.map

    async def follow(self, fresh: ShardMap) -> None:
        """Work by another map from now on; shards that it brings are opened and told of the topics."""
        known = [shard.name for shard in self.map.shards]
        await self.shards.follow(fresh)
        self._leases.forget()
        self._place_all()
        names = [shard.name for shard in fresh.shards]
        if names != known:
            await self._teach_topics()
        for shard in self.shards:
            if shard.failure is None:
                await shard.note(names)

    async def kept(self) -> dict[str, list[str]]:
        """The shards that each shard was told to be one of."""
        found = {shard.name: await shard.noted() for shard in self.shards if shard.failure is None}
        return {name: names for name, names in found.items() if names}

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, as the first shard knows it."""
        return await self.shards.at(0).topics()

    async def put_topic(self, topic: Topic) -> None:
        """Write a topic's record on every shard; the first decides about its name."""
        for place in range(len(self.shards)):
            await self.shards.ask(place, lambda shard: shard.put_topic(topic))

    async def next_topic_number(self) -> int:
        """Count one up."""
        return await self.shards.at(0).next_topic_number()

    async def drop_topic(self, topic: Topic, now: int) -> None:
        """Remove everything of a topic, from the first shard last; only that one tells of it."""
        await self.shards.until_moved(lambda: self._drop(topic, now))

    async def _drop(self, topic: Topic, now: int) -> None:
        await self.shards.steady(topic)
        for place in reversed(range(1, len(self.shards))):
            await self.shards.ask(place, lambda shard: shard.drop_topic(_silent(topic), now))
        await self.shards.ask(0, lambda shard: shard.drop_topic(topic, now, before_telling=self._put_between))

    async def _put_between(self) -> None:
        """Let the end of a topic, told on the first shard, stand behind what all have told and before what they will.

        The others are sent ahead first: whoever dies behind this has at worst left numbers out.
        """
        if len(self.shards) == 1:
            return
        last = max([await self.shards.ask(place, lambda shard: shard.ticket()) for place in range(len(self.shards))])
        for place in range(1, len(self.shards)):
            await self.shards.ask(place, lambda shard: shard.keep_up_ticket(last + _TICKETS_BETWEEN))
        await self.shards.ask(0, lambda shard: shard.keep_up_ticket(last))

    # The producer's side

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        """Create the admitted rows, each on its shard."""
        return await self._creator.create(topic, batch, now)

    async def edit(self, topic: Topic, owner: str, edits: Edits, now: int) -> Outcomes:
        """Change messages of an owner."""

        async def part(shard: PostgresShard, rows: Sequence[int]) -> Outcomes:
            columns = (edits.ts, edits.bodies, edits.priorities, edits.headers, edits.versions)
            cut = [None if column is None else [column[row] for row in rows] for column in columns]
            own = Edits([edits.ids[row] for row in rows], *cut)  # type: ignore[arg-type]
            if edits.large:
                await self.bodies.bring(shard, own.bodies or (), now)
            return await shard.edit(topic, owner, replace(own, large=edits.large), now)

        return await self._by_id(topic, edits.ids, now, part)

    async def cancel(
        self, topic: Topic, owner: str, ids: Sequence[str], now: int, versions: Sequence[int | None] | None = None
    ) -> Outcomes:
        """Remove messages of an owner."""

        def part(shard: PostgresShard, rows: Sequence[int]) -> Awaitable[Outcomes]:
            seen = None if versions is None else [versions[row] for row in rows]
            return shard.cancel(topic, owner, [ids[row] for row in rows], now, seen)

        return await self._by_id(topic, ids, now, part)

    async def _by_id(
        self,
        topic: Topic,
        ids: Sequence[str],
        now: int,
        part: Callable[[PostgresShard, Sequence[int]], Awaitable[Outcomes]],
    ) -> Outcomes:
        """Do something to messages by id, each on its shard; rows of a shard that fails have its error's code."""
        await self._put_back(topic, now)
        outcomes = Outcomes(len(ids))
        deadline = asyncio.get_running_loop().time() + MOVING_SECONDS
        left: Sequence[int] = range(len(ids))
        while left:
            await self.shards.steady(topic)
            rows_of = await self._router.rows_of(topic, [ids[row] for row in left])
            asked = {place: [left[row] for row in rows] for place, rows in rows_of.items()}
            answers = await self.shards.ask_all({place: _ask_rows(part, rows) for place, rows in asked.items()})
            left = [row for place, answer in answers.items() if isinstance(answer, Moving) for row in asked[place]]
            if left:
                await self.shards.another_map(deadline, poll=POLL_SECONDS)
                answers = {place: answer for place, answer in answers.items() if not isinstance(answer, Moving)}
            raise_if_all_failed(answers)
            for place, answer in answers.items():
                for number, row in enumerate(asked[place]):
                    code = answer.code if isinstance(answer, DejaqError) else answer[number]
                    if code is not Code.OK:
                        outcomes.codes[row] = code
        return outcomes

    async def _put_back(self, topic: Topic, now: int) -> None:
        """Where lost messages wait, let them on every shard; one that fails does so when it works again."""
        if topic.settings.expiry_backoff and not is_whole(topic):
            await self.shards.ask_all(self._everywhere(topic, lambda shard: shard.put_back(topic, now)))

    # The consumer's side

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        """Lease what is due on every shard, the first ones first, under one lease id."""
        await self._put_back(topic, now)
        lease = await self._leases.lease(topic, request, now)
        await self._courier.carry(now)
        return lease

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """The earliest of what the shards say."""
        groups = self._router.groups(topic, buckets)
        if not groups:
            return None

        def ask(own: Sequence[int]) -> Ask[int | None]:
            return lambda shard: shard.next_ts(topic, own, now)

        found = await self.shards.look({place: ask(own) for place, own in groups.items()})
        return min((ts for ts in found.values() if ts is not None), default=None)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Nothing to do: the servers keep near what they are asked for."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """What is left of a consumer's live leases, on the shards that answer."""
        await self.shards.steady(topic)
        found = await self.shards.look(self._everywhere(topic, lambda shard: shard.leases_of(topic, consumer, now)))
        return joining.by_expiry(found.values())

    def _everywhere(self, topic: Topic, call: Ask[T]) -> dict[int, Ask[T]]:
        """A call to each shard that may have something of a topic."""
        return dict.fromkeys(self._router.places(topic), call)

    async def _settle(
        self,
        topic: Topic,
        lease_id: int,
        rows: Sequence[RowRange] | None,
        now: int,
        call: Callable[[PostgresShard, Asked], Awaitable[Outcomes]],
    ) -> Outcomes:
        outcomes = await self._leases.settle(topic, lease_id, rows, call)
        await self._courier.carry(now)
        return outcomes

    async def delete(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Remove leased rows."""
        return await self._settle(
            topic,
            lease_id,
            rows,
            now,
            lambda shard, asked: shard.delete(topic, lease_id, consumer, asked.rows, now, asked.of(handed_us)),
        )

    async def delete_many(self, topic: Topic, consumer: str, deletions: Sequence[Deletion], now: int) -> list[Outcomes]:
        """Remove rows of several leases: in one commit where there is one shard for them."""
        if len(self._router.places(topic)) == 1:
            return await self.shards.ask(0, lambda shard: shard.delete_many(topic, consumer, deletions, now))
        # Those of one lease follow each other; a consumer's leases are many.
        turns = Turns()

        async def delete(one: Deletion) -> Outcomes:
            async with turns.of([one.lease_id]):
                return await self.delete(topic, one.lease_id, consumer, one.rows, now, one.handed_us)

        return await asyncio.gather(*map(delete, deletions))

    async def extend(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        expires: int,
        now: int,
    ) -> Outcomes:
        """Move the end of leased rows."""
        return await self._settle(
            topic,
            lease_id,
            rows,
            now,
            lambda shard, asked: shard.extend(topic, lease_id, consumer, asked.rows, expires, now),
        )

    async def release(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        ts: int | Sequence[int],
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Put leased rows back on the timeline."""
        self._leases.check_times(lease_id, rows, ts)
        return await self._settle(
            topic,
            lease_id,
            rows,
            now,
            lambda shard, asked: shard.release(
                topic,
                lease_id,
                consumer,
                asked.rows,
                ts if isinstance(ts, int) else asked.of(ts),
                now,
                asked.of(handed_us),
            ),
        )

    async def recall(
        self, topic: Topic, lease_id: int, consumer: str, rows: Sequence[RowRange] | None, now: int
    ) -> Outcomes:
        """Undo the lease of rows that user code never saw."""
        return await self._settle(
            topic, lease_id, rows, now, lambda shard, asked: shard.recall(topic, lease_id, consumer, asked.rows, now)
        )

    # Both sides at once

    async def transact(self, transaction: Transaction, now: int) -> Verdict:
        """Do all steps on the one shard that has all they name, or none."""
        if not transaction.steps:
            return Verdict()
        verdict = await self.shards.until_moved(lambda: self._transact(transaction, now))
        if verdict.code is not Code.ALREADY_EXISTS:
            for topic in {step.topic.number: step.topic for step in transaction.steps}.values():
                await self._put_back(topic, now)
        return verdict

    async def _transact(self, transaction: Transaction, now: int) -> Verdict:
        for step in transaction.steps:
            await self.shards.steady(step.topic)
        place = await shard_of(transaction, self.shards, self._router)
        if place is None:
            return Verdict(Code.ALREADY_EXISTS)

        async def transact(shard: PostgresShard) -> Verdict:
            await self.bodies.bring(shard, bodies_of(transaction), now)
            return await shard.transact(transaction, now)

        return await self.shards.ask(place, transact)

    async def reject(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        dead_letter: Topic,
        reason: str,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Move leased rows to the dead-letter topic, by parcel where that is on another shard."""
        return await self._settle(
            topic,
            lease_id,
            rows,
            now,
            lambda shard, asked: shard.reject(
                topic, lease_id, consumer, asked.rows, dead_letter, reason, now, asked.of(handed_us)
            ),
        )

    async def redrive(self, topic: Topic, target: Topic, ids: Sequence[str], now: int) -> Outcomes:
        """Move dead letters to where they may live again; what is taken on another shard is seen before."""
        taken = await self._router.taken_before(topic, target, ids, now)

        async def part(shard: PostgresShard, rows: Sequence[int]) -> Outcomes:
            own = [row for row in rows if ids[row] not in taken]
            outcomes = Outcomes(len(rows))
            done = await shard.redrive(topic, target, [ids[row] for row in own], now) if own else Outcomes(0)
            places = {row: number for number, row in enumerate(rows)}
            for number, row in enumerate(own):
                if done[number] is not Code.OK:
                    outcomes.codes[places[row]] = done[number]
            for row in rows:
                if ids[row] in taken:
                    outcomes.codes[places[row]] = taken[ids[row]]
            return outcomes

        outcomes = await self._by_id(topic, ids, now, part)
        await self._courier.carry(now)
        return outcomes

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records of this broker on all shards behind a sequence."""
        return await self._journal.read(after, bytes_max)

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records of this broker up to a sequence."""
        await self._journal.trim(up_to)

    # Queries

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages of the ids."""
        return await self._found(topic, ids, lambda shard, some: shard.get(topic, some, now))

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """Who holds the ids."""
        return await self._found(topic, ids, lambda shard, some: shard.holders(topic, some, now))

    async def _found(
        self,
        topic: Topic,
        ids: Sequence[str],
        find: Callable[[PostgresShard, list[str]], Awaitable[list[T | None]]],
    ) -> list[T | None]:
        found: list[T | None] = [None] * len(ids)
        await self.shards.steady(topic)
        rows_of = await self._router.rows_of(topic, ids)

        def of(rows: Sequence[int]) -> Ask[list[T | None]]:
            return lambda shard: find(shard, [ids[row] for row in rows])

        for place, rows in rows_of.items():
            for row, one in zip(rows, await self.shards.ask(place, of(rows)), strict=True):
                found[row] = one
        return found

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match."""
        return sum(await self._gather(topic, lambda shard: shard.count(topic, where, now)))

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """Counts by step of time."""
        sums: Counter[int] = Counter()
        for counts in await self._gather(topic, lambda shard: shard.histogram(topic, where, step, now)):
            sums.update(dict(counts))
        return sorted(sums.items())

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of messages: a cursor is a place in their order, the same on every shard."""
        parts = await self._gather(topic, lambda shard: shard.rows_behind(topic, where, cursor, limit, now))
        order = ("priority", "ts", "id") if topic.by_priority else ("ts", "id")
        records = sorted((one for part in parts for one in part), key=lambda one: tuple(one[name] for name in order))
        return page_of(topic, where, records, limit)

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The oldest available message of each priority."""
        oldest: dict[int, int] = {}
        for part in await self._gather(topic, lambda shard: shard.oldest(topic, now, count)):
            for priority, ts in part:
                oldest[priority] = min(ts, oldest.get(priority, ts))
        return outermost(oldest, count)

    async def snapshot(self, topic: Topic, now: int) -> ShardedSnapshot:
        """A view of a topic on every shard."""
        places = self._router.places(topic)
        views = await self._gather(topic, lambda shard: shard.snapshot(topic, now))
        owners = {bucket: self.shards.map.owner(topic, bucket) for bucket in range(topic.settings.buckets)}
        return ShardedSnapshot(now, dict(zip(places, views, strict=True)), owners)

    async def _gather(self, topic: Topic, call: Ask[T]) -> list[T]:
        """What every shard that may have something of a topic says; raises when one does not answer."""
        await self.shards.steady(topic)
        answers = await self.shards.ask_all(self._everywhere(topic, call))
        for answer in answers.values():
            if isinstance(answer, DejaqError):
                raise answer
        return [answer for answer in answers.values() if not isinstance(answer, DejaqError)]


def _ask_rows(
    part: Callable[[PostgresShard, Sequence[int]], Awaitable[Outcomes]], rows: Sequence[int]
) -> Ask[Outcomes]:
    return lambda shard: part(shard, rows)


def _silent(topic: Topic) -> Topic:
    """The topic, as one that the journal is not told of."""
    return replace(topic, settings=replace(topic.settings, journal=False))
