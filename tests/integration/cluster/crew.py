"""Brokers of one cluster in this process: one store and one hub, and gRPC on loopback between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dejaq
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually


class Crew:
    """The brokers, by their names, and what they share."""

    def __init__(self) -> None:
        self.storage = SharedMemoryStorage()
        self.hub = Hub()
        self.brokers: dict[str, dejaq.Broker] = {}
        self.places: dict[str, LocalSynchronization] = {}

    def make(self, name: str, **keys: Any) -> dejaq.Broker:
        place = self.places[name] = LocalSynchronization(self.hub)
        keys = {"storage": self.storage, "listen": "127.0.0.1:0", **keys}
        broker = self.brokers[name] = dejaq.Broker(broker=name, synchronization=place, **keys)
        return broker

    @property
    def urls(self) -> list[str]:
        return [f"dejaq://{broker.address}" for broker in self.brokers.values()]

    @property
    def url(self) -> str:
        return f"dejaq://{','.join(broker.address for broker in self.brokers.values())}"

    async def gathered(self) -> None:
        """Wait until everybody knows everybody."""
        everybody = set(self.brokers)
        for broker in self.brokers.values():
            await eventually(
                lambda broker=broker: broker.central.cluster.members.keys() == everybody, within=5, what="all are there"
            )


@asynccontextmanager
async def crew_of(*names: str, **keys: Any) -> AsyncIterator[Crew]:
    crew = Crew()
    try:
        for name in names:
            await crew.make(name, **keys).start()
        await crew.gathered()
        yield crew
    finally:
        await asyncio.gather(*(broker.stop() for broker in crew.brokers.values()))
