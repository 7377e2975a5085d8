"""Looks, a few times a second, at how the consumers of each topic do, and evens out what they have."""

from __future__ import annotations

import logging

from dejaq.broker.background import Background
from dejaq.broker.carrier.consumer import Consumer
from dejaq.broker.carrier.roster import Rosters
from dejaq.errors import DejaqError
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

PERIOD_MS = 250
# What has been due at a consumer for longer than this, unseen, is taken back when another has nothing to do.
HOARD_MS = 250
# How much of what it settles in a second a consumer keeps.
KEEP_SECONDS = 0.1
# A consumer that gave nothing back is not asked again for so many rounds.
PATIENCE_ROUNDS = 8


class Balancer:
    """Weighs consumers, takes back what one hoards while another is idle, loosens the bounds of who caught up."""

    def __init__(self, *, clock: Clock, rosters: Rosters, background: Background) -> None:
        self._clock = clock
        self._rosters = rosters
        self._background = background
        # Rounds until a consumer may be asked again.
        self._patience: dict[Consumer, int] = {}

    async def run(self) -> None:
        """Balance until cancelled."""
        while True:
            await self._clock.sleep(PERIOD_MS / 1_000)
            self.balance()

    def balance(self) -> None:
        """One round over the topics that have subscribed consumers."""
        now = self._clock.now_ms()
        self._patience = {consumer: left - 1 for consumer, left in self._patience.items() if left > 1}
        for roster in self._rosters:
            if roster.dealt:
                roster.balance(now)
                for consumer in roster:
                    _loosen(consumer)
                for consumer in roster.hoarders:
                    self._reclaim(consumer, now)

    def _reclaim(self, consumer: Consumer, now: int) -> None:
        keep = round(consumer.pace.rate * KEEP_SECONDS)
        overdue = consumer.inflight.rows > keep and consumer.inflight.overdue(now - HOARD_MS)
        if overdue and consumer not in self._patience:
            self._patience[consumer] = PATIENCE_ROUNDS
            self._background.spawn(
                self._ask(consumer, before=now - HOARD_MS, keep=keep), name=f"reclaim from {consumer.name}"
            )

    async def _ask(self, consumer: Consumer, *, before: int, keep: int) -> None:
        try:
            if await consumer.reclaim(before=before, keep=keep):
                self._patience.pop(consumer, None)
        except DejaqError as error:
            # What it holds stays with it; the leases run out if it never settles.
            log.debug("reclaiming from %s: %s", consumer.name, error)


def _loosen(consumer: Consumer) -> None:
    """Let a consumer that does not hoard hold twice as much, until it is bound by its credit alone."""
    bound = consumer.rows_max
    if bound is not None and (consumer.idle or (consumer.pace.settling and consumer.pace.wait_ms < HOARD_MS / 4)):
        consumer.limit(None if 2 * bound >= consumer.credit_rows else 2 * bound)
