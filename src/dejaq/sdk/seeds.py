"""The brokers a client may use, and the calls that any of them can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Protocol, runtime_checkable

from google.protobuf.message import Message

from dejaq.errors import DejaqError, NoBroker
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.transport import Response, Transport
from dejaq.sdk.address import parse_url
from dejaq.sdk.backoff import Backoff


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

    def first(self) -> Transport:
        """The one to try next."""
        return self._ring[0]

    def demote(self, transport: Transport) -> None:
        """Try the others before this one."""
        self._ring.remove(transport)
        self._ring.append(transport)

    async def call(
        self,
        method: str,
        request: Message,
        response: type[Response],
        *,
        timeout: float,
        deadline: float,
    ) -> Response:
        """Ask any broker, again and again until one answers or `deadline` seconds have passed.

        Only for calls that may be repeated. Raises NoBroker when none answered in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline
        backoff = Backoff(self.random)
        tries = 0
        while True:
            transport = self.first()
            tries += 1
            try:
                left = max(until - loop.time(), 0.001)
                return await transport.call(method, request, response, min(timeout, left))
            except DejaqError as error:
                if not error.retryable:
                    raise
                self.demote(transport)
                wait = 0.0 if tries % self.count else backoff.seconds(error.throttled_ms)
                if loop.time() + wait >= until:
                    raise _unanswered(error, self.addresses) from error
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Let go of every connection."""
        for transport in self._ring:
            await transport.close()


def _unanswered(error: DejaqError, addresses: str) -> NoBroker:
    return NoBroker(
        f"no broker answered at {addresses}; check the address and that `dejaq serve` runs", details=str(error)
    )
