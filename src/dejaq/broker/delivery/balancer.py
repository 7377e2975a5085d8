"""Balances the consumers of each topic by their pace, four times per second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from dejaq.broker.background import Background
from dejaq.broker.delivery.consumer import ConnectedConsumer
from dejaq.broker.delivery.roster import BALANCE_CONSUMERS, Roster, Rosters
from dejaq.errors import DejaqError
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

PERIOD_MS = 250
# What has been due at a consumer for longer than this, unseen, is taken back when another has nothing to do.
OVERDUE_MS = 250
# How much of what it settles in a second a consumer keeps.
KEEP_SECONDS = 0.1
# A consumer that gave nothing back is not asked again for so many rounds.
PATIENCE_ROUNDS = 8


class Balancer:
    """Computes shares, and recalls messages that one consumer holds while another is idle."""

    def __init__(self, *, clock: Clock, rosters: Rosters, background: Background) -> None:
        self._clock = clock
        self._rosters = rosters
        self._background = background
        # Rounds until a consumer may be asked again.
        self._patience: dict[ConnectedConsumer, int] = {}

    async def run(self) -> None:
        """Balance until cancelled."""
        while True:
            await self._clock.sleep(PERIOD_MS / 1_000)
            await self.balance()

    async def balance(self) -> None:
        """One round over the topics that have subscribed consumers."""
        now = self._clock.now_ms()
        self._patience = {consumer: left - 1 for consumer, left in self._patience.items() if left > 1}
        for roster in self._rosters:
            if roster.has_subscribers:
                for _ in self._balance(roster, now):
                    await asyncio.sleep(0)

    def _balance(self, roster: Roster, now: int) -> Iterator[None]:
        """One topic, with a pause after each step."""
        yield from roster.balance(now)
        for place, consumer in enumerate(roster.subscribed):
            _loosen(consumer)
            if place % BALANCE_CONSUMERS == BALANCE_CONSUMERS - 1:
                yield
        for place, consumer in enumerate(roster.stalled):
            self._recall_overdue(consumer, now)
            if place % BALANCE_CONSUMERS == BALANCE_CONSUMERS - 1:
                yield

    def _recall_overdue(self, consumer: ConnectedConsumer, now: int) -> None:
        keep = round(consumer.pace.rate * KEEP_SECONDS)
        overdue = consumer.inflight.rows > keep and consumer.inflight.overdue(now - OVERDUE_MS)
        if overdue and consumer not in self._patience:
            self._patience[consumer] = PATIENCE_ROUNDS
            self._background.spawn(
                self._ask(consumer, before=now - OVERDUE_MS, keep=keep), name=f"reclaim from {consumer.name}"
            )

    async def _ask(self, consumer: ConnectedConsumer, *, before: int, keep: int) -> None:
        try:
            if await consumer.recall_overdue(before=before, keep=keep):
                self._patience.pop(consumer, None)
        except DejaqError as error:
            # What it holds stays with it; the leases run out if it never settles.
            log.debug("reclaiming from %s: %s", consumer.name, error)


def _loosen(consumer: ConnectedConsumer) -> None:
    """Let a consumer that keeps up hold twice as much, until only its credit is the bound."""
    bound = consumer.rows_max
    if bound is not None and (consumer.idle or (consumer.pace.settling and consumer.pace.wait_ms < OVERDUE_MS / 4)):
        consumer.limit(None if 2 * bound >= consumer.credit_rows else 2 * bound)
