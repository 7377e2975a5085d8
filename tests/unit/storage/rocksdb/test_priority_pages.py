"""Pages of a priority topic are read in short steps, as of one moment, although messages come and go meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.loop_steps import measured_steps

NOW = 1_800_000_000_000
BUCKETS = 4
TOPIC = Topic(name="urgent", number=1, settings=TopicSettings(kind=TopicKind.PRIORITY, buckets=BUCKETS))
Place = tuple[int, int, str]


class Stage:
    """A store with due rows, rows ahead of their time, and leased rows; the place of each in the order."""

    def __init__(self, path: Path) -> None:
        self.storage = RocksStorage(path, journal=False)
        self.places: dict[str, Place] = {}
        self.chance = random.Random(5)
        self._sequence = 0

    async def create(self, rows: int, *, ahead: bool, priorities: int = 3_000) -> None:
        ts = [NOW + self.chance.randrange(1, 86_400_000) if ahead else NOW - self.chance.randrange(50)] * rows
        chosen = [self.chance.randrange(priorities) for _ in range(rows)]
        ids = [f"id-{self._sequence + row}" for row in range(rows)]
        batch = CreateBatch(
            "o", ProducerSession(NOW, 1), self._sequence, ts, [b"x" * 20] * rows, priorities=chosen, ids=ids
        )
        self._sequence += rows
        assert not (await apply_one(self.storage, Create(TOPIC, batch), NOW, DIRECT_CALL)).codes
        self.places |= {one: (priority, at, one) for one, priority, at in zip(ids, chosen, ts, strict=True)}

    async def lease(self, rows: int) -> tuple[int, list[str]]:
        request = LeaseRequest(range(BUCKETS), "c", NOW, NOW + 60_000, rows)
        lease = await self.storage.lease(TOPIC, request, NOW, DIRECT_CALL)
        assert lease is not None
        for one in lease.ids():
            self.places[one] = (self.places[one][0], NOW + 60_000, one)
        return lease.lease_id, lease.ids()

    async def pages(self, where: Filter, limit: int) -> AsyncIterator[Message]:
        cursor: bytes | None = None
        while True:
            page = await self.storage.browse(TOPIC, where, cursor, limit, NOW)
            assert len(page.messages) <= limit
            for message in page.messages:
                yield message
            cursor = page.cursor
            if cursor is None:
                return


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    one = Stage(tmp_path / "s")
    await one.storage.open(NOW)
    await one.storage.put_topic(TOPIC, DIRECT_CALL)
    yield one
    await one.storage.close()


def place(message: Message) -> Place:
    return message.priority, message.ts, message.id


@pytest.mark.parametrize("limit", [90, 2_000])
async def test_pages_have_everything_once_in_the_order(stage: Stage, limit: int) -> None:
    for _ in range(4):
        await stage.create(200, ahead=False)
        await stage.create(200, ahead=True)
    _, leased = await stage.lease(150)
    found = [place(one) async for one in stage.pages(Filter(), limit)]
    assert found == sorted(stage.places.values())
    held = [one.id async for one in stage.pages(Filter(status=Status.PROCESSING), limit)]
    assert sorted(held) == sorted(leased)
    due = [one.id async for one in stage.pages(Filter(status=Status.AVAILABLE), limit)]
    assert set(due) == {one for one, (_, at, _) in stage.places.items() if at <= NOW}
    assert [one async for one in stage.pages(Filter(owner="nobody"), limit)] == []


async def test_a_page_of_many_rows_ahead_of_their_time_is_read_in_short_steps(stage: Stage) -> None:
    for _ in range(4):
        await stage.create(1_000, ahead=True)
    await stage.create(1_000, ahead=False)
    with measured_steps() as steps:
        page = await asyncio.ensure_future(stage.storage.browse(TOPIC, Filter(), None, 100, NOW))
    assert [place(one) for one in page.messages] == sorted(stage.places.values())[:100]
    # A slow machine makes more steps and not longer ones.
    assert steps.longest_ms < max(4.0, steps.total_ms / 3), steps
    assert steps.count > 10, steps


async def test_a_page_is_as_of_one_moment(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its steps, rows leave whose runs were read, and other rows come."""
    await stage.create(1_000, ahead=False, priorities=50)
    await stage.create(1_000, ahead=True, priorities=50)
    expected = sorted(stage.places.values())[:400]
    rest = QueryPace.rest
    rests = 0

    async def changing(pace: QueryPace) -> None:
        nonlocal rests
        rests += 1
        if rests == 3:
            lease_id, _ = await stage.lease(500)
            await apply_one(stage.storage, Delete(TOPIC, lease_id, "c", None), NOW, DIRECT_CALL)
            await stage.create(500, ahead=False, priorities=50)
        await rest(pace)

    monkeypatch.setattr(QueryPace, "rest", changing)
    page = await stage.storage.browse(TOPIC, Filter(), None, 400, NOW)
    assert rests > 3
    assert [place(one) for one in page.messages] == expected
    assert {one.body for one in page.messages} == {b"x" * 20}
