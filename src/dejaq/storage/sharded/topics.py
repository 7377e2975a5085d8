"""The topics of a storage of several shards: every shard has all records, and the first shard decides."""

from __future__ import annotations

from dataclasses import replace

from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.storage.sharded.shards import Shards

# How many numbers the first shard may use between this and the end of a topic.
_TICKETS_BETWEEN = 1 << 20
_COPY = CallContext.internal("copy topics")


class ShardedTopics:
    """Keeps the records of topics the same on every shard."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def copy_to_others(self) -> None:
        """Copy the records of the first shard to every other shard that answers."""
        topics = {topic.number: topic for topic in await self._shards.at(0).topics()}
        for shard in list(self._shards)[1:]:
            if shard.failure is None:
                known = {topic.number: topic for topic in await shard.topics()}
                for topic in known.values():
                    if topic.number not in topics:
                        await shard.drop_topic(_silent(topic), 0, _COPY)
                for topic in topics.values():
                    if known.get(topic.number) != topic:
                        await shard.put_topic(topic, _COPY)

    async def put(self, topic: Topic, context: CallContext) -> None:
        """Write a topic's record on every shard; the first shard decides whether the name is free."""
        for place in range(len(self._shards)):
            await self._shards.ask(place, lambda shard: shard.put_topic(topic, context))

    async def drop(self, topic: Topic, now: int, context: CallContext) -> None:
        """Remove everything of a topic, from the first shard last; only the first shard records it."""
        await self._shards.until_moved(lambda: self._drop(topic, now, context))

    async def _drop(self, topic: Topic, now: int, context: CallContext) -> None:
        await self._shards.steady(topic)
        for place in reversed(range(1, len(self._shards))):
            await self._shards.ask(place, lambda shard: shard.drop_topic(_silent(topic), now, context))
        await self._shards.ask(0, lambda shard: shard.drop_topic(topic, now, context, before_telling=self._put_between))

    async def _put_between(self) -> None:
        """Give the end of a topic a number above all records of all shards, and below their next numbers.

        The other shards skip numbers first: a broker that stops after this has at worst left numbers unused.
        """
        if len(self._shards) == 1:
            return
        last = max([await self._shards.ask(place, lambda shard: shard.ticket()) for place in range(len(self._shards))])
        for place in range(1, len(self._shards)):
            await self._shards.ask(place, lambda shard: shard.keep_up_ticket(last + _TICKETS_BETWEEN))
        await self._shards.ask(0, lambda shard: shard.keep_up_ticket(last))


def _silent(topic: Topic) -> Topic:
    """The topic with its journal switched off."""
    return replace(topic, settings=replace(topic.settings, journal=False))
