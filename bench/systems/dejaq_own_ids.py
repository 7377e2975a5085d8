"""DejaQ with ids that the client chooses: single sends from many producers, and changes by id."""

from __future__ import annotations

from collections.abc import Sequence

import dejaq
from bench.systems.base import Refused
from bench.systems.dejaq_broker import BUCKETS, TOPIC
from dejaq.errors import DejaqError


class DejaqSender:
    """Clients with a connection each; every producer is one of the SDK."""

    def __init__(self, address: str) -> None:
        self._url = f"dejaq://{address}"
        self._clients: list[dejaq.Client] = []
        self._producers: list[dejaq.Producer] = []

    async def open(self, *, connections: int, producers: int) -> None:
        """Create the topic and open everything, so that the clock starts with the work."""
        for _ in range(connections):
            client = dejaq.connect(self._url)
            await client.open()
            self._clients.append(client)
        await self._clients[0].create_topic(TOPIC, buckets=BUCKETS)
        for number in range(producers):
            producer = self._clients[number % connections].producer(TOPIC)
            await producer.open()
            self._producers.append(producer)

    async def send(self, producer: int, message_id: str, body: bytes, due_ms: int) -> None:
        """One `send`."""
        try:
            await self._producers[producer].send(body, at=due_ms, id=message_id)
        except DejaqError as error:
            # The SDK tried again until its deadline.
            raise Refused(str(error)) from error

    async def close(self) -> None:
        """Close the clients with their producers."""
        for client in self._clients:
            await client.close()


class DejaqById:
    """One producer, which owns the messages, and its client, which reads them."""

    def __init__(self, address: str) -> None:
        self._client = dejaq.connect(f"dejaq://{address}")
        self._producer = self._client.producer(TOPIC)

    async def open(self) -> None:
        """Connect."""
        await self._client.open()
        await self._producer.open()

    async def get(self, ids: Sequence[str]) -> int:
        """Read the messages; how many were found."""
        return sum(message is not None for message in await self._client.get(TOPIC, ids))

    async def move(self, ids: Sequence[str], due_ms: Sequence[int]) -> None:
        """Move; raises when one is refused."""
        await self._producer.move(ids, at=due_ms)

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Edit; raises when one is refused."""
        await self._producer.edit_batch(ids, bodies=bodies)

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel; raises when one is refused."""
        await self._producer.cancel(ids)

    async def close(self) -> None:
        """Disconnect."""
        await self._producer.close()
        await self._client.close()
