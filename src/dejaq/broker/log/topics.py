"""The log topics of a broker: their storage, their readers and groups, and retention."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from dejaq.broker.background import Background
from dejaq.broker.catalog import Catalog
from dejaq.broker.doctor import Doctor
from dejaq.broker.log.encoding import EncodedBatches
from dejaq.broker.log.groups import ReaderGroups
from dejaq.broker.log.reader import LogFeed
from dejaq.broker.metrics import LOG_APPENDED, LOG_PUSHED, LOG_REMOVED, Metrics
from dejaq.broker.rights.quotas import UserQuotas
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.base import Storage
from dejaq.storage.log.base import KeepsLogs, LogRetention, LogStorage
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

RETAIN_SECONDS = 5.0
_RETAIN = CallContext.internal("remove old batches of logs")


class LogTopics:
    """What appends, readers and calls share."""

    def __init__(
        self,
        *,
        storage: Storage,
        catalog: Catalog,
        clock: Clock,
        metrics: Metrics,
        doctor: Doctor,
        background: Background,
        quotas: UserQuotas,
    ) -> None:
        self.quotas = quotas
        self.doctor = doctor
        self.catalog, self.clock, self.metrics = catalog, clock, metrics
        self.groups = ReaderGroups(clock, background)
        self.encoded = EncodedBatches()
        self._storage = storage
        # The same, once it is known to have logs: the check costs 13 us.
        self._keeps: KeepsLogs | None = None
        self._readers: dict[int, set[LogFeed]] = {}

    @property
    def storage(self) -> LogStorage:
        """The logs of the store; raises INVALID_ARGUMENT where it has none."""
        if self._keeps is None:
            if not isinstance(self._storage, KeepsLogs):
                raise error_of(Code.INVALID_ARGUMENT, f"the storage {self._storage.capabilities.name!r} keeps no logs")
            self._keeps = self._storage
        return self._keeps.logs

    def enter(self, reader: LogFeed) -> None:
        """Wake this reader when its log gets batches."""
        self._readers.setdefault(reader.topic.number, set()).add(reader)

    def leave(self, reader: LogFeed) -> None:
        """Forget a reader."""
        readers = self._readers.get(reader.topic.number, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(reader.topic.number, None)

    def appended(self, topic: Topic, buckets: Iterable[int], count: int) -> None:
        """Batches were appended: wake the readers of the log."""
        self.metrics.add(LOG_APPENDED, count, topic.name)
        for reader in self._readers.get(topic.number, ()):
            reader.appended(buckets, windows=topic.settings.rollback_window_ms > 0)

    def pushed(self, topic: Topic, count: int) -> None:
        """Messages were sent to a reader."""
        self.metrics.add(LOG_PUSHED, count, topic.name)

    async def run(self) -> None:
        """Remove what logs need not keep, until cancelled."""
        while True:
            await asyncio.sleep(0)
            more = False
            for topic in self.catalog.all():
                if topic.is_log and topic.state is TopicStage.LIVE:
                    more |= await self._retain(topic)
            await self.clock.sleep(0.0 if more else RETAIN_SECONDS)

    async def _retain(self, topic: Topic) -> bool:
        settings = topic.settings
        share = -(-settings.keep_bytes // settings.buckets)
        # A clock that was set forward makes nothing older. A clock that the other brokers do not confirm says no age.
        keep_ms = settings.keep_ms + self.doctor.clock_ahead_ms if settings.keep_ms else 0
        retention = LogRetention(0 if "drift" in self.doctor.degradations else keep_ms, share, settings.trim_read)
        try:
            removed = await self.storage.retain(topic, retention, self.clock.now_ms(), _RETAIN)
        except DejaqError as error:
            log.debug("the old batches of %s stay: %s", topic.name, error)
            return False
        self.metrics.add(LOG_REMOVED, removed, topic.name)
        return removed > 0
