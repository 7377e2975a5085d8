"""A consumer of the SDK that keeps some leases, which auto-extend extends, while many other messages pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import dejaq
from bench.harness.payload import BATCH, Batch
from bench.harness.window import Window
from bench.systems.dejaq_broker import BUCKETS, TOPIC
from bench.systems.slow_consumer import Taken
from dejaq.sdk.consuming.lease import Batch as Leases
from dejaq.sdk.consuming.lease import Lease

DELETES_IN_FLIGHT = 8
# Leases that are settled one by one.
KEPT_IN_FLIGHT = 256


class _DejaqTaken:
    def __init__(self, leases: Leases, kept: list[Lease], deletes: Window) -> None:
        self.bodies: Sequence[bytes] = leases.bodies
        self._leases = leases
        self._kept = kept
        self._deletes = deletes

    async def delete(self, positions: Sequence[int]) -> None:
        async def delete() -> None:
            (await self._leases.delete(positions)).raise_for_failures()

        await self._deletes.add(delete())

    def keep(self, positions: Sequence[int]) -> None:
        self._kept.extend(self._leases[position] for position in positions)


class DejaqSlowConsumer:
    """A consumer of the SDK with auto-extend."""

    def __init__(self, address: str) -> None:
        self._client = dejaq.connect(f"dejaq://{address}")
        self._producer = self._client.producer(TOPIC)
        self._kept: list[Lease] = []
        self._deletes = Window(DELETES_IN_FLIGHT)
        self._deletes_of_kept = Window(KEPT_IN_FLIGHT)

    async def open(self, *, lease_seconds: float, held: int) -> None:
        await self._client.open()
        await self._client.create_topic(TOPIC, buckets=BUCKETS)
        await self._producer.open()
        self._consumer = self._client.consumer(TOPIC, name="slow", lease=lease_seconds, max_in_flight=held + 20_000)
        await self._consumer.open()

    async def send(self, batch: Batch) -> None:
        results = await self._producer.send_batch(batch.bodies, at=batch.due_ms, ids=batch.ids)
        results.raise_for_failures()

    async def taken(self) -> AsyncIterator[Taken]:
        async for leases in self._consumer.batches(BATCH):
            yield _DejaqTaken(leases, self._kept, self._deletes)

    async def delete_kept(self) -> int:
        await self._deletes.drain()
        lost = 0

        async def delete(lease: Lease) -> None:
            nonlocal lost
            try:
                await lease.delete()
            except dejaq.DejaqError:
                lost += 1

        for lease in self._kept:
            await self._deletes_of_kept.add(delete(lease))
        await self._deletes_of_kept.drain()
        return lost

    async def close(self) -> None:
        await self._consumer.close()
        await self._producer.close()
        await self._client.close()
