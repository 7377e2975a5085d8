"""The queries over several shards: each shard is asked, and the answers are joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dejaq.domain.batch import LeaseSet
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.errors import DejaqError
from dejaq.storage.base import Filter, Holder, Page, outermost
from dejaq.storage.postgres.reading.querying import page_of
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded import joining
from dejaq.storage.sharded.routing import Router
from dejaq.storage.sharded.shards import Ask, Shards
from dejaq.storage.sharded.snapshot import ShardedSnapshot

T = TypeVar("T")


class ShardedQueries:
    """The queries of a `ShardedStorage`, which change nothing."""

    def __init__(self, shards: Shards, router: Router) -> None:
        self.shards = shards
        self._router = router

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """The earliest of the shards' answers."""
        groups = self._router.groups(topic, buckets)
        if not groups:
            return None

        def ask(own: Sequence[int]) -> Ask[int | None]:
            return lambda shard: shard.next_ts(topic, own, now)

        found = await self.shards.look({place: ask(own) for place, own in groups.items()})
        return min((ts for ts in found.values() if ts is not None), default=None)

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """The remaining rows of a consumer's live leases, on the shards that answer."""
        await self.shards.steady(topic)
        found = await self.shards.look(
            self._router.everywhere(topic, lambda shard: shard.leases_of(topic, consumer, now))
        )
        return joining.by_expiry(found.values())

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages with the ids."""
        return await self._found(topic, ids, lambda shard, some: shard.get(topic, some, now))

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """No body: small bodies are part of their message's row, and only large ones are shared."""
        return None

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """The holder of the live lease of each id."""
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
        """One page of messages: a cursor is a position in their order, which is the same on every shard."""
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
        """The answers of all shards that may have messages of a topic; raises when one does not answer."""
        await self.shards.steady(topic)
        answers = await self.shards.ask_all(self._router.everywhere(topic, call))
        for answer in answers.values():
            if isinstance(answer, DejaqError):
                raise answer
        return [answer for answer in answers.values() if not isinstance(answer, DejaqError)]
