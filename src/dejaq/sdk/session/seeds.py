"""The brokers that a client may use, and the calls that any of them can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Protocol, runtime_checkable

from google.protobuf.message import Message

from dejaq.errors import DejaqError, NoBroker, OutOfState
from dejaq.protocol.transport import Response, Transport
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.sdk.session.address import Carriage, parse_url
from dejaq.sdk.session.backoff import RetryDelays
from dejaq.sdk.session.security import NO_OPTIONS, SecurityOptions
from dejaq.sdk.session.settings import ClientSettings
from dejaq.security.credentials import BearerSource
from dejaq.timekeeper.clock import Clock, SystemClock

SEEDS_MAX = 64


@runtime_checkable
class Local(Protocol):
    """A broker inside this process, such as `dejaq.Broker`."""

    def transport(self) -> Transport:
        """A transport to it without a network."""


def transport_class(carriage: Carriage) -> Callable[..., Transport]:
    """What makes a transport from an address and a `ClientSecurity`."""
    if carriage is Carriage.GRPC:
        # Loading gRPC takes longer than all of the SDK.
        from dejaq.protocol.channel import GrpcTransport

        return GrpcTransport
    return WebSocketTransport


def transports_of(url: str, options: SecurityOptions = NO_OPTIONS) -> list[Transport]:
    """A transport to each broker that `url` names."""
    named = parse_url(url)
    connect, security = transport_class(named.carriage), options.for_target(named, SystemClock())
    return [connect(address, security=security) for address in named.addresses]


def seeds_of(target: str | Local, random: Random, options: SecurityOptions, clock: Clock) -> Seeds:
    """A transport to each broker that `target` names."""
    if not isinstance(target, str):
        return Seeds([target.transport()], random)
    named = parse_url(target)
    security = options.for_target(named, clock)
    connect = partial(transport_class(named.carriage), security=security)
    transports = [connect(address) for address in named.addresses]
    return Seeds(transports, random, connect=connect, credentials=security.credentials)


class Seeds:
    """Transports in a ring: the transport that worked last is tried first, and a transport that
    failed goes to the end.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        random: Random,
        *,
        connect: Callable[[str], Transport] = WebSocketTransport,
        credentials: BearerSource | None = None,
    ) -> None:
        """`connect` makes a transport to a broker that another broker named."""
        self._connect = connect
        # What the transports show to brokers, so that sessions can show newer ones in time.
        self.credentials = credentials
        self._ring = list(transports)
        self.random = random
        self._closed = "is not open: use `async with dejaq.connect(...)`"

    def open(self) -> None:
        """Allow calls."""
        self._closed = ""

    @property
    def addresses(self) -> str:
        """Every address, for messages to users."""
        return ", ".join(transport.address for transport in self._ring)

    @property
    def count(self) -> int:
        """The number of brokers to try."""
        return len(self._ring)

    def learn(self, addresses: Iterable[str]) -> None:
        """Add brokers that another broker named: they are tried when the known brokers fail."""
        known = {transport.address for transport in self._ring}
        for address in addresses:
            if address not in known and len(self._ring) < SEEDS_MAX:
                self._ring.append(self._connect(address))

    def prefer(self, address: str) -> None:
        """Try the broker at this address next."""
        for transport in self._ring:
            if transport.address == address:
                self._ring.remove(transport)
                self._ring.insert(0, transport)
                return

    def first(self) -> Transport:
        """The transport to try next; raises OUT_OF_STATE when the client is not open."""
        if self._closed:
            raise OutOfState(f"the client {self._closed}")
        return self._ring[0]

    def demote(self, transport: Transport) -> None:
        """Try the other transports before this one."""
        self._ring.remove(transport)
        self._ring.append(transport)

    def patience(self, settings: ClientSettings) -> Patience:
        """The patience for one call that begins now."""
        return Patience(self, settings.deadline)

    async def call(
        self, method: str, request: Message, response: type[Response], *, patience: ClientSettings
    ) -> Response:
        """Ask the brokers in turn until one answers or the deadline has passed.

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
        """Close every connection."""
        self._closed = "is closed"
        for transport in self._ring:
            await transport.close()


class Patience:
    """The time that is left of a deadline over several tries with several brokers."""

    def __init__(self, seeds: Seeds, deadline: float) -> None:
        self._seeds = seeds
        self._deadline = deadline
        self._backoff = RetryDelays(seeds.random, deadline=deadline)
        self.reset()

    def reset(self) -> None:
        """Start again, because the last try made progress."""
        # The last error in which a broker said why it cannot serve.
        self._refusal: DejaqError | None = None
        self._until = asyncio.get_running_loop().time() + self._deadline
        self._tries = 0
        self._backoff.reset()

    def left(self) -> float:
        """Seconds until the deadline, a little more than 0 after it."""
        return max(self._until - asyncio.get_running_loop().time(), 0.001)

    async def after(self, error: DejaqError, transport: Transport) -> None:
        """Wait before the next try; raises `error` when it is final.

        When the deadline comes first it raises the last error that a broker answered, or NoBroker when none answered.
        """
        if not error.retryable:
            raise error
        if error.answered and not error.indefinite:
            self._refusal = error
        self._seeds.demote(transport)
        self._tries += 1
        wait = 0.0 if self._tries % self._seeds.count else self._backoff.seconds(error.throttled_ms)
        if wait >= self.left():
            if self._refusal is not None:
                raise self._refusal from error
            raise NoBroker(
                f"no broker answered at {self._seeds.addresses}; check the address and that `dejaq serve` runs",
                details=str(error),
            ) from error
        await asyncio.sleep(wait)
