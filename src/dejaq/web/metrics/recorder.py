"""Reads the metrics of all brokers again and again, once for all pages."""

from __future__ import annotations

import asyncio
import logging
import time

from dejaq.errors import DejaqError
from dejaq.sdk.session.address import parse_url
from dejaq.sdk.session.security import SecurityOptions
from dejaq.timekeeper.clock import SystemClock
from dejaq.web.login.pool import GatewayPool
from dejaq.web.metrics.history import MetricsHistory
from dejaq.web.metrics.scraping import scrape

log = logging.getLogger("dejaq.web")

READ_SECONDS = 5.0
BROKERS_MAX = 64


class MetricsRecorder:
    """Fills a history with the gateway's own credentials, those of its environment."""

    def __init__(self, url: str, pool: GatewayPool, history: MetricsHistory) -> None:
        self._target = parse_url(url)
        self._pool = pool
        self._history = history
        self._security = SecurityOptions().for_target(self._target, SystemClock())

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self.read()
            except DejaqError as error:
                self._history.problem = error.message
            except Exception:
                log.exception("the metrics cannot be read")
                self._history.problem = "the gateway's log says why the metrics cannot be read"
            await asyncio.sleep(READ_SECONDS)

    async def read(self) -> None:
        """Read the metrics of every broker once. A broker that does not answer is left out."""
        addresses = await self._addresses()
        answers = await asyncio.gather(
            *(scrape(address, self._security) for address in addresses), return_exceptions=True
        )
        found, problem = {}, None
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, DejaqError):
                problem = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[address] = answer
        if problem is not None and not found:
            raise problem
        self._history.add(int(time.time() * 1_000), found)

    async def _addresses(self) -> list[str]:
        """The brokers that exist now; those of the URL where the gateway itself may not ask."""
        try:
            async with self._pool.use("") as gateway:
                info = await gateway.client.info()
        except DejaqError:
            return list(self._target.addresses)
        if len(info.brokers) <= 1:
            # Its address may be one that only other brokers reach.
            return list(self._target.addresses)[:1]
        return [broker.address for broker in info.brokers][:BROKERS_MAX]
