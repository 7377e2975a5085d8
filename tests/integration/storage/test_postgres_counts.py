"""Changes at many minutes write one list of counts; counts and histograms stay exact while the lists are joined."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server

NOW = 1_700_000_000_000
MINUTE_MS, HOUR_MS, MONTH_MS = 60_000, 3_600_000, 30 * 86_400_000
ROWS = 300


class Scene:
    """A store, a topic, and what it should count."""

    def __init__(self, storage: PostgresStorage, topic: Topic) -> None:
        self.storage, self.topic = storage, topic
        self.chance = random.Random(3)
        self.times: dict[str, int] = {}
        self._sent = 0

    async def create(self, *, owner: str = "billing") -> list[str]:
        """A batch at random times of a month."""
        ids = [f"n{self._sent + row}" for row in range(ROWS)]
        ts = [NOW + self.chance.randrange(MONTH_MS) for _ in ids]
        batch = CreateBatch(owner, ProducerSession(NOW, 1), self._sent, ts, [b"x"] * ROWS, ids=ids)
        self._sent += ROWS
        assert not (await apply_one(self.storage, Create(self.topic, batch), NOW, DIRECT_CALL)).codes
        self.times |= dict(zip(ids, ts, strict=True))
        return ids

    async def move(self, ids: Sequence[str]) -> None:
        """Move messages to other times of the month."""
        ts = [NOW + self.chance.randrange(MONTH_MS) for _ in ids]
        change = Edit(self.topic, "billing", Edits(ids, ts=ts))
        assert not (await apply_one(self.storage, change, NOW, DIRECT_CALL)).codes
        self.times |= dict(zip(ids, ts, strict=True))

    async def cancel(self, ids: Sequence[str]) -> None:
        """Remove messages."""
        assert not (await apply_one(self.storage, Cancel(self.topic, "billing", ids), NOW, DIRECT_CALL)).codes
        for message_id in ids:
            del self.times[message_id]

    async def written(self) -> tuple[int, int]:
        """How many rows the counts have: single minutes, and lists."""

        async def look(link: object) -> tuple[int, int]:
            connection = link.connection  # type: ignore[attr-defined]
            return (
                await connection.fetchval("SELECT count(*) FROM counter WHERE count <> 0"),
                await connection.fetchval("SELECT count(*) FROM count_list"),
            )

        return await self.storage._database.look(look)

    async def check(self) -> None:
        """Every minute has the count of its messages."""
        expected = Counter(ts // MINUTE_MS * MINUTE_MS for ts in self.times.values())
        assert dict(await self.storage.histogram(self.topic, Filter(), MINUTE_MS, NOW)) == expected
        later = Filter(start=NOW + HOUR_MS + 7)
        assert await self.storage.count(self.topic, later, NOW) == sum(ts >= later.start for ts in self.times.values())

    async def finish_upkeep(self) -> None:
        """Wait for the work in the background."""
        task = self.storage._upkeep._task
        if task is not None:
            await task


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    storage = PostgresStorage(shared_server().dsn, cluster=f"counts_{secrets.token_hex(4)}")
    await storage.open(NOW)
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4))
    await storage.put_topic(topic, DIRECT_CALL)
    yield Scene(storage, topic)
    await storage.close()


async def test_a_change_at_many_minutes_writes_one_list(scene: Scene) -> None:
    ids = await scene.create()
    assert await scene.written() == (0, 1)
    await scene.move(ids)
    assert await scene.written() == (0, 2)
    await scene.cancel(ids[:100])
    assert await scene.written() == (0, 3)
    await scene.check()


async def test_a_histogram_of_a_month_reads_a_row_per_step_and_not_per_minute(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month has 43,200 minutes, more than the event loop can look at in one step."""
    for _ in range(4):
        await scene.create()
    fetched: list[int] = []
    fetch = PostgresLink.fetch

    async def counting(link: PostgresLink, name: str, *arguments: object) -> list[asyncpg.Record]:
        records = await fetch(link, name, *arguments)
        fetched.append(len(records))
        return records

    monkeypatch.setattr(PostgresLink, "fetch", counting)
    start = NOW // (24 * HOUR_MS) * 24 * HOUR_MS
    month = Filter(start=start, end=start + 32 * 24 * HOUR_MS)
    drawn = await scene.storage.histogram(scene.topic, month, 24 * HOUR_MS, NOW)
    days = Counter(start + (ts - start) // (24 * HOUR_MS) * 24 * HOUR_MS for ts in scene.times.values())
    assert dict(drawn) == days
    assert sum(fetched) <= 2 * 32
    # Steps and a beginning that divide minutes.
    odd = Filter(start=NOW + 12_345)
    step = HOUR_MS + 1
    drawn = await scene.storage.histogram(scene.topic, odd, step, NOW)
    expected = Counter(ts - (ts - odd.start) % step for ts in scene.times.values() if ts >= odd.start)
    assert dict(drawn) == expected


async def test_lists_are_joined_when_they_have_many_minutes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dejaq.storage.postgres.upkeep.JOINED_MINUTES", 4 * ROWS)
    for _ in range(10):
        await scene.create()
        await scene.finish_upkeep()
        await scene.check()
    _, lists = await scene.written()
    assert lists < 10


async def test_an_hourly_cleaning_leaves_one_list_of_the_minutes_that_have_messages(scene: Scene) -> None:
    """G1: minutes whose messages are gone leave nothing behind."""
    ids = [*await scene.create(), *await scene.create()]
    await scene.cancel(ids[50:])
    end = NOW + MONTH_MS
    request = LeaseRequest(range(4), "w", until=end, expires=end + HOUR_MS, rows_max=20)
    lease = await scene.storage.lease(scene.topic, request, end, DIRECT_CALL)
    assert lease is not None
    delete = Delete(scene.topic, lease.lease_id, "w", None)
    assert not (await apply_one(scene.storage, delete, end, DIRECT_CALL)).codes
    for message_id in lease.ids():
        del scene.times[message_id]
    await scene.storage._upkeep._tidy(NOW)
    await scene.check()
    assert await scene.written() == (0, 1)
    await scene.cancel(list(scene.times))
    await scene.storage._upkeep._tidy(NOW)
    assert await scene.written() == (0, 0)


async def test_the_counts_of_a_dropped_topic_are_removed(scene: Scene) -> None:
    await scene.create()
    await scene.storage.drop_topic(scene.topic, NOW, DIRECT_CALL)
    assert await scene.written() == (0, 0)
