"""Runs each query once for all clients that ask for it, and keeps only the newest answer for a slow client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from dejaq.errors import Code, DejaqError, error_of
from dejaq.sdk.client import Client
from dejaq.web.live.pace import LivePace
from dejaq.web.live.views import View
from dejaq.web.metrics.history import MetricsHistory
from dejaq.web.problem import problem_of

log = logging.getLogger("dejaq.web")

VIEWS_MAX = 200
VIEWS_PER_CLIENT_MAX = 8
CLIENTS_MAX = 500


class LiveClient:
    """One connected page: the newest answer of each of its views that it has not been sent."""

    def __init__(self) -> None:
        self.views: set[View] = set()
        self._waiting: dict[View, str] = {}
        self._ready = asyncio.Event()

    def offer(self, view: View, payload: str) -> None:
        """Replace what waits for this view; an answer that was not sent in time is dropped."""
        self._waiting[view] = payload
        self._ready.set()

    async def take(self) -> list[str]:
        """Wait for answers and take them."""
        await self._ready.wait()
        self._ready.clear()
        waiting, self._waiting = self._waiting, {}
        return [payload for view, payload in waiting.items() if view in self.views]


@dataclass(slots=True)
class _Polled:
    clients: set[LiveClient] = field(default_factory=set)
    last: str = ""
    task: asyncio.Task[None] | None = None


class LiveHub:
    """The views that clients look at."""

    def __init__(
        self,
        client: Client,
        history: MetricsHistory | None = None,
        *,
        pace: LivePace | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._history = history if history is not None else MetricsHistory()
        self._pace = pace if pace is not None else LivePace()
        self._monotonic = monotonic
        self._polled: dict[View, _Polled] = {}
        self._clients = 0
        # Set when the brokers no longer accept the caller: the key was revoked, or the token has expired.
        self.refused = asyncio.Event()

    def join(self) -> LiveClient:
        """Admit a page; raises OVERLOADED when there are too many."""
        if self._clients >= CLIENTS_MAX:
            raise error_of(Code.OVERLOADED, f"{CLIENTS_MAX} pages are connected")
        self._clients += 1
        return LiveClient()

    def leave(self, client: LiveClient) -> None:
        """The page is gone."""
        self._clients -= 1
        self.choose(client, set())

    def choose(self, client: LiveClient, views: set[View]) -> None:
        """Send the client these views from now on, and no others."""
        if len(views) > VIEWS_PER_CLIENT_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"{len(views)} views; at most {VIEWS_PER_CLIENT_MAX}")
        if len(self._polled) + len(views - self._polled.keys()) > VIEWS_MAX:
            raise error_of(Code.OVERLOADED, f"all pages together have {VIEWS_MAX} views")
        for view in client.views - views:
            self._drop(client, view)
        for view in views - client.views:
            polled = self._polled.setdefault(view, _Polled())
            polled.clients.add(client)
            if polled.task is None:
                polled.task = asyncio.ensure_future(self._poll(view, polled))
            elif polled.last:
                client.offer(view, polled.last)
        client.views = set(views)

    def _drop(self, client: LiveClient, view: View) -> None:
        polled = self._polled[view]
        polled.clients.discard(client)
        if not polled.clients:
            del self._polled[view]
            if polled.task is not None:
                polled.task.cancel()

    async def _poll(self, view: View, polled: _Polled) -> None:
        turn = self._pace.first
        while True:
            async with turn():
                began = self._monotonic()
                polled.last, answered = await self._read(view)
                took = self._monotonic() - began
            for client in polled.clients:
                client.offer(view, polled.last)
            await self._pace.rest(took, answered=answered)
            turn = self._pace.refresh

    async def _read(self, view: View) -> tuple[str, bool]:
        """The answer as it is sent, and whether the brokers gave it."""
        try:
            data = await view.read(self._client, self._history)
            answer: dict[str, object] = {"view": view, "now": self._client.now_ms(), "data": data}
        except DejaqError as error:
            if error.code is Code.UNAUTHENTICATED:
                self.refused.set()
            answer = {"view": view, "now": self._client.now_ms(), "error": problem_of(error)}
        except Exception:
            log.exception("the view %s failed", view)
            answer = {"view": view, "error": {"code": "INTERNAL", "detail": "the gateway's log has the details"}}
        # Encoded once for all pages.
        return msgspec.json.encode(answer).decode(), "data" in answer

    async def close(self) -> None:
        """Stop every query."""
        tasks = [polled.task for polled in self._polled.values() if polled.task is not None]
        self._polled.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
