"""Large bodies over shards: each body is on the shards of the messages that refer to it.

A body is uploaded to the shard of its message. Before a message on another shard refers to it, it is copied there: for
a message that moves, or whose bucket moved between the upload and the create. Each shard reclaims bodies by its own
messages, so no shard needs to know the references of the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from dejaq.domain.bodies.large import Declared, Reference, reference_of
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Missing, error_of
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded.shards import Ask, Result, Shards


class ShardedBodies:
    """Implements `storage.base.Bodies`."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Store a body on the shard of its bucket, also when the bucket moves meanwhile."""
        return await self._ask(topic, bucket, lambda shard: shard.bodies.upload(topic, bucket, declared, parts, now))

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body on the shard of the bucket; a body on another shard cannot be used here."""
        return await self._ask(topic, bucket, lambda shard: shard.bodies.find(topic, bucket, declared, now))

    async def _ask(self, topic: Topic, bucket: int, call: Ask[Result]) -> Result:
        return await self._shards.ask(self._shards.map.owner(topic, bucket), call)

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part, from the shard of the bucket, or from the shard that had the bucket before."""
        own = self._shards.map.owner(topic, bucket)
        for place in sorted(range(len(self._shards)), key=lambda one: one != own):
            try:
                return await self._shards.ask(place, lambda shard: shard.bodies.part_of(reference, part))
            except Missing:
                continue
        raise error_of(Code.BODY_MISSING, "the large body does not exist; its message is gone or has another body")

    async def reclaim(self, now: int) -> int:
        """Remove the bodies that nobody refers to, on every shard that works."""
        return sum([await shard.bodies.reclaim(now) for shard in self._shards if shard.failure is None])

    async def bring(self, shard: PostgresShard, bodies: Iterable[bytes | None], now: int) -> set[bytes]:
        """Copy the large bodies of these references to a shard; returns the references whose body does not exist
        anywhere.

        Raises UNAVAILABLE when a body may be on a shard that does not work.
        """
        if len(self._shards) == 1:
            return set()
        asked = {body: found for body in bodies if body is not None and (found := reference_of(body)) is not None}
        absent = set(await shard.bodies.absent(asked.values(), now))
        others = sorted((one for one in self._shards if one is not shard), key=lambda one: one.failure is not None)
        for reference in list(absent):
            for other in others:
                if await shard.bodies.adopt(reference, other.bodies, now):
                    absent.discard(reference)
                    break
        return {body for body, reference in asked.items() if reference in absent}
