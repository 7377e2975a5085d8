"""Completes transfers from shard to shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from dejaq.domain.context import CallContext
from dejaq.errors import DejaqError
from dejaq.storage.postgres.sharding.transfers import Transfer
from dejaq.storage.sharded.bodies import ShardedBodies
from dejaq.storage.sharded.shards import Shards

log = logging.getLogger(__name__)


class Transfers:
    """Moves messages whose transfer from one shard to another was recorded and not completed."""

    def __init__(self, shards: Shards, bodies: ShardedBodies) -> None:
        self._shards = shards
        self._bodies = bodies
        self._turn = asyncio.Lock()

    async def complete(self, now: int, context: CallContext) -> None:
        """Complete the transfers; a transfer that cannot be completed now is completed later."""
        if not any(shard.has_sent for shard in self._shards):
            return
        async with self._turn:
            for shard in self._shards:
                try:
                    while shard.failure is None and shard.has_sent and (transfers := await shard.transfers()):
                        await self._deliver(transfers, now, context)
                        await shard.forget_transfers(transfers)
                except DejaqError as error:
                    log.info("transfers of shard %s are completed later: %s", shard.name, error)

    async def _deliver(self, transfers: Sequence[Transfer], now: int, context: CallContext) -> None:
        topics = {topic.number: topic for topic in await self._shards.at(0).topics()}
        heaps: dict[tuple[int, int], list[Transfer]] = {}
        for transfer in transfers:
            # Messages for a deleted topic are removed with the topic.
            if (topic := topics.get(transfer.topic)) is not None:
                heaps.setdefault((transfer.topic, self._shards.map.owner(topic, transfer.bucket)), []).append(transfer)
        for (number, place), heap in heaps.items():
            shard = self._shards.at(place)
            lost = await self._bodies.bring(shard, [transfer.body for transfer in heap], now)
            await shard.receive(topics[number], heap, now, context, lost)
