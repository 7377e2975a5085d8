"""The log topics of a broker: their storage, their readers and groups, and retention."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from heapq import nlargest

from dejaq.broker.background import Background
from dejaq.broker.catalog import Catalog
from dejaq.broker.doctor import Doctor
from dejaq.broker.log.encoding import EncodedBatches
from dejaq.broker.log.groups import ReaderGroup, ReaderGroups
from dejaq.broker.log.reader import LogFeed
from dejaq.broker.log.shared_groups import SharedReaderGroup
from dejaq.broker.metrics import (
    LOG_APPENDED,
    LOG_IN_DOUBT,
    LOG_LAG,
    LOG_PUSHED,
    LOG_REMOVED,
    TOPIC_SERIES_MAX,
    Labels,
    Metrics,
)
from dejaq.broker.rights.quotas import UserQuotas
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.base import Storage
from dejaq.storage.log.base import KeepsLogs, LogRetention, LogStorage, SharesGroups
from dejaq.storage.log.prepared import PreparedTransaction
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

RETAIN_SECONDS = 5.0
RENEW_SECONDS = 1.5
_RETAIN = CallContext.internal("remove old batches of logs")


class LogTopics:
    """What appends, readers and calls share."""

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        clock: Clock,
        metrics: Metrics,
        doctor: Doctor,
        background: Background,
        quotas: UserQuotas,
        *,
        broker: str,
        notify: Callable[[Topic, Iterable[int]], None],
    ) -> None:
        """`notify` informs the other brokers of batches in buckets; without buckets, of a change of a group."""
        self.quotas = quotas
        self.doctor = doctor
        self.catalog, self.clock, self.metrics = catalog, clock, metrics
        self.groups = ReaderGroups(self._make_group)
        self._background = background
        self._broker, self._notify = broker, notify
        self.encoded = EncodedBatches()
        self._storage = storage
        # The same, once it is known to have logs: the check costs 13 us.
        self._keeps: KeepsLogs | None = None
        self._readers: dict[int, set[LogFeed]] = {}
        # For the metrics, by topic: the lag of each group, and the number of transactions in doubt.
        self._lags: dict[str, dict[str, int]] = {}
        self._in_doubt: dict[str, int] = {}
        metrics.gauge(LOG_LAG, self._largest_lags)
        metrics.gauge(LOG_IN_DOUBT, self._most_in_doubt)

    @property
    def storage(self) -> LogStorage:
        """The logs of the store; raises INVALID_ARGUMENT where it has none."""
        if self._keeps is None:
            if not isinstance(self._storage, KeepsLogs):
                raise error_of(Code.INVALID_ARGUMENT, f"the storage {self._storage.capabilities.name!r} keeps no logs")
            self._keeps = self._storage
        return self._keeps.logs

    @property
    def _shares(self) -> SharesGroups | None:
        """The store's members of groups, when other brokers may have some."""
        storage = self.storage
        return storage if self._storage.capabilities.shared and isinstance(storage, SharesGroups) else None

    def _make_group(self, topic: Topic, name: str) -> ReaderGroup:
        shares = self._shares
        parts = (topic, name, self.storage, self.clock, self._background)
        if shares is None:
            return ReaderGroup(*parts)
        return SharedReaderGroup(*parts, shares=shares, broker=self._broker, tell=lambda: self._notify(topic, ()))

    async def members(self, topic: Topic) -> dict[str, list[str]]:
        """The members of every group, at all brokers."""
        seats = await self._shares.members(topic, self.clock.now_ms()) if self._shares is not None else {}
        names = await self.storage.groups(topic)
        return {
            name: [
                *self.groups.members(topic, name),
                *(seat.member for seat in seats.get(name, ()) if seat.broker != self._broker),
            ]
            for name in names.keys() | seats.keys()
        }

    def woken(self, number: int, buckets: Iterable[int]) -> None:
        """Another broker has appended to buckets of a topic, or, without buckets, changed its groups."""
        listed = list(buckets)
        for reader in self._readers.get(number, ()):
            windows = reader.topic.settings.rollback_window_ms > 0
            reader.appended(listed or range(reader.topic.settings.buckets), windows=windows)
        if not listed:
            self.groups.look(number)

    def group_changed(self, topic: Topic) -> None:
        """Let the other brokers look at the groups of a topic."""
        self._notify(topic, ())

    def enter(self, reader: LogFeed) -> None:
        """Wake this reader when its log gets batches."""
        self._readers.setdefault(reader.topic.number, set()).add(reader)

    def leave(self, reader: LogFeed) -> None:
        """Forget a reader."""
        readers = self._readers.get(reader.topic.number, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(reader.topic.number, None)

    def appended(self, topic: Topic, buckets: Collection[int], count: int) -> None:
        """Batches were appended: wake the readers of the log."""
        self.metrics.add(LOG_APPENDED, count, topic.name)
        for reader in self._readers.get(topic.number, ()):
            reader.appended(buckets, windows=topic.settings.rollback_window_ms > 0)
        self._notify(topic, buckets)

    def pushed(self, topic: Topic, count: int) -> None:
        """Messages were sent to a reader."""
        self.metrics.add(LOG_PUSHED, count, topic.name)

    async def run(self) -> None:
        """Remove what logs need not keep, and renew the members of groups, until cancelled."""
        await asyncio.gather(self._retain_all(), self._renew())

    async def _renew(self) -> None:
        """Renew the members here, and look for batches of which no notice has come."""
        while True:
            await self.clock.sleep(RENEW_SECONDS)
            if self._storage.capabilities.shared and self._storage.failure is None:
                self.groups.look()
                for number in list(self._readers):
                    for reader in self._readers[number]:
                        reader.appended(range(reader.topic.settings.buckets), windows=True)

    async def _retain_all(self) -> None:
        while True:
            await asyncio.sleep(0)
            more = False
            logs = [topic for topic in self.catalog.logs() if topic.state is TopicStage.LIVE]
            for topic in logs:
                more |= await self._retain(topic)
            names = {topic.name for topic in logs}
            self._lags = {name: lags for name, lags in self._lags.items() if name in names}
            self._in_doubt = {name: count for name, count in self._in_doubt.items() if name in names}
            await self.clock.sleep(0.0 if more else RETAIN_SECONDS)

    async def _abort_late(self, topic: Topic) -> None:
        """Abort the transactions that are in doubt after their deadlines."""
        storage, now = self.storage, self.clock.now_ms()
        transactions = await storage.in_doubt(topic)
        self._in_doubt[topic.name] = len(transactions)
        for one in transactions:
            if one.deadline_ms < now:
                log.warning("transaction %s of %s is aborted at its deadline", one.name, topic.name)
                self.resolved(await storage.resolve(topic, one.name, commit=False, now=now, context=_RETAIN))

    def resolved(self, transaction: PreparedTransaction) -> None:
        """A prepared transaction was resolved: wake the readers of its batches."""
        for topic in self.catalog.all():
            buckets = {batch.bucket for batch in transaction.batches if batch.topic == topic.number}
            if buckets:
                self.appended(topic, buckets, 0)

    async def _look_at_lag(self, topic: Topic) -> None:
        """Count what each group has not committed, for the metrics."""
        groups = await self.storage.groups(topic)
        offsets = await self.storage.offsets(topic, self.clock.now_ms()) if groups else []
        lags: dict[str, int] = {}
        for group, held in groups.items():
            lags[group] = sum(
                one.next - max(held[bucket].offset if bucket in held else 0, one.start)
                for bucket, one in enumerate(offsets)
            )
            # A thousand groups of a thousand buckets take 0.2 s.
            await asyncio.sleep(0)
        self._lags[topic.name] = lags

    def _largest_lags(self) -> dict[Labels, float]:
        known = {(topic, group): float(lag) for topic, lags in self._lags.items() for group, lag in lags.items()}
        return {labels: known[labels] for labels in nlargest(TOPIC_SERIES_MAX, known, key=known.__getitem__)}

    def _most_in_doubt(self) -> dict[Labels, float]:
        known = {(topic,): float(count) for topic, count in self._in_doubt.items() if count}
        return {labels: known[labels] for labels in nlargest(TOPIC_SERIES_MAX, known, key=known.__getitem__)}

    async def _retain(self, topic: Topic) -> bool:
        settings = topic.settings
        share = -(-settings.keep_bytes // settings.buckets)
        # A clock that was set forward makes nothing older. A clock that the other brokers do not confirm says no age.
        keep_ms = settings.keep_ms + self.doctor.clock_ahead_ms if settings.keep_ms else 0
        retention = LogRetention(0 if "drift" in self.doctor.degradations else keep_ms, share, settings.trim_read)
        try:
            await self._abort_late(topic)
            await self._look_at_lag(topic)
            removed = await self.storage.retain(topic, retention, self.clock.now_ms(), _RETAIN)
        except DejaqError as error:
            log.debug("the old batches of %s stay: %s", topic.name, error)
            return False
        self.metrics.add(LOG_REMOVED, removed, topic.name)
        return removed > 0
