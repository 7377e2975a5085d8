"""Loads the messages that are due soon into memory, for topics with consumers."""

from __future__ import annotations

import logging

from dejaq.broker.delivery.roster import Rosters
from dejaq.errors import DejaqError
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

PERIOD_MS = 250


class Loader:
    """Asks the storage, four times per second, to load what the leasers will need next."""

    def __init__(self, *, storage: Storage, clock: Clock, rosters: Rosters, prefetch_ms_max: int) -> None:
        self._storage = storage
        self._clock = clock
        self._rosters = rosters
        # The furthest a leaser looks ahead, and time for two rounds.
        self._ahead_ms = prefetch_ms_max + 4 * PERIOD_MS

    async def run(self) -> None:
        """Load until cancelled."""
        while True:
            await self.load()
            await self._clock.sleep(PERIOD_MS / 1_000)

    async def load(self) -> None:
        """One round over the topics that have subscribed consumers."""
        until = self._clock.now_ms() + self._ahead_ms
        for roster in self._rosters:
            if roster.has_subscribers:
                try:
                    await self._storage.load(roster.topic, roster.buckets_here, until)
                except DejaqError as error:
                    # Only a hint failed; the lease that needs the data meets the fault itself and says so.
                    log.debug("loading %s: %s", roster.topic.name, error)
