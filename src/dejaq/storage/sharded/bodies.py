"""Large bodies over shards: each is on the shards of the messages that refer to it.

It is uploaded where its message will be. Who comes to refer to it elsewhere brings it there first: a message that goes
to another shard, or one whose bucket went there between the upload and the create. Each shard reclaims by its own
messages, so none ever needs to know what others refer to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from dejaq.domain.large import Declared, Reference, reference_of
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Missing, error_of
from dejaq.storage.postgres.shard import PostgresShard
from dejaq.storage.sharded.shards import Ask, Result, Shards


class ShardedBodies:
    """Implements `storage.base.Bodies`."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Keep a body on the shard of its bucket, wherever that goes meanwhile."""
        return await self._ask(topic, bucket, lambda shard: shard.bodies.upload(topic, bucket, declared, parts, now))

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body on the shard of the bucket: on another it is of no use here."""
        return await self._ask(topic, bucket, lambda shard: shard.bodies.find(topic, bucket, declared, now))

    async def _ask(self, topic: Topic, bucket: int, call: Ask[Result]) -> Result:
        return await self._shards.ask(self._shards.map.owner(topic, bucket), call)

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part, from the shard of the bucket, or where it was before it came there."""
        own = self._shards.map.owner(topic, bucket)
        for place in sorted(range(len(self._shards)), key=lambda one: one != own):
            try:
                return await self._shards.ask(place, lambda shard: shard.bodies.part_of(reference, part))
            except Missing:
                continue
        raise error_of(Code.BODY_MISSING, "the large body is not there; its message is gone or has another")

    async def reclaim(self, now: int) -> int:
        """Remove what nobody refers to, on every shard that works."""
        return sum([await shard.bodies.reclaim(now) for shard in self._shards if shard.failure is None])

    async def bring(self, shard: PostgresShard, bodies: Iterable[bytes | None], now: int) -> set[bytes]:
        """Have the large bodies that these refer to on a shard too; which of these refer to one that is nowhere.

        Raises UNAVAILABLE where one may be on a shard that does not work.
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
