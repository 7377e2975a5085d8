"""A caller's connection to the brokers: one client, and what the requests of that caller share."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dejaq.errors import DejaqError, Missing, OutOfState, Unauthenticated
from dejaq.sdk.client import Client
from dejaq.sdk.log.log import Log
from dejaq.sdk.producing.producer import Producer
from dejaq.web.leases import LeaseDesk
from dejaq.web.live.hub import LiveHub
from dejaq.web.live.pace import LivePace
from dejaq.web.metrics.history import MetricsHistory
from dejaq.web.rights import CallerRights
from dejaq.web.settings import WebSettings

log = logging.getLogger("dejaq.web")

PRODUCERS_MAX = 256
LOGS_MAX = 256
OPEN_SECONDS = 3.0
PING_SECONDS = 5.0


class Gateway:
    """Everything that the requests of one caller share."""

    def __init__(
        self,
        client: Client,
        settings: WebSettings,
        *,
        history: MetricsHistory | None = None,
        pace: LivePace | None = None,
    ) -> None:
        self.client = client
        self.settings = settings
        self.leases = LeaseDesk(client)
        # Shared by all callers; what a page shows of it depends on the topics that its caller sees.
        self.history = history if history is not None else MetricsHistory()
        self.hub = LiveHub(client, self.history, pace=pace)
        self.rights = CallerRights(client)
        self._producers: OrderedDict[tuple[str, str], asyncio.Task[Producer]] = OrderedDict()
        self._logs: OrderedDict[str, Log] = OrderedDict()
        self._uses: dict[tuple[str, str], int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect; raises UNAUTHENTICATED. A broker that does not answer is no error."""
        try:
            await self.client.open(deadline=OPEN_SECONDS)
        except Unauthenticated:
            raise
        except DejaqError as error:
            log.warning("no broker yet: %s", error)
        self._tasks = [
            asyncio.ensure_future(self._keep_time()),
            asyncio.ensure_future(self.leases.run()),
        ]

    async def close(self) -> None:
        """Return what HTTP clients hold, and disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.hub.close()
        await self.leases.close()
        await self.client.close()

    async def _keep_time(self) -> None:
        """Compare the clock with the broker's again and again, so that pages show the broker's time."""
        while True:
            with suppress(DejaqError):
                await self.client.ping()
            await asyncio.sleep(PING_SECONDS)

    @asynccontextmanager
    async def producer(self, topic: str, group: str) -> AsyncIterator[Producer]:
        """An open producer of a group, which other requests may use at the same time."""
        key = (topic, group)
        task = self._producers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._producers[key] = asyncio.ensure_future(self._open(topic, group))
        self._producers.move_to_end(key)
        self._uses[key] = self._uses.get(key, 0) + 1
        try:
            # Another request may wait for the same producer.
            yield await asyncio.shield(task)
        except (Missing, OutOfState):
            self._forget(key, task)
            raise
        finally:
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key]
            self._shrink()

    async def _open(self, topic: str, group: str) -> Producer:
        producer = self.client.producer(topic, group=group)
        try:
            await producer.open()
        except BaseException:
            await producer.close()
            raise
        return producer

    def log(self, topic: str) -> Log:
        """A log topic, which other requests may use at the same time."""
        log = self._logs.get(topic)
        if log is None:
            log = self._logs[topic] = self.client.log(topic)
        self._logs.move_to_end(topic)
        while len(self._logs) > LOGS_MAX:
            # Closed with its last request.
            self._logs.popitem(last=False)
        return log

    def _shrink(self) -> None:
        for key in list(self._producers):
            if len(self._producers) <= PRODUCERS_MAX:
                return
            if key not in self._uses:
                self._forget(key, self._producers[key])

    def _forget(self, key: tuple[str, str], task: asyncio.Task[Producer]) -> None:
        if self._producers.get(key) is task:
            del self._producers[key]
        if task.done() and not task.cancelled() and task.exception() is None:
            self._tasks.append(asyncio.ensure_future(_close(task.result())))
            self._tasks = [one for one in self._tasks if not one.done()]


async def _close(producer: Producer) -> None:
    with suppress(DejaqError):
        await producer.close()
