"""A lease takes the earliest rows of the consumer's buckets, also when they lie in very many small runs."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Create, Delete, Recall
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.operations import leasing
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000
SPREAD_MS, BUCKETS = 4_000, 16
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
OWN = {"even": list(range(0, BUCKETS, 2)), "odd": list(range(1, BUCKETS, 2)), "all": list(range(BUCKETS))}


class Stage:
    """A store with messages in small runs, and what is free there."""

    def __init__(self, storage: RocksStorage) -> None:
        self.storage = storage
        self.times: dict[str, int] = {}
        self.free: set[str] = set()
        self._chance = random.Random(5)
        self._made = 0

    async def create(self, rows: int, priority: int = 0) -> None:
        ts = [NOW + self._chance.randrange(SPREAD_MS) for _ in range(rows)]
        ids = [f"{self._chance.getrandbits(64):016x}" for _ in ts]
        priorities = [priority] * rows if priority else None
        session = ProducerSession(NOW, 1)
        batch = CreateBatch("o", session, self._made, ts, [b"x" * 50] * rows, ids=ids, priorities=priorities)
        assert not (await apply_one(self.storage, Create(TOPIC, batch), NOW, DIRECT_CALL)).codes
        self._made += rows
        self.times |= dict(zip(ids, ts, strict=True))
        self.free |= set(ids)

    def earliest(self, name: str, until: int) -> list[int]:
        """The times of the free messages of a consumer up to `until`."""
        mine = [one for one in self.free if bucket_of(one, BUCKETS) in OWN[name]]
        return sorted(self.times[one] for one in mine if self.times[one] <= until)

    async def lease(self, name: str, rows: int, until: int, bytes_max: int = 1 << 20) -> LeaseSet | None:
        await self.storage.load(TOPIC, range(BUCKETS), NOW + SPREAD_MS)
        request = LeaseRequest(OWN[name], name, until, NOW + 60_000, rows, bytes_max)
        lease = await self.storage.lease(TOPIC, request, NOW, DIRECT_CALL)
        if lease is not None:
            assert set(lease.ids()) <= self.free
            assert [self.times[one] for one in lease.ids()] == lease.ts
            self.free -= set(lease.ids())
        return lease

    async def recall(self, name: str, lease: LeaseSet) -> None:
        assert not (await apply_one(self.storage, Recall(TOPIC, lease.lease_id, name, None), NOW, DIRECT_CALL)).codes
        self.free |= set(lease.ids())


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    storage = RocksStorage(tmp_path)
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    yield Stage(storage)
    await storage.close()


@pytest.mark.parametrize("names", [("even", "odd"), ("all",)])
async def test_leases_take_exactly_the_earliest_rows_from_many_small_runs(
    stage: Stage, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    if len(names) == 1:
        # What one consumer has leased last decides how small batches are stored.
        assert await stage.lease("all", 1, NOW) is None
    for number in range(120):
        await stage.create(chance.choice([1, 3, 12]))
        if number % 4:
            continue
        name, rows = chance.choice(names), chance.choice([1, 4, 40, 1_000])
        until = NOW + chance.randrange(SPREAD_MS)
        wanted = stage.earliest(name, until)[:rows]
        with monkeypatch.context() as patch:
            # Every lease of this test is found by the search, and not by the windows.
            patch.delattr(leasing, "_heads")
            lease = await stage.lease(name, rows, until)
        assert (lease.ts if lease is not None else []) == wanted
        if lease is None:
            continue
        if chance.random() < 0.5:
            await stage.recall(name, lease)
        else:
            await apply_one(stage.storage, Delete(TOPIC, lease.lease_id, name, None, [1]), NOW, DIRECT_CALL)
    left = {name: await stage.lease(name, 10_000, NOW + SPREAD_MS) for name in names}
    assert any(left.values())
    assert not stage.free


async def test_rows_with_priorities_and_rows_beyond_the_bytes_are_leased_in_their_order(stage: Stage) -> None:
    for _ in range(20):
        await stage.create(3)
        await stage.create(2, priority=-1)
    until = NOW + SPREAD_MS
    taken: list[str] = []
    while (lease := await stage.lease("all", 1_000, until, bytes_max=600)) is not None:
        assert len(lease) < 20
        taken += lease.ids()
    times = [stage.times[one] for one in taken]
    assert len(taken) == 100
    assert times == sorted(times)


async def test_a_consumer_of_some_buckets_waits_for_its_own_first_message(stage: Stage) -> None:
    """L15: of runs over several buckets, each consumer was woken for the messages of all others and found nothing."""
    for _ in range(4):
        await stage.create(50)
    await stage.storage.load(TOPIC, range(BUCKETS), NOW + SPREAD_MS)
    for _ in range(60):
        for name in ("even", "odd"):
            assert await stage.storage.next_ts(TOPIC, OWN[name], NOW) == stage.earliest(name, NOW + SPREAD_MS)[0]
        await stage.lease("even", 1, NOW + SPREAD_MS)
