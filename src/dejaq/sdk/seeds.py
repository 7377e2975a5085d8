"""The brokers a client may use, and the calls that any of them can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol, runtime_checkable

from google.protobuf.message import Message

from dejaq.errors import DejaqError, NoBroker
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.transport import Response, Transport
from dejaq.sdk.address import parse_url
from dejaq.sdk.backoff import Backoff
from dejaq.sdk.settings import ClientSettings

SEEDS_MAX = 64


@runtime_checkable
class Local(Protocol):
    """A broker inside this process, such as `dejaq.Broker`."""

    def transport(self) -> Transport:
        """A way to it without a network."""


def transports_to(target: str | Local) -> list[Transport]:
    """A transport to each broker that `target` names."""
    if isinstance(target, str):
        return [GrpcTransport(address) for address in parse_url(target)]
    return [target.transport()]


class Seeds:
    """Transports in a ring: the one that worked last is tried first, one that failed goes to the back."""

    def __init__(self, transports: Sequence[Transport], random: Random) -> None:
        self._ring = list(transports)
        self.random = random

    @property
    def addresses(self) -> str:
        """Every address, for people."""
        return ", ".join(transport.address for transport in self._ring)

    @property
    def count(self) -> int:
        """How many brokers there are to try."""
        return len(self._ring)

    def learn(self, addresses: Iterable[str]) -> None:
        """Brokers that others told of: they are tried when those that are known fail."""
        known = {transport.address for transport in self._ring}
        for address in addresses:
            if address not in known and len(self._ring) < SEEDS_MAX:
                self._ring.append(GrpcTransport(address))

    def prefer(self, address: str) -> None:
        """Try the broker at this address next."""
        for transport in self._ring:
            if transport.address == address:
                self._ring.remove(transport)
                self._ring.insert(0, transport)
                return

    def first(self) -> Transport:
        """The one to try next."""
        return self._ring[0]

    def demote(self, transport: Transport) -> None:
        """Try the others before this one."""
        self._ring.remove(transport)
        self._ring.append(transport)

    def patience(self, settings: ClientSettings) -> Patience:
        """The patience for one call that begins now."""
        return Patience(self, settings.deadline)

    async def call(
        self, method: str, request: Message, response: type[Response], *, patience: ClientSettings
    ) -> Response:
        """Ask any broker, again and again until one answers or the deadline has passed.

        Only for calls that may be repeated. Raises NoBroker when none answered in time.
        """
        tries = self.patience(patience)
        while True:
            transport = self.first()
            try:
                return await transport.call(method, request, response, min(patience.timeout, tries.left()))
            except DejaqError as error:
                await tries.after(error, transport)

    async def close(self) -> None:
        """Let go of every connection."""
        for transport in self._ring:
            await transport.close()


class Patience:
    """What is left of a deadline over several tries at several brokers."""

    def __init__(self, seeds: Seeds, deadline: float) -> None:
        self._seeds = seeds
        self._deadline = deadline
        self._backoff = Backoff(seeds.random, deadline=deadline)
        self.reset()

    def reset(self) -> None:
        """Begin again: the last try brought something."""
        self._until = asyncio.get_running_loop().time() + self._deadline
        self._tries = 0
        self._backoff.reset()

    def left(self) -> float:
        """Seconds until the deadline, a little more than 0 after it."""
        return max(self._until - asyncio.get_running_loop().time(), 0.001)

    async def after(self, error: DejaqError, transport: Transport) -> None:
        """Wait before the next try; raises `error` when it is final, NoBroker when the deadline comes first."""
        if not error.retryable:
            raise error
        self._seeds.demote(transport)
        self._tries += 1
        wait = 0.0 if self._tries % self._seeds.count else self._backoff.seconds(error.throttled_ms)
        if wait >= self.left():
            raise NoBroker(
                f"no broker answered at {self._seeds.addresses}; check the address and that `dejaq serve` runs",
                details=str(error),
            ) from error
        await asyncio.sleep(wait)
