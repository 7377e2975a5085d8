"""The storage contract over several PostgreSQL stores, each with a part of the buckets.

A request is divided by shard and the answers are joined. A call that concerns several shards makes one commit on each:
when one fails, the others stay committed, and a repeat under the same names finds this out. A transaction stays on one
shard.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import (
    ByConsumer,
    Cancel,
    Change,
    Create,
    Delete,
    Edit,
    Redrive,
    Release,
)
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Refused
from dejaq.storage.base import Capabilities, apply_one
from dejaq.storage.copies import Copies
from dejaq.storage.grouping import attempt, grouped
from dejaq.storage.log.base import LogStorage
from dejaq.storage.postgres.operations.change import Away
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.postgres.store import CAPABILITIES
from dejaq.storage.sharded import joining
from dejaq.storage.sharded.bodies import ShardedBodies
from dejaq.storage.sharded.creating import Creator
from dejaq.storage.sharded.journal import MergedJournal
from dejaq.storage.sharded.leasing import Leases
from dejaq.storage.sharded.owning import OwnerChanges
from dejaq.storage.sharded.placement import ShardMap
from dejaq.storage.sharded.querying import ShardedQueries
from dejaq.storage.sharded.routing import Router
from dejaq.storage.sharded.shards import MakeShard, Shards, raise_if_all_failed
from dejaq.storage.sharded.topics import ShardedTopics
from dejaq.storage.sharded.transacting import bodies_of, shard_of
from dejaq.storage.sharded.transfers import Transfers
from dejaq.storage.sharded.turns import Turns
from dejaq.storage.transactions import Transaction, Verdict

# The transfers that a stopped broker left behind are completed when the store is opened.
_OPENING = CallContext.internal("complete transfers")


class ShardedStorage(ShardedQueries):
    """Topics and messages on several shards.

    The first has the topics' numbers and names, and topics that are not divided.
    """

    def __init__(self, first: ShardMap, make: MakeShard) -> None:
        shards = Shards(first, make)
        super().__init__(shards, Router(shards))
        self._topics = ShardedTopics(self.shards)
        self.bodies = ShardedBodies(self.shards)
        self._owner_changes = OwnerChanges(self.shards, self._router, self.bodies)
        self._creator = Creator(self.shards, self._router, self.bodies)
        self._journal = MergedJournal(self.shards)
        self._leases = Leases(self.shards, self._router)
        self._transfers = Transfers(self.shards, self.bodies)

    @property
    def capabilities(self) -> Capabilities:
        """Durable, for several brokers, and in several parts."""
        return replace(CAPABILITIES, parts=len(self.shards))

    @property
    def identity(self) -> str:
        """The name of the first shard's store."""
        return self.shards.at(0).identity

    @property
    def logs(self) -> LogStorage:
        """The logs, which are on the first shard, each as a whole."""
        return self.shards.at(0).logs

    # Lifecycle

    async def open(self, now: int) -> None:
        """Open the shards, and copy to each the records that it missed."""
        await self.shards.open(now)
        self._place_all()
        await self._journal.open()
        await self._topics.copy_to_others()
        await self._transfers.complete(now, _OPENING)

    def _place_all(self) -> None:
        """Report to each shard the buckets that are on other shards."""
        for place, shard in enumerate(self.shards):
            shard.set_away(self._away_from(place))

    def _away_from(self, place: int) -> Away:
        return lambda topic, bucket: self.shards.map.owner(topic, bucket) != place

    def announce(self, name: str) -> None:
        """Use this name for the connections to every shard."""
        self.shards.name = name

    async def users(self, prefix: str) -> list[tuple[str, str]]:
        """The users of the first shard, which every broker uses."""
        return await self.shards.at(0).users(prefix)

    async def copies(self, topic: Topic) -> list[Copies]:
        """The shards that have buckets of the topic, each with its standbys."""
        placed = self.shards.map
        buckets = Counter(placed.owner(topic, bucket) for bucket in range(topic.settings.buckets))
        found: list[Copies] = []
        for place, count in sorted(buckets.items()):
            (copies,) = await self.shards.at(place).copies(topic)
            found.append(replace(copies, shard=placed.shards[place].name, buckets=count))
        return found

    async def close(self) -> None:
        """Close the shards."""
        await self.shards.close()
        self._leases.forget()

    @property
    def failure(self) -> str | None:
        """The reason why no shard accepts requests, or None while one does."""
        reasons = [shard.failure for shard in self.shards]
        return reasons[0] if reasons and None not in reasons else None if reasons else "the store is not open"

    @property
    def corrupt(self) -> bool:
        """Whether the stored data of a shard is damaged."""
        return any(shard.corrupt for shard in self.shards)

    async def recover(self, now: int) -> None:
        """Reopen the shards that failed."""
        await self.shards.recover(now)

    def stats(self) -> dict[str, float]:
        """The sums of the shards' numbers."""
        return _sums(shard.stats() for shard in self.shards)

    def journal_stats(self) -> dict[str, float]:
        """The sums of those of the shards' journals."""
        return _sums(shard.journal_stats() for shard in self.shards)

    # The map

    @property
    def map(self) -> ShardMap:
        """The map in use."""
        return self.shards.map

    async def follow(self, fresh: ShardMap) -> None:
        """Use another map from now on; its new shards are opened and receive the topics."""
        known = [shard.name for shard in self.map.shards]
        await self.shards.follow(fresh)
        self._leases.forget()
        self._place_all()
        names = [shard.name for shard in fresh.shards]
        if names != known:
            await self._topics.copy_to_others()
        for shard in self.shards:
            if shard.failure is None:
                await shard.note(names)

    async def kept(self) -> dict[str, list[str]]:
        """The shards of the storage as each shard has recorded them."""
        found = {shard.name: await shard.noted() for shard in self.shards if shard.failure is None}
        return {name: names for name, names in found.items() if names}

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, according to the first shard."""
        return await self.shards.at(0).topics()

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        """Write a topic's record on every shard; the first shard decides whether the name is free."""
        await self._topics.put(topic, context)

    async def next_topic_number(self) -> int:
        """The next number of the first shard."""
        return await self.shards.at(0).next_topic_number()

    async def drop_topic(self, topic: Topic, now: int, context: CallContext) -> None:
        """Remove everything of a topic, from the first shard last; only the journal of that shard records it."""
        await self._topics.drop(topic, now, context)

    # Changes

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        """Apply each change separately, on the shards that have its rows."""
        answers: list[Outcomes | Refused] = []
        for group in grouped(changes):
            if isinstance(group[0], Delete):
                deletes = [one for one in group if isinstance(one, Delete)]
                answers += await self._delete(deletes, now, context)
            else:
                answers += [await attempt(self._apply(change, now, context)) for change in group]
        return answers

    async def _apply(self, change: Change, now: int, context: CallContext) -> Outcomes:
        match change:
            case Create():
                return await self._creator.create(change.topic, change.batch, now, context)
            case Edit():
                return await self._owner_changes.edit(change, now, context)
            case Cancel():
                return await self._owner_changes.cancel(change, now, context)
            case Redrive():
                outcomes = await self._owner_changes.redrive(change, now, context)
                await self._transfers.complete(now, context)
                return outcomes
            case _:
                return await self._settle(change, now, context)

    # Consumer

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        """Lease the messages that are due on every shard, the earliest first, under one lease id."""
        await self._owner_changes.requeue_expired(topic, now, context)
        lease = await self._leases.lease(topic, request, now, context)
        await self._transfers.complete(now, context)
        return lease

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Does nothing: the servers cache the data that they read."""

    async def _settle(self, change: ByConsumer, now: int, context: CallContext) -> Outcomes:
        if isinstance(change, Release):
            self._leases.check_times(change.lease_id, change.rows, change.ts)
        outcomes = await self._leases.settle(
            change.topic,
            change.lease_id,
            change.rows,
            lambda shard, asked: apply_one(shard, joining.part_of(change, asked), now, context),
        )
        await self._transfers.complete(now, context)
        return outcomes

    async def _delete(self, deletes: Sequence[Delete], now: int, context: CallContext) -> list[Outcomes | Refused]:
        """Remove rows of several leases: in one commit when one shard has all of them."""
        topic = deletes[0].topic
        if len(self._router.places(topic)) == 1:
            return await self.shards.ask(0, lambda shard: shard.apply(deletes, now, context))
        # The deletes of one lease stay in order; a consumer may have many leases.
        turns = Turns()

        async def delete(one: Delete) -> Outcomes | DejaqError:
            try:
                async with turns.of([one.lease_id]):
                    return await self._settle(one, now, context)
            except DejaqError as error:
                return error

        answers = await asyncio.gather(*map(delete, deletes))
        if not any(isinstance(answer, Outcomes | Refused) for answer in answers):
            raise_if_all_failed(dict(enumerate(answers)))
        return [
            answer if isinstance(answer, Outcomes | Refused) else Outcomes.of_rows(one.rows or [(0, 1)], answer.code)
            for one, answer in zip(deletes, answers, strict=True)
        ]

    # Transactions

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        """Apply all steps on the one shard that has all the named messages, or none."""
        if not transaction.steps and not transaction.log_steps:
            return Verdict()
        verdict = await self.shards.until_moved(lambda: self._transact(transaction, now, context))
        if verdict.code is not Code.ALREADY_EXISTS:
            for topic in {step.topic.number: step.topic for step in transaction.steps}.values():
                await self._owner_changes.requeue_expired(topic, now, context)
        return verdict

    async def _transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        for step in transaction.steps:
            await self.shards.steady(step.topic)
        place = await shard_of(transaction, self.shards, self._router)
        if place is None:
            return Verdict(Code.ALREADY_EXISTS)

        async def transact(shard: PostgresShard) -> Verdict:
            await self.bodies.bring(shard, bodies_of(transaction), now)
            return await shard.transact(transaction, now, context)

        return await self.shards.ask(place, transact)

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records of this broker on all shards after a sequence."""
        return await self._journal.read(after, bytes_max)

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records of this broker up to a sequence."""
        await self._journal.trim(up_to)


def _sums(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for one in figures:
        sums.update(one)
    return dict(sums)
