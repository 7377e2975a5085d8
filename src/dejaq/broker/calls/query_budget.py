"""How much a client may ask: queries at one time, time per second, and time per query.

Queries work in short steps, so none of them blocks deliveries. Many at one time would still take turns from everything
else. Hence each client has a few at one time, others of it wait in line, and a client that keeps several running for
long is asked to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil

from dejaq import limits
from dejaq.broker.metrics import QUERIES_REFUSED, Metrics
from dejaq.domain.context import CallContext
from dejaq.errors import Code, DejaqError, error_of
from dejaq.timekeeper.clock import Clock

# Clients that have no query running and all of their time back are forgotten beyond so many.
_KEPT_MAX = 1_000
# How long a client with too many waiting queries is asked to wait.
_CROWDED_MS = 200


@dataclass(slots=True)
class _Client:
    at_ms: int
    # Milliseconds that it has left: they come at a rate, and go as fast as its queries run. While one runs at a time,
    # they never end, however long it takes.
    left_ms: float = limits.QUERY_MS_PER_SECOND_MAX
    running: int = 0
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.QUERIES_PER_CLIENT_MAX))
    # Those that run and those that wait.
    queries: int = 0

    def count(self, now_ms: int) -> None:
        """Count the time since the last call."""
        passed = max(0, now_ms - self.at_ms)
        self.at_ms = now_ms
        come = passed * limits.QUERY_MS_PER_SECOND_MAX / 1_000
        self.left_ms = min(self.left_ms + come - passed * self.running, limits.QUERY_MS_PER_SECOND_MAX)

    @property
    def wait_ms(self) -> int:
        """How long it should wait until it has time left."""
        return ceil(max(0.0, -self.left_ms) * 1_000 / limits.QUERY_MS_PER_SECOND_MAX)


class QueryBudget:
    """What clients have asked, each by its address."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._clients: dict[str, _Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    @asynccontextmanager
    async def query(self, context: CallContext, what: str) -> AsyncIterator[None]:
        """The place of one query; raises OVERLOADED for a client above its budget, LIMIT_EXCEEDED when it takes too
        long.
        """
        # Callers in this process have no address that distinguishes them.
        client = None if context.in_process else self._client(context.peer)
        if client is not None:
            self._admit(client)
            client.queries += 1
        try:
            async with asyncio.timeout(limits.QUERY_MS_MAX / 1_000) as late:
                if client is None:
                    yield
                    return
                async with client.places:
                    client.count(self._now_ms())
                    client.running += 1
                    try:
                        yield
                    finally:
                        client.count(self._now_ms())
                        client.running -= 1
        except TimeoutError:
            if not late.expired():
                raise
            raise self._refused(
                Code.LIMIT_EXCEEDED,
                f"the {what} takes longer than {limits.QUERY_MS_MAX // 1_000} s; ask for a shorter time range, "
                f"for steps of whole minutes, or without a filter by header or priority",
            ) from None
        finally:
            if client is not None:
                client.queries -= 1

    def _admit(self, client: _Client) -> None:
        client.count(self._now_ms())
        wait = client.wait_ms
        if wait:
            raise self._refused(
                Code.OVERLOADED,
                f"this client's queries take more than {limits.QUERY_MS_PER_SECOND_MAX} ms per second; "
                f"ask again after {wait} ms, with fewer at one time",
                wait,
            )
        waiting_max = limits.QUERIES_PER_CLIENT_MAX + limits.QUERIES_WAITING_PER_CLIENT_MAX
        if client.queries >= waiting_max:
            raise self._refused(
                Code.OVERLOADED,
                f"this client has {client.queries} queries running and waiting, at most {waiting_max}; "
                f"ask fewer at one time",
                _CROWDED_MS,
            )

    def _refused(self, code: Code, message: str, throttled_ms: int = 0) -> DejaqError:
        self._metrics.add(QUERIES_REFUSED, 1, str(code))
        return error_of(code, message, throttled_ms=throttled_ms)

    def _client(self, peer: str) -> _Client:
        client = self._clients.get(peer)
        if client is None:
            if len(self._clients) >= _KEPT_MAX:
                self._forget_idle()
            client = self._clients[peer] = _Client(self._now_ms())
        return client

    def _forget_idle(self) -> None:
        now = self._now_ms()
        for client in self._clients.values():
            client.count(now)
        self._clients = {
            peer: client
            for peer, client in self._clients.items()
            if client.queries or client.left_ms < limits.QUERY_MS_PER_SECOND_MAX
        }

    def _now_ms(self) -> int:
        return round(1_000 * self._clock.monotonic())
