"""Messages that HTTP clients hold: each is leased by a consumer of the gateway until it is settled by its lease id.

A consumer serves all requests that use its name. Between requests it is paused, so it takes no message that nobody
asked for. When the gateway ends, messages that were not settled are delivered again after their leases.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from dejaq.errors import Code, DejaqError, error_of
from dejaq.sdk.client import Client
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.consuming.lease import Lease

CONSUMERS_MAX = 500
LEASES_MAX = 100_000
# Messages that one consumer of the gateway holds at most.
HELD_MAX = 1_000
IDLE_SECONDS = 30.0
SWEEP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class HeldByClient:
    """A message that an HTTP client holds under a lease id."""

    lease_id: str
    lease: Lease


@dataclass(slots=True)
class _SharedConsumer:
    consumer: Consumer
    polls: int = 0
    used_at: float = 0.0
    held: set[str] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class LeaseDesk:
    """Leases messages for HTTP clients, and finds them again by lease id."""

    def __init__(self, client: Client, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._consumers: dict[tuple[str, str], _SharedConsumer] = {}
        self._leases: dict[str, tuple[_SharedConsumer, Lease]] = {}
        self._opening = asyncio.Lock()

    async def take(self, topic: str, *, name: str, lease_ms: int, most: int, wait: float) -> list[HeldByClient]:
        """Lease up to `most` due messages; wait up to `wait` seconds for the first."""
        if len(self._leases) + most > LEASES_MAX:
            raise error_of(Code.OVERLOADED, f"HTTP clients hold {len(self._leases)} messages; settle some first")
        shared = await self._consumer(topic, name, lease_ms)
        shared.polls += 1
        try:
            async with shared.turn:
                if shared.consumer.paused:
                    await shared.consumer.resume()
            batch = await shared.consumer.take(most, timeout=wait)
        except TimeoutError:
            return []
        except DejaqError:
            await self._drop(shared)
            raise
        finally:
            shared.polls -= 1
            shared.used_at = self._monotonic()
            if not shared.polls:
                async with shared.turn:
                    if not shared.polls:
                        await shared.consumer.pause()
        return [self._held(shared, lease) for lease in batch]

    def _held(self, shared: _SharedConsumer, lease: Lease) -> HeldByClient:
        lease_id = secrets.token_urlsafe(18)
        self._leases[lease_id] = (shared, lease)
        shared.held.add(lease_id)
        return HeldByClient(lease_id, lease)

    async def _consumer(self, topic: str, name: str, lease_ms: int) -> _SharedConsumer:
        # Requests with another length of lease are another consumer, as a consumer has one length.
        key = (topic, f"{name}.{lease_ms}")
        async with self._opening:
            found = self._consumers.get(key)
            if found is not None:
                return found
            if len(self._consumers) >= CONSUMERS_MAX:
                raise error_of(Code.OVERLOADED, f"HTTP clients use {CONSUMERS_MAX} consumers; try again later")
            consumer = self._client.consumer(
                topic,
                name=key[1],
                lease=lease_ms / 1_000,
                max_in_flight=HELD_MAX,
                auto_extend=False,
                wait_through_outages=False,
            )
            try:
                await consumer.open()
            except BaseException:
                await consumer.close()
                raise
            made = self._consumers[key] = _SharedConsumer(consumer, used_at=self._monotonic())
            return made

    def find(self, topic: str, lease_id: str) -> Lease:
        """The message that a client holds; raises LEASE_LOST when nobody holds it."""
        held = self._leases.get(lease_id)
        if held is None or held[1].topic != topic:
            raise error_of(Code.LEASE_LOST, "no client of this gateway holds a message under this lease id")
        return held[1]

    def forget(self, lease_id: str) -> None:
        """The message was settled."""
        held = self._leases.pop(lease_id, None)
        if held is not None:
            held[0].held.discard(lease_id)

    @property
    def count(self) -> int:
        """How many messages HTTP clients hold."""
        return len(self._leases)

    async def run(self) -> None:
        """Forget expired leases, and close consumers that nobody used for a while, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for lease_id, (_, lease) in list(self._leases.items()):
                if lease.expired or lease.settled:
                    self.forget(lease_id)
            idle = self._monotonic() - IDLE_SECONDS
            for shared in list(self._consumers.values()):
                if not shared.polls and not shared.held and shared.used_at < idle:
                    await self._drop(shared)

    async def _drop(self, shared: _SharedConsumer) -> None:
        for key, one in list(self._consumers.items()):
            if one is shared:
                del self._consumers[key]
        for lease_id in list(shared.held):
            self.forget(lease_id)
        with suppress(DejaqError):
            await shared.consumer.close()

    async def close(self) -> None:
        """Close every consumer."""
        await asyncio.gather(*(self._drop(shared) for shared in list(self._consumers.values())))
