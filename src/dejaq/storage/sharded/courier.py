"""Brings parcels from shard to shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from dejaq.errors import DejaqError
from dejaq.storage.postgres.parcels import Parcel
from dejaq.storage.sharded.bodies import ShardedBodies
from dejaq.storage.sharded.shards import Shards

log = logging.getLogger(__name__)


class Courier:
    """Carries the messages that left one shard for another."""

    def __init__(self, shards: Shards, bodies: ShardedBodies) -> None:
        self._shards = shards
        self._bodies = bodies
        self._turn = asyncio.Lock()

    async def carry(self, now: int) -> None:
        """Bring what is on its way to where it goes; what cannot be brought now is brought later."""
        if not any(shard.has_sent for shard in self._shards):
            return
        async with self._turn:
            for shard in self._shards:
                try:
                    while shard.failure is None and shard.has_sent and (parcels := await shard.parcels()):
                        await self._deliver(parcels, now)
                        await shard.forget_parcels(parcels)
                except DejaqError as error:
                    log.info("parcels of shard %s are brought later: %s", shard.name, error)

    async def _deliver(self, parcels: Sequence[Parcel], now: int) -> None:
        topics = {topic.number: topic for topic in await self._shards.at(0).topics()}
        heaps: dict[tuple[int, int], list[Parcel]] = {}
        for parcel in parcels:
            # What goes to a topic that is gone goes with it.
            if (topic := topics.get(parcel.topic)) is not None:
                heaps.setdefault((parcel.topic, self._shards.map.owner(topic, parcel.bucket)), []).append(parcel)
        for (number, place), heap in heaps.items():
            shard = self._shards.at(place)
            lost = await self._bodies.bring(shard, [parcel.body for parcel in heap], now)
            await shard.receive(topics[number], heap, now, lost)
