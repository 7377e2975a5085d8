"""The brokers of one cluster in this process: one store and one synchronization, on loopback."""

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
    """The brokers by name, and the store and the synchronization that they share."""

    def __init__(self, member: type[LocalSynchronization] = LocalSynchronization, *, grpc: bool = False) -> None:
        """With `grpc` the URLs are those of the brokers' gRPC endpoints."""
        self.storage = SharedMemoryStorage()
        self.hub = Hub()
        self._member = member
        self._grpc = grpc
        self.brokers: dict[str, dejaq.Broker] = {}
        self.places: dict[str, LocalSynchronization] = {}

    def make(self, name: str, **keys: Any) -> dejaq.Broker:
        place = self.places[name] = self._member(self.hub)
        keys = {"storage": self.storage, "listen": "127.0.0.1:0", **keys}
        if self._grpc:
            keys = {"grpc": "127.0.0.1:0", **keys}
        broker = self.brokers[name] = dejaq.Broker(broker=name, synchronization=place, **keys)
        return broker

    @property
    def urls(self) -> list[str]:
        return [f"{self._scheme}://{self.address_of(name)}" for name in self.brokers]

    @property
    def url(self) -> str:
        return f"{self._scheme}://{','.join(self.address_of(name) for name in self.brokers)}"

    @property
    def _scheme(self) -> str:
        return "dejaq+grpc" if self._grpc else "dejaq"

    def address_of(self, name: str) -> str:
        """The address of a broker that is in the URLs."""
        broker = self.brokers[name]
        return broker.grpc_address if self._grpc else broker.address

    def addresses_of(self, name: str) -> dict[str, str]:
        """The keys that start another broker at the addresses of this one."""
        broker = self.brokers[name]
        return {"listen": broker.address, **({"grpc": self.address_of(name)} if self._grpc else {})}

    async def gathered(self) -> None:
        """Wait until every broker knows every other broker."""
        everybody = set(self.brokers)
        for broker in self.brokers.values():
            await eventually(
                lambda: broker.central.cluster.members.keys() == everybody,
                within=5,
                what="every broker knows every other broker",
            )


@asynccontextmanager
async def crew_of(
    *names: str, member: type[LocalSynchronization] = LocalSynchronization, grpc: bool = False, **keys: Any
) -> AsyncIterator[Crew]:
    crew = Crew(member, grpc=grpc)
    try:
        for name in names:
            await crew.make(name, **keys).start()
        await crew.gathered()
        yield crew
    finally:
        await asyncio.gather(*(broker.stop() for broker in crew.brokers.values()))
