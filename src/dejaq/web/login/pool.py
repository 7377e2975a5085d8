"""One gateway, and so one client of the brokers, per credentials: each request has the rights of its own caller."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dejaq.errors import Code, Unauthenticated, error_of
from dejaq.sdk.client import Client
from dejaq.web.gateway import Gateway
from dejaq.web.live.pace import LivePace
from dejaq.web.metrics.history import MetricsHistory
from dejaq.web.settings import WebSettings

# Callers that are connected at one time, and how long a connection stays that nobody uses.
GATEWAYS_MAX = 200
IDLE_SECONDS = 60.0
SWEEP_SECONDS = 5.0

# Makes a client with these credentials; with the gateway's own ones for an empty text.
Connect = Callable[[str], Client]


@dataclass(slots=True, eq=False)
class _Pooled:
    gateway: Gateway
    opening: asyncio.Task[None]
    uses: int = 0
    used_at: float = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.uses and not self.gateway.leases.count


class GatewayPool:
    """The gateways of the callers. Credentials are kept as a digest; only the client itself has their text."""

    def __init__(
        self,
        connect: Connect,
        settings: WebSettings,
        history: MetricsHistory,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._connect = connect
        self._settings = settings
        self._monotonic = monotonic
        self._pooled: dict[bytes, _Pooled] = {}
        # All callers together ask the brokers for live data at this pace.
        self._pace = LivePace()

    @asynccontextmanager
    async def use(self, credentials: str) -> AsyncIterator[Gateway]:
        """The gateway of a caller, which other requests use too; raises UNAUTHENTICATED, or OVERLOADED."""
        key = hashlib.sha256(credentials.encode("utf-8", "replace")).digest()
        pooled = self._pooled.get(key)
        if pooled is None:
            await self._make_room()
            gateway = Gateway(self._connect(credentials), self._settings, history=self._history, pace=self._pace)
            pooled = self._pooled[key] = _Pooled(gateway, asyncio.ensure_future(gateway.open()))
        pooled.uses += 1
        try:
            try:
                await asyncio.shield(pooled.opening)
            except Unauthenticated:
                await self._close(key, pooled)
                raise
            yield pooled.gateway
        finally:
            pooled.uses -= 1
            pooled.used_at = self._monotonic()

    async def _make_room(self) -> None:
        while len(self._pooled) >= GATEWAYS_MAX:
            idle = [(one.used_at, key) for key, one in self._pooled.items() if one.is_idle]
            if not idle:
                raise error_of(Code.OVERLOADED, f"{GATEWAYS_MAX} callers are connected; try again later")
            key = min(idle)[1]
            await self._close(key, self._pooled[key])

    async def forget(self, credentials: str) -> None:
        """Close the connection of a caller who left, whatever still uses it."""
        key = hashlib.sha256(credentials.encode("utf-8", "replace")).digest()
        if key in self._pooled:
            await self._close(key, self._pooled[key])

    async def _close(self, key: bytes, pooled: _Pooled) -> None:
        if self._pooled.get(key) is pooled:
            del self._pooled[key]
            await pooled.gateway.close()

    @property
    def count(self) -> int:
        """How many callers are connected."""
        return len(self._pooled)

    async def run(self) -> None:
        """Close connections that nobody used for a while, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """Close connections that nobody used for a while. The gateway's own one stays."""
        before = self._monotonic() - IDLE_SECONDS
        own = hashlib.sha256(b"").digest()
        for key, pooled in list(self._pooled.items()):
            if key != own and pooled.is_idle and pooled.used_at < before:
                await self._close(key, pooled)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(self._close(key, one) for key, one in list(self._pooled.items())))
