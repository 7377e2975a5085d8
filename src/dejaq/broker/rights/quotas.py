"""Keeps callers within their quotas: topics when one is created, rate and pending messages with each change.

Pending messages are counted at intervals, because a count of all topics of a user for each send would cost more than
the send; between two counts, the messages that this broker creates are added. So a quota of pending messages can be
exceeded by what other brokers create within one interval.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from dejaq import limits
from dejaq.broker.metrics import QUOTA_REFUSED, Metrics
from dejaq.domain.allowance import Allowance
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, DejaqError, error_of
from dejaq.security.rights.matching import creator_name
from dejaq.security.rights.quotas import QuotaSet
from dejaq.storage.base import Filter, Storage
from dejaq.timekeeper.clock import Clock

COUNT_SECONDS = 2.0
_TOPICS_PER_STEP = 20


class UserQuotas:
    """What callers use, and the refusals beyond their quotas."""

    def __init__(
        self, *, storage: Storage, clock: Clock, topics: Callable[[], Sequence[Topic]], metrics: Metrics
    ) -> None:
        self.quotas = QuotaSet()
        self._storage = storage
        self._clock = clock
        self._topics = topics
        self._metrics = metrics
        self._rates: dict[str, Allowance] = {}
        # Messages in the topics of each creator, as counted last, and what was created here since.
        self.pending: Counter[str] = Counter()

    def topics_of(self, creator: str) -> int:
        """How many topics of this creator exist."""
        return sum(topic.creator == creator and topic.state is not TopicStage.DELETING for topic in self._topics())

    def check_topics(self, context: CallContext) -> None:
        """Raise QUOTA_EXCEEDED when the caller has as many topics as it may have."""
        quota = self.quotas.of(context.principal)
        creator = creator_name(context.principal)
        if quota is not None and quota.topics and creator and self.topics_of(creator) >= quota.topics:
            raise self._refusal("topics", f"{creator} has {quota.topics:,} topics, its quota; delete one")

    def take(self, context: CallContext, topic: Topic, rows: int, *, creates: bool) -> int:
        """Count a change to so many messages; how long the caller should wait before its next, in ms.

        Raises QUOTA_EXCEEDED when the topics of the topic's creator would have too many messages, and OVERLOADED, with
        the time to wait, when the caller changes too many per second.
        """
        if not self.quotas.quotas:
            return 0
        if creates:
            self._check_pending(topic, rows)
        wait = self._take_rate(context, rows)
        if creates:
            self._take_pending(topic, rows)
        return wait

    def _take_pending(self, topic: Topic, rows: int) -> None:
        quota = self.quotas.of_creator(topic.creator)
        if quota is not None and quota.pending:
            self.pending[topic.creator] += rows

    def _check_pending(self, topic: Topic, rows: int) -> None:
        quota = self.quotas.of_creator(topic.creator)
        if quota is None or not quota.pending:
            return
        if self.pending[topic.creator] + rows > quota.pending:
            raise self._refusal(
                "pending",
                f"the topics of {topic.creator} have {self.pending[topic.creator]:,} messages, and its quota is "
                f"{quota.pending:,}; consume or cancel some",
            )

    def _take_rate(self, context: CallContext, rows: int) -> int:
        quota = self.quotas.of(context.principal)
        caller = creator_name(context.principal)
        if quota is None or not quota.rate or not caller:
            return 0
        now = self._clock.now_ms()
        allowance = self._rates.get(caller)
        if allowance is None or allowance.rate != quota.rate:
            if len(self._rates) >= limits.RATES_KEPT_MAX:
                self._rates = {name: kept for name, kept in self._rates.items() if kept.left(now) < kept.rate}
            allowance = self._rates[caller] = Allowance(quota.rate, now)
        wait = allowance.wait_ms(now)
        if wait:
            self._metrics.add(QUOTA_REFUSED, 1, "rate")
            raise error_of(
                Code.OVERLOADED, f"{caller} is above its quota of {quota.rate} messages per second", throttled_ms=wait
            )
        allowance.take(rows, now)
        return allowance.wait_ms(now)

    def _refusal(self, kind: str, message: str) -> DejaqError:
        self._metrics.add(QUOTA_REFUSED, 1, kind)
        return error_of(Code.QUOTA_EXCEEDED, message)

    async def run(self) -> None:
        """Count the pending messages of every creator with a quota, again and again, until cancelled."""
        while True:
            await self.count()
            await self._clock.sleep(COUNT_SECONDS)

    async def count(self) -> None:
        """Count once."""
        if not any(quota.pending for quota in self.quotas.quotas.values()):
            self.pending.clear()
            return
        counted: Counter[str] = Counter()
        before = Counter(self.pending)
        for number, topic in enumerate(list(self._topics()), 1):
            quota = self.quotas.of_creator(topic.creator)
            if quota is not None and quota.pending and topic.state is TopicStage.LIVE:
                counted[topic.creator] += await self._storage.count(topic, Filter(), self._clock.now_ms())
            if number % _TOPICS_PER_STEP == 0:
                await asyncio.sleep(0)
        # What was created during the count may or may not be in it; it counts until the next one.
        for creator, amount in self.pending.items():
            counted[creator] += max(0, amount - before[creator])
        self.pending = counted
