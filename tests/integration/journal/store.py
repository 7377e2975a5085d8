"""A store with a journal, and random changes that produce events of every kind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Extend, Recall, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.journal.names import SEGMENT_SUFFIX, named_files
from dejaq.journal.segment import read_segment
from dejaq.storage.base import Storage, apply_one
from dejaq.testing.model.replay import ReplayedEvent

NOW = 1_800_000_000_000
BUCKETS = 4


async def open_topic(storage: Storage) -> Topic:
    """The topic of the changes, created if it does not exist."""
    for topic in await storage.topics():
        return topic
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=BUCKETS), created_ms=NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    return topic


class Work:
    """Random changes to one topic."""

    def __init__(self, storage: Storage, topic: Topic, seed: int) -> None:
        self._storage = storage
        self._topic = topic
        self._chance = random.Random(seed)
        self._session = ProducerSession(NOW, seed)
        self._sequence = 0
        self.now = NOW + seed * 1_000_000
        self.created: list[str] = []

    async def step(self) -> None:
        """Create messages, and make one other random change."""
        await self.create(self._chance.randint(1, 5))
        self.now += self._chance.choice([0, 10, 400])
        request = LeaseRequest(range(BUCKETS), "worker", self.now, self.now + 500, rows_max=3)
        lease = await self._storage.lease(self._topic, request, self.now, DIRECT_CALL)
        if lease is None:
            return
        arguments = (self._topic, lease.lease_id, "worker", None)
        settle = self._chance.randrange(5)
        if settle == 0:
            await apply_one(self._storage, Release(*arguments, self.now + 700), self.now, DIRECT_CALL)
        elif settle == 1:
            await apply_one(self._storage, Recall(*arguments), self.now, DIRECT_CALL)
        elif settle == 2:
            await apply_one(self._storage, Extend(*arguments, self.now + 900), self.now, DIRECT_CALL)
        elif settle == 3:
            await apply_one(self._storage, Delete(*arguments, handed_us=[self.now * 1_000]), self.now, DIRECT_CALL)
        await self._change(self._chance.sample(self.created, k=1))

    async def create(self, count: int) -> None:
        """Create a batch with generated or natural ids."""
        natural = self._chance.random() < 0.4
        ids = [f"{self._session.number}-{self._sequence + row}" for row in range(count)] if natural else None
        batch = CreateBatch(
            owner="billing",
            session=self._session,
            sequence=self._sequence,
            ts=sorted(self.now + self._chance.randint(-5, 900) for _ in range(count)),
            bodies=[self._chance.randbytes(9) for _ in range(count)],
            ids=ids,
            bucket=self._chance.randrange(BUCKETS),
        )
        await apply_one(self._storage, Create(self._topic, batch), self.now, DIRECT_CALL)
        self.created += [batch.id_of(row) for row in range(count)]
        self._sequence += count

    async def _change(self, ids: Sequence[str]) -> None:
        if self._chance.random() < 0.5:
            await apply_one(
                self._storage, Edit(self._topic, "billing", Edits(ids, ts=[self.now + 60])), self.now, DIRECT_CALL
            )
        else:
            await apply_one(self._storage, Cancel(self._topic, "billing", ids), self.now, DIRECT_CALL)


def exported(directory: Path) -> list[dict[str, Any]]:
    """Every event of the segments, in the order of their names."""
    tables = [read_segment(directory / name.segment) for name in sorted(named_files(directory, SEGMENT_SUFFIX))]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
    return rows


def events_in(rows: Sequence[dict[str, Any]]) -> list[ReplayedEvent]:
    """The events in rows of segments."""
    return [
        ReplayedEvent(
            sequence=row["sequence"],
            at_ms=row["at_ms"],
            kind=row["kind"],
            topic=row["topic"],
            id=row["id"],
            actor=row["actor"],
            lease=row["lease"],
            expires=row["expires_ms"],
            ts=row["ts_ms"],
            priority=row["priority"],
            attempts=row["attempts"],
            body_bytes=row["body_bytes"],
            body_crc=row["body_crc"],
            handed_us=row["handed_us"],
        )
        for row in rows
    ]
