"""An embedded store whose logs are in segments: every batch is moved at once, and segments are rewritten often."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Refused
from dejaq.storage.log.base import Append, Appended, LogRetention
from dejaq.storage.rocksdb.log.opening import SegmentSettings
from dejaq.storage.rocksdb.log.store import RocksLogs
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.conformance import StorageFactory

# A segment has one batch or a few, and three of them become one.
TINY = SegmentSettings(bytes=8, least_bytes=1, merged=3, compacted_bytes=1, keys=2)


class MovingLogs(RocksLogs):
    """Logs that have moved what can be moved when a call returns."""

    async def append(
        self, topic: Topic, batches: Sequence[Append], now: int, context: CallContext
    ) -> list[Appended | Refused]:
        answers = await super().append(topic, batches, now, context)
        await self._move_all(topic, now)
        return answers

    async def retain(self, topic: Topic, retention: LogRetention, now: int, context: CallContext) -> int:
        await self._move_all(topic, now)
        return await super().retain(topic, retention, now, context)

    async def _move_all(self, topic: Topic, now: int) -> None:
        state = self._state(topic)
        for bucket in state.buckets:
            await bucket.settled(now)
            await self.segments.move_out(state, bucket)
        await self.segments.settle()


class MovingStorage(RocksStorage):
    """A store with such logs."""

    async def open(self, now: int) -> None:
        await super().open(now)
        self.logs.__class__ = MovingLogs


def rocksdb_segments(path: Path) -> StorageFactory:
    """The embedded store, which reads no batch from memory, and almost every one from a segment."""

    def make() -> RocksStorage:
        return MovingStorage(path, journal=True, log_tail_bytes=0, log_segments=TINY)

    return make
