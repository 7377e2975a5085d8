"""Large bodies over shards: one shard keeps them, several only give what one of them had before.

A message that goes to another shard, with its bucket or to a dead-letter topic, would leave its body behind; so over
several shards none is taken, and none that is there is removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dejaq.domain.large import Declared, Reference
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.sharded.shards import Shards


class ShardedBodies:
    """Implements `storage.base.Bodies`."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Keep a body on the only shard; BODY_TOO_LARGE where there are several."""
        if len(self._shards) > 1:
            raise error_of(Code.BODY_TOO_LARGE, "a store of several shards takes bodies up to 1 MiB")
        return await self._shards.at(0).bodies.upload(topic, bucket, declared, parts, now)

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body of the only shard."""
        if len(self._shards) > 1:
            return None
        return await self._shards.at(0).bodies.find(topic, bucket, declared, now)

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part, from whichever shard has the body, whatever it is called there."""
        for shard in self._shards:
            known = await shard.bodies.find(topic, bucket, reference, 0)
            if known is not None:
                return await shard.bodies.part(topic, bucket, known, part)
        raise error_of(Code.BODY_MISSING, "the large body is not there; its message is gone or has another")

    async def reclaim(self, now: int) -> int:
        """Remove what nobody refers to, where nobody can elsewhere."""
        return await self._shards.at(0).bodies.reclaim(now) if len(self._shards) == 1 else 0
