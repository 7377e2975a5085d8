"""A storage and the memory model together: the state of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dejaq.domain.batch import CreateBatch, LeaseSet
from dejaq.domain.bodies.large import content_of
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Filter, Storage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.testing.conformance.scene import (
    START_MS,
    StorageFactory,
    attempts_of,
    headers_of,
    numbers_of,
    priorities_of,
)
from dejaq.testing.model.pair_uploads import UploadPairs
from dejaq.testing.model.replay import Replay

BUCKETS = 3
SESSIONS = 2


@dataclass(frozen=True, slots=True)
class LeasePair:
    """One lease in the storage and in the model: equal row numbers, different ids."""

    real: LeaseSet
    model: LeaseSet

    @property
    def count(self) -> int:
        """The number of rows at the start of the lease."""
        return len(self.real)


class PairState:
    """Both stores, and the messages and leases that a history created."""

    def __init__(self, factory: StorageFactory, *, journal: bool = False) -> None:
        self._factory = factory
        self._journal = journal
        self._journalled = 0
        self._replay = Replay()
        self._real: Storage = factory()
        self._model = MemoryStorage()
        self._topic = Topic("model", 1, TopicSettings(buckets=BUCKETS))
        self._dead = Topic("model.dead", 2, TopicSettings(buckets=2))
        self._sequences = [0] * SESSIONS
        self._versions: dict[str, dict[int, int]] = {}
        self._transactions = 0
        self._made = 0
        self.uploads = UploadPairs()
        self.now = START_MS
        self.batches: list[CreateBatch] = []
        self.leases: list[LeasePair] = []
        self.ids: list[str] = []

    async def open(self, chosen: Mapping[str, Any]) -> None:
        """Open both, and create the topic with these settings and its dead-letter topic."""
        await self._real.open(self.now)
        await self._model.open(self.now)
        settings = TopicSettings(buckets=BUCKETS, **chosen)
        self._topic = replace(self._topic, number=await self._real.next_topic_number(), settings=settings)
        self._dead = replace(self._dead, number=await self._real.next_topic_number())
        for topic in (self._topic, self._dead):
            await self._real.put_topic(topic, DIRECT_CALL)
            await self._model.put_topic(topic, DIRECT_CALL)

    async def close(self) -> None:
        """Close both."""
        await self._real.close()
        await self._model.close()

    async def restart(self) -> None:
        """Close the storage and open another one over the same contents; the model stays open."""
        await self._real.close()
        self._real = self._factory()
        await self._real.open(self.now)
        await self.uploads.follow(self._real, self._model, self._topic, self.now)

    async def _browse(
        self, storage: Storage, where: Filter, *, limit: int, topic: Topic | None = None
    ) -> list[Message]:
        messages: list[Message] = []
        cursor: bytes | None = None
        while True:
            page = await storage.browse(topic or self._topic, where, cursor, limit, self.now)
            messages += page.messages
            cursor = page.cursor
            if cursor is None:
                return messages
            assert page.messages, "an empty page has a cursor"


def rows_of(lease: LeaseSet) -> dict[int, tuple[str, int, bytes, int, int, bytes]]:
    """Each row of a lease set by its number."""
    columns = zip(
        lease.ids(),
        lease.ts,
        map(content_of, lease.bodies),
        attempts_of(lease),
        priorities_of(lease),
        headers_of(lease),
        strict=True,
    )
    return dict(zip(numbers_of(lease), columns, strict=True))
