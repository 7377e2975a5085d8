"""TLS of the broker's endpoints: the certificates for clients and for other brokers, kept up to date while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from dejaq.broker import metrics as specs
from dejaq.broker.metrics import Gauge, Labels, MetricSpec
from dejaq.config import BrokerConfig
from dejaq.security.client import PLAIN, ClientSecurity
from dejaq.security.tls import ClientTls, ServerTls, TlsFiles
from dejaq.timekeeper.clock import Clock

RELOAD_SECONDS = 1.0


@runtime_checkable
class RenewsTls(Protocol):
    """A server that does not ask for a new certificate by itself, as gRPC does."""

    async def renew_tls(self) -> None:
        """Use the new certificate for new connections."""


class EndpointTls:
    """What the endpoints serve with; every part is None without TLS."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._clock = clock
        self._config = config
        # For clients, and for the other brokers.
        self.clients: ServerTls | None = None
        self.peers: ServerTls | None = None

    def load(self) -> None:
        """Read the files; raises INVALID_ARGUMENT when they cannot be used."""
        config = self._config
        if config.tls_cert is None:
            return
        self.clients = self._server(config.tls_client_ca)
        if config.tls_peer_ca is not None:
            self.peers = self._server(config.tls_peer_ca)

    def _server(self, ca: str | None) -> ServerTls:
        files = TlsFiles(self._config.tls_cert, self._config.tls_key, ca)
        return ServerTls(files, now_s=lambda: self._clock.now_us() / 1_000_000)

    @property
    def to_peers(self) -> ClientSecurity:
        """How this broker calls the others: each side shows its certificate."""
        config = self._config
        if config.tls_peer_ca is None:
            return PLAIN
        return ClientSecurity(tls=ClientTls(TlsFiles(config.tls_cert, config.tls_key, config.tls_peer_ca)))

    @property
    def clients_version(self) -> int:
        """The number of certificates that clients were served with so far."""
        return self.clients.version if self.clients is not None else 0

    def _named(self) -> Iterator[tuple[str, ServerTls]]:
        if self.clients is not None:
            yield "clients", self.clients
        if self.peers is not None:
            yield "peers", self.peers

    async def run(self, servers: Callable[[], Iterable[object]]) -> None:
        """Read changed files again, and have the servers that use Python's TLS use the new certificate."""
        while True:
            await self._clock.sleep(RELOAD_SECONDS)
            for name, tls in self._named():
                # Reading and checking certificates takes milliseconds.
                if await asyncio.to_thread(tls.refresh) and name == "clients":
                    for server in servers():
                        if isinstance(server, RenewsTls):
                            await server.renew_tls()

    def connect(self, gauge: Callable[[MetricSpec, Gauge], None]) -> None:
        """Publish the metrics."""
        gauge(specs.TLS_EXPIRY, self.expiry)
        gauge(specs.TLS_FAILED, self.failures)

    def expiry(self) -> dict[Labels, float]:
        """When each certificate in use expires, in seconds since 1970."""
        return {(name,): tls.material.expires_s for name, tls in self._named()}

    def failures(self) -> dict[Labels, float]:
        """1 for each certificate whose changed files cannot be used, else 0."""
        return {(name,): float(tls.failure is not None) for name, tls in self._named()}
