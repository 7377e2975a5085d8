"""Rows of small runs wait one by one, in the order of their times and each in its bucket, whatever happens to them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from sys import getsizeof

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit, Edits, Recall, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.window import Window
from tests.integration.storage.killing import killed

NOW = 1_800_000_007_000
BUCKETS, WIDTH_MS = 8, 4_900
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
OWN = {"even": list(range(0, BUCKETS, 2)), "odd": list(range(1, BUCKETS, 2)), "all": list(range(BUCKETS))}


class Stage:
    """A store with messages that were created a few at a time, and what must be free there."""

    def __init__(self, path: Path, seed: int = 1, window_bytes: int = 64 * 1024 * 1024) -> None:
        self.path, self._window_bytes = path, window_bytes
        self.chance = random.Random(seed)
        self.times: dict[str, int] = {}
        self.free: set[str] = set()
        self.held: list[tuple[str, LeaseSet]] = []
        self._made = 0

    async def begin(self) -> None:
        self.storage = RocksStorage(self.path, window_bytes=self._window_bytes)
        await self.storage.open(NOW)
        if not await self.storage.topics():
            await self.storage.put_topic(TOPIC, DIRECT_CALL)

    async def apply(self, change: Change) -> None:
        assert not (await apply_one(self.storage, change, NOW, DIRECT_CALL)).codes

    async def create(self, rows: int, first_ms: int = 0, body: bytes = b"x" * 40) -> None:
        ts = [NOW + first_ms + self.chance.randrange(WIDTH_MS) for _ in range(rows)]
        ids = [f"{self.chance.getrandbits(64):016x}" for _ in ts]
        owner = self.chance.choice(["billing", "mailing"])
        batch = CreateBatch(owner, ProducerSession(NOW, 1), self._made, ts, [body] * rows, ids=ids)
        await self.apply(Create(TOPIC, batch))
        self._made += rows
        self.times |= dict(zip(ids, ts, strict=True))
        self.free |= set(ids)

    def wanted(self, name: str, until: int, rows: int) -> list[int]:
        """The times of the first free messages of a consumer."""
        mine = [one for one in self.free if bucket_of(one, BUCKETS) in OWN[name]]
        return sorted(self.times[one] for one in mine if self.times[one] <= until)[:rows]

    async def lease(self, name: str, until: int, rows: int = 1_000, bytes_max: int = 1 << 20) -> LeaseSet | None:
        request = LeaseRequest(OWN[name], name, until, NOW + 600_000, rows, bytes_max)
        lease = await self.storage.lease(TOPIC, request, NOW, DIRECT_CALL)
        if lease is not None:
            ids = lease.ids()
            assert len(set(ids)) == len(ids)
            assert set(ids) <= self.free
            assert [self.times[one] for one in ids] == lease.ts == sorted(lease.ts)
            assert lease.ts[-1] <= until
            assert {bucket_of(one, BUCKETS) for one in ids} <= set(OWN[name])
            self.free -= set(ids)
            self.held.append((name, lease))
        return lease

    async def settle(self) -> None:
        """Do something with a row, or all rows, of a lease."""
        if not self.held:
            return
        name, lease = self.held.pop(self.chance.randrange(len(self.held)))
        rows = dict(zip(lease.ids(), lease.rows or range(len(lease)), strict=True))
        if self.chance.random() < 0.6:
            one = self.chance.choice(lease.ids())
            ranges = [(rows[one], rows.pop(one) + 1)]
            if self.chance.random() < 0.3:
                self.times[one] = NOW + self.chance.randrange(WIDTH_MS)
                await self.apply(Release(TOPIC, lease.lease_id, name, ranges, self.times[one]))
                self.free.add(one)
            else:
                await self.apply(Delete(TOPIC, lease.lease_id, name, ranges, [1]))
                del self.times[one]
        if rows:
            await self.apply(Recall(TOPIC, lease.lease_id, name, [(row, row + 1) for row in rows.values()]))
            self.free |= rows.keys()

    async def change(self) -> None:
        """Cancel a message, or move it."""
        if not self.free:
            return
        one = self.chance.choice(sorted(self.free))
        message = (await self.storage.get(TOPIC, [one], NOW))[0]
        assert message is not None
        assert message.ts == self.times[one]
        if self.chance.random() < 0.5:
            await self.apply(Cancel(TOPIC, message.producer_group, [one]))
            self.free.remove(one)
            del self.times[one]
        else:
            self.times[one] = NOW + self.chance.randrange(WIDTH_MS)
            await self.apply(Edit(TOPIC, message.producer_group, Edits([one], ts=[self.times[one]])))

    async def step(self) -> None:
        """Create, lease, settle or change something; a lease must take exactly the earliest rows."""
        action = self.chance.random()
        if action < 0.4:
            await self.create(self.chance.choice([1, 2, 3, 8, 40]))
        elif action < 0.6:
            await self.settle()
        elif action < 0.7:
            await self.change()
        else:
            name, rows = self.chance.choice(list(OWN)), self.chance.choice([1, 4, 40, 1_000])
            until = NOW + self.chance.randrange(WIDTH_MS)
            wanted = self.wanted(name, until, rows)
            # What waits on disk is read first.
            await self.storage.load(TOPIC, range(BUCKETS), NOW + WIDTH_MS)
            lease = await self.lease(name, until, rows)
            assert (lease.ts if lease is not None else []) == wanted

    async def drain(self) -> None:
        """Lease and delete everything."""
        for name, held in self.held:
            ranges = [(row, row + 1) for row in held.rows or range(len(held))]
            await self.apply(Recall(TOPIC, held.lease_id, name, ranges))
            self.free |= set(held.ids())
        self.held.clear()
        for name in ("even", "odd"):
            while (lease := await self.lease(name, NOW + WIDTH_MS, 100)) is not None:
                await self.apply(Delete(TOPIC, lease.lease_id, name, None))
        assert not self.free
        assert await self.storage.count(TOPIC, Filter(), NOW) == 0


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path / "s")
    await made.begin()
    yield made
    await made.storage.close()


@pytest.mark.parametrize("seed", range(6))
async def test_every_lease_has_the_earliest_rows_of_its_buckets(tmp_path: Path, seed: int) -> None:
    """Some rows lie in small runs, others in large ones; some were recalled, released, moved, or are read from disk."""
    stage = Stage(tmp_path / "s", seed)
    await stage.begin()
    for number in range(150):
        if number % 50 == 20:
            await stage.create(150)
        if number % 60 == 30:
            await stage.storage.close()
            await stage.begin()
        await stage.step()
    await stage.drain()
    assert stage.storage.stats()["window_bytes"] < 1_000
    await stage.storage.close()


@pytest.mark.parametrize("window_bytes", [1, 60_000, 400_000])
async def test_rows_that_lack_memory_are_leased_once_each(tmp_path: Path, window_bytes: int) -> None:
    """The windows drop rows of small runs, which are read again; nothing is lost, and nothing is kept in memory."""
    stage = Stage(tmp_path / "s", 3, window_bytes)
    await stage.begin()
    # All that is due so far is in memory from now on.
    assert await stage.lease("all", NOW + WIDTH_MS) is None
    for number in range(300):
        await stage.create(stage.chance.choice([1, 2, 5]), first_ms=-(number % 7) * 4_000)
        if number % 9 == 0:
            await stage.lease(stage.chance.choice(list(OWN)), NOW + stage.chance.randrange(WIDTH_MS), 20)
        if number % 5 == 0:
            await stage.settle()
        near = [run for window in windows(stage) for _, _, run, _ in window.near.heap]
        state = stage.storage._state(TOPIC)
        assert all(state.runs.keeps(run) for run in near if run.free)
    assert stage.storage.stats()["window_bytes"] < window_bytes + 9 * 1024 * 1024
    await stage.drain()
    assert stage.storage.stats()["window_bytes"] < 1_000
    await stage.storage.close()


@pytest.mark.parametrize("seed", range(107, 113))
@pytest.mark.parametrize("window_bytes", [60_000, 64 * 1024 * 1024])
async def test_no_consumer_sleeps_past_a_message_and_none_finds_a_row_twice(
    tmp_path: Path, seed: int, window_bytes: int
) -> None:
    """G4: also where a row that was recalled waits in its bucket, and in its run, which was read from disk again."""
    stage = Stage(tmp_path / "s", seed, window_bytes)
    await stage.begin()
    for number in range(100):
        if number % 40 == 20:
            await stage.storage.close()
            await stage.begin()
        action = stage.chance.random()
        if action < 0.45:
            await stage.create(stage.chance.choice([1, 2, 3, 8, 40]))
        elif action < 0.6:
            await stage.settle()
        elif action < 0.7:
            await stage.change()
        else:
            name, until = stage.chance.choice(list(OWN)), NOW + stage.chance.randrange(WIDTH_MS)
            await stage.lease(name, until, stage.chance.choice([1, 4, 40, 1_000]))
        for name in OWN:
            found = await stage.storage.next_ts(TOPIC, OWN[name], NOW)
            for first in stage.wanted(name, NOW + WIDTH_MS, 1):
                assert found is not None
                assert found <= first
    await stage.drain()
    await stage.storage.close()


async def test_when_memory_is_used_up_rows_of_small_runs_make_room(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "s", 3, 100_000)
    await stage.begin()
    assert await stage.lease("all", NOW + WIDTH_MS) is None
    for _ in range(150):
        await stage.create(2)
    waiting = sum(len(window.near.heap) for window in windows(stage))
    # A run takes about 2 kB.
    assert 0 < waiting < 150
    assert stage.storage.stats()["window_bytes"] < 150_000
    await stage.drain()
    await stage.storage.close()


async def test_rows_that_wait_count_in_the_memory(stage: Stage) -> None:
    assert await stage.lease("all", NOW + WIDTH_MS) is None
    for _ in range(50):
        await stage.create(40)
    near = [row for window in windows(stage) for row in window.near.heap]
    assert len(near) == 2_000
    rows = sum(map(getsizeof, (part for row in near for part in (row, row[0], row[1]))))
    runs = {run.key: run.size for _, _, run, _ in near}
    counted = stage.storage.stats()["window_bytes"]
    assert rows + sum(runs.values()) < counted < 2 * (rows + sum(runs.values()))


def windows(stage: Stage) -> list[Window]:
    """All windows of the topic."""
    state = stage.storage._state(TOPIC)
    return [state.window(bucket) for bucket in (*range(BUCKETS), keys.SPREAD)]


async def test_small_creates_are_a_run_per_slice_and_each_consumer_visits_its_own_rows(stage: Stage) -> None:
    assert await stage.lease("all", NOW + WIDTH_MS) is None
    await stage.lease("even", NOW)
    for _ in range(20):
        await stage.create(6)
    database = stage.storage._database
    # The times lie in two slices.
    assert 20 < len(list(database.scan_keys(keys.RUN, keys.after(keys.RUN)))) <= 40
    # Nothing of it has to be merged, and no consumer finds the rows of another.
    state = stage.storage._state(TOPIC)
    assert len(state.wide) == 0
    assert state.window(keys.SPREAD).head() is None
    for name in ("even", "odd"):
        waiting = [run.id_at(row) for bucket in OWN[name] for _, _, run, row in state.window(bucket).near.heap]
        assert sorted(waiting) == sorted(one for one in stage.free if bucket_of(one, BUCKETS) in OWN[name])
        first = stage.wanted(name, NOW + WIDTH_MS, 1)
        assert [await stage.storage.next_ts(TOPIC, OWN[name], NOW)] == first
    lease = await stage.lease("even", NOW + WIDTH_MS)
    assert lease is not None
    # What was leased no longer waits, and the lease has one part for each run.
    assert not any(state.window(bucket).near.heap for bucket in OWN["even"])
    held = state.leases.get(lease.lease_id)
    assert held is not None
    assert len(held.parts) == len({part.run.key for part in held.parts}) <= 40


async def test_rows_beyond_the_bytes_of_a_lease_wait_on(stage: Stage) -> None:
    for _ in range(30):
        await stage.create(2, body=b"x" * 1_000)
    sizes = []
    while (lease := await stage.lease("all", NOW + WIDTH_MS, bytes_max=5_000)) is not None:
        sizes.append(len(lease))
    assert sum(sizes) == 60
    assert max(sizes) <= 5


@pytest.mark.parametrize("seed", range(3))
async def test_a_kill_loses_nothing_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    stage = Stage(tmp_path / "s", seed)
    await stage.begin()
    for _ in range(80):
        await stage.step()
    await killed(stage.path, tmp_path / "killed")
    await stage.storage.close()
    stage.path = tmp_path / "killed"
    await stage.begin()
    for name in OWN:
        left = await stage.storage.leases_of(TOPIC, name, NOW)
        assert sorted(one for lease in left for one in lease.ids()) == sorted(
            one for owner, lease in stage.held for one in lease.ids() if owner == name
        )
    for _ in range(40):
        await stage.step()
    await stage.drain()
    await stage.storage.close()


async def test_a_deleted_topic_takes_its_rows_with_it(stage: Stage) -> None:
    assert await stage.lease("all", NOW + WIDTH_MS) is None
    for _ in range(30):
        await stage.create(3)
    assert stage.storage.stats()["window_bytes"] > 30_000
    await stage.storage.drop_topic(TOPIC, NOW, DIRECT_CALL)
    assert stage.storage.stats()["window_bytes"] == 0
