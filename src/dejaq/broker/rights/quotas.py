"""Keeps callers within their quotas: topics when one is created, rate and pending messages with each change.

Pending messages are counted at intervals, because a count of all topics of a user for each send would cost more than
the send; between two counts, the messages that this broker creates are added. So a quota of pending messages can be
exceeded by what other brokers create within one interval.

Bytes are estimated: no store counts them. The number of messages of each topic is multiplied with the mean size of some
of them, taken at random times, or of those that this broker created in it if that is more. A log has exact figures.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from dejaq import limits
from dejaq.broker.metrics import QUOTA_REFUSED, QUOTA_USED, Labels, Metrics
from dejaq.domain.allowance import Allowance
from dejaq.domain.bodies.large import size_of
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, DejaqError, error_of
from dejaq.security.rights.matching import creator_name
from dejaq.security.rights.quotas import Quota, QuotaSet
from dejaq.storage.base import Filter, Storage
from dejaq.storage.log.base import KeepsLogs
from dejaq.timekeeper.clock import Clock

COUNT_SECONDS = 2.0
_TOPICS_PER_STEP = 20
_SAMPLES, _SAMPLE_ROWS = 4, 25


class UserQuotas:
    """What callers use, and the refusals beyond their quotas."""

    def __init__(
        self, *, storage: Storage, clock: Clock, topics: Callable[[], Sequence[Topic]], metrics: Metrics, random: Random
    ) -> None:
        self.quotas = QuotaSet()
        self._storage = storage
        self._clock = clock
        self._topics = topics
        self._metrics = metrics
        self._rates: dict[str, Allowance] = {}
        # Messages in the topics of each creator, as counted last, and what was created here since.
        self.pending: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        # By the number of the topic: messages that this broker created in it since its start, and their bytes.
        self._created: dict[int, tuple[int, int]] = {}
        self._random = random
        metrics.gauge(QUOTA_USED, self._used_shares)

    def _used_shares(self) -> dict[Labels, float]:
        """The largest share of its quota that a creator of topics uses, for each kind of quota."""
        shares: dict[Labels, float] = {("pending",): 0.0, ("bytes",): 0.0}
        for used, kind in ((self.pending, "pending"), (self.bytes, "bytes")):
            for creator, amount in used.items():
                quota = self.quotas.of_creator(creator)
                most = getattr(quota, kind) if quota is not None else 0
                if most:
                    shares[(kind,)] = max(shares[(kind,)], amount / most)
        return shares

    def topics_of(self, creator: str) -> int:
        """How many topics of this creator exist."""
        return sum(topic.creator == creator and topic.state is not TopicStage.DELETING for topic in self._topics())

    def check_topics(self, context: CallContext) -> None:
        """Raise QUOTA_EXCEEDED when the caller has as many topics as it may have."""
        quota = self.quotas.of(context.principal)
        creator = creator_name(context.principal)
        if quota is not None and quota.topics and creator and self.topics_of(creator) >= quota.topics:
            raise self._refusal("topics", f"{creator} has {quota.topics:,} topics, its quota; delete one")

    def take(
        self, context: CallContext, topic: Topic, rows: int, *, creates: bool, bodies: Sequence[bytes] = ()
    ) -> int:
        """Count a change to so many messages, with these new bodies; how long the caller should wait now, in ms.

        Raises QUOTA_EXCEEDED when the topics of the topic's creator would have too many messages or bytes, and
        OVERLOADED, with the time to wait, when the caller changes too many per second.
        """
        if not self.quotas.quotas:
            return 0
        quota = self.quotas.of_creator(topic.creator)
        size = sum(map(size_of, bodies)) if bodies and quota is not None and quota.bytes else 0
        if quota is not None and creates:
            self._check_pending(quota, topic, rows)
        if quota is not None and size:
            self._check_bytes(quota, topic, size)
        wait = self._take_rate(context, rows)
        if creates and quota is not None and quota.pending:
            self.pending[topic.creator] += rows
        if size:
            self.bytes[topic.creator] += size
            created, before = self._created.get(topic.number, (0, 0))
            self._created[topic.number] = (created + rows, before + size)
        return wait

    def _check_bytes(self, quota: Quota, topic: Topic, size: int) -> None:
        if self.bytes[topic.creator] + size > quota.bytes:
            raise self._refusal(
                "bytes",
                f"the topics of {topic.creator} have {self.bytes[topic.creator]:,} bytes, and its quota is "
                f"{quota.bytes:,}; consume or cancel some messages",
            )

    def _check_pending(self, quota: Quota, topic: Topic, rows: int) -> None:
        if quota.pending and self.pending[topic.creator] + rows > quota.pending:
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
        if not any(quota.pending or quota.bytes for quota in self.quotas.quotas.values()):
            self.pending.clear()
            self.bytes.clear()
            self._created.clear()
            return
        counted: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        before, bytes_before = Counter(self.pending), Counter(self.bytes)
        for number, topic in enumerate(list(self._topics()), 1):
            quota = self.quotas.of_creator(topic.creator)
            if quota is not None and (quota.pending or quota.bytes) and topic.state is TopicStage.LIVE:
                if topic.is_log:
                    sizes[topic.creator] += await self._log_bytes(topic)
                else:
                    count = await self._storage.count(topic, Filter(), self._clock.now_ms())
                    counted[topic.creator] += count
                    if quota.bytes and count:
                        sizes[topic.creator] += int(count * await self._mean_bytes(topic))
            if number % _TOPICS_PER_STEP == 0:
                await asyncio.sleep(0)
        # What was created during the count may or may not be in it; it counts until the next one.
        for creator, amount in self.pending.items():
            counted[creator] += max(0, amount - before[creator])
        for creator, amount in self.bytes.items():
            sizes[creator] += max(0, amount - bytes_before[creator])
        self.pending, self.bytes = counted, sizes

    async def _log_bytes(self, topic: Topic) -> int:
        if not isinstance(self._storage, KeepsLogs):
            return 0
        return sum(one.bytes for one in await self._storage.logs.offsets(topic, self._clock.now_ms()))

    async def _mean_bytes(self, topic: Topic) -> float:
        """The mean size of the bodies of a topic, from samples over its whole future."""
        now = self._clock.now_ms()
        sizes: list[int] = []
        reach = math.log10(max(topic.settings.max_future_ms, 1_001))
        for number in range(_SAMPLES):
            # From seconds to years ahead alike; the first sample is what is due next.
            ahead = 10 ** self._random.uniform(3, reach) if number else -now
            page = await self._storage.browse(topic, Filter(start=int(now + ahead)), None, _SAMPLE_ROWS, now)
            sizes += [size_of(message.body) for message in page.messages]
        created, total = self._created.get(topic.number, (0, 0))
        return max(sum(sizes) / len(sizes) if sizes else 0.0, total / created if created else 0.0)
