"""The memory of the embedded store is limited, and no step of reading it blocks the event loop for long."""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Change, Create, Delete, Extend, Recall
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Durability, Topic, TopicKind, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.operations import loading
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.memory import budget
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
BUCKETS = 4
MIB = 1 << 20


def topic_of(kind: TopicKind, number: int = 1) -> Topic:
    settings = TopicSettings(buckets=BUCKETS, kind=kind, durability=Durability.RELAXED)
    return Topic(name=f"{kind}-{number}", number=number, settings=settings)


TIMELINE, PRIORITY = topic_of(TopicKind.TIMELINE), topic_of(TopicKind.PRIORITY)
KINDS = pytest.mark.parametrize("topic", [TIMELINE, PRIORITY], ids=["timeline", "priority"])


@pytest.fixture(autouse=True)
def small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "RESERVE_BYTES", MIB // 8)


class Stage:
    """A store with little memory for rows."""

    def __init__(self, path: Path, window_bytes: int) -> None:
        self.storage = RocksStorage(path, window_bytes=window_bytes, journal=True)
        self.sequence = 0

    async def begin(self, *topics: Topic) -> None:
        await self.storage.open(NOW)
        for topic in topics:
            await self.storage.put_topic(topic, DIRECT_CALL)

    async def restart(self) -> None:
        await self.storage.close()
        await self.storage.open(NOW)

    def state(self, topic: Topic) -> TopicState:
        return self.storage._states[topic.number]

    @property
    def used(self) -> int:
        return self.storage._budget.used

    async def apply(self, change: Change) -> None:
        assert not (await apply_one(self.storage, change, NOW, DIRECT_CALL)).codes

    async def send(self, topic: Topic, count: int, *, body: bytes = b"x" * 100, spread_ms: int = 5_000) -> None:
        """Messages of a run each, as one producer sends them that waits for each answer."""
        for _ in range(count):
            ts = NOW + self.sequence * 7_919 % spread_ms
            batch = CreateBatch("o", ProducerSession(NOW, 1), self.sequence, [ts], [body], ids=[f"m-{self.sequence}"])
            self.sequence += 1
            await self.apply(Create(topic, batch))

    async def send_batch(self, topic: Topic, count: int, *, body: bytes = b"x" * 100, own: bool = True) -> None:
        ids = [f"m-{self.sequence + row}" for row in range(count)] if own else None
        batch = CreateBatch("o", ProducerSession(NOW, 1), self.sequence, [NOW] * count, [body] * count, ids=ids)
        self.sequence += count
        await self.apply(Create(topic, batch))

    async def lease(self, topic: Topic, rows_max: int = 1_000, now: int = NOW + HOUR_MS) -> LeaseSet | None:
        request = LeaseRequest(range(BUCKETS), "worker", now, now + HOUR_MS, rows_max)
        return await self.storage.lease(topic, request, now, DIRECT_CALL)


@KINDS
async def test_d21_a_lease_reads_no_more_than_the_memory_for_rows(tmp_path: Path, topic: Topic) -> None:
    stage = Stage(tmp_path / "data", MIB)
    await stage.begin(topic)
    await stage.send(topic, 4_000)
    assert stage.used < 1.5 * MIB
    await stage.restart()
    assert await stage.lease(topic, 1) is not None
    assert stage.used < 1.5 * MIB
    left = 4_000 - 1
    while (leased := await stage.lease(topic, 100)) is not None:
        assert stage.used < 1.5 * MIB + 100 * 3_000
        left -= len(leased)
        change = Delete(topic, leased.lease_id, "worker", None)
        await apply_one(stage.storage, change, NOW + HOUR_MS, DIRECT_CALL)
    assert left == 0
    await stage.storage.close()


@KINDS
async def test_a_topic_that_nobody_leases_from_gives_its_memory_to_others(
    tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = topic_of(TopicKind(topic.settings.kind), 2)
    stage = Stage(tmp_path / "data", MIB)
    await stage.begin(topic, other)
    await stage.send(topic, 2_000)
    await stage.send(other, 100)
    assert await stage.lease(topic, 1) is not None
    assert stage.storage._budget.spent
    monkeypatch.setattr(loading, "_IDLE_S", 0.0)
    await stage.storage.load(other, range(BUCKETS), NOW + HOUR_MS)
    assert not stage.storage._budget.spent
    leased = await stage.lease(other)
    assert leased is not None
    assert len(leased) == 100
    again = await stage.lease(topic, 5_000)
    assert again is not None
    await stage.storage.close()


async def test_creates_in_front_of_a_full_window_make_room(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "data", MIB)
    await stage.begin(TIMELINE)
    await stage.storage.load(TIMELINE, range(BUCKETS), NOW + HOUR_MS)
    for number in range(3_000):
        ts = NOW + HOUR_MS - number * 1_000
        batch = CreateBatch("o", ProducerSession(NOW, 1), number, [ts], [b"x" * 100], ids=[f"m-{number}"])
        await stage.apply(Create(TIMELINE, batch))
        assert stage.used < 1.1 * MIB
    assert await stage.storage.count(TIMELINE, Filter(), NOW) == 3_000
    times: list[int] = []
    while (leased := await stage.lease(TIMELINE, 100, NOW + 2 * HOUR_MS)) is not None:
        times += leased.ts
    # When memory is short, late rows are ordered to within a slice.
    assert all(ts >= latest - keys.SLICE_MS for ts, latest in zip(times, accumulate(times, max), strict=True))
    assert len(times) == 3_000
    await stage.storage.close()


@KINDS
async def test_the_first_lease_after_a_restart_lets_others_run(tmp_path: Path, topic: Topic) -> None:
    """The first lease over 200,000 single sends took more than a second in one step."""
    stage = Stage(tmp_path / "data", 256 * MIB)
    await stage.begin(topic)
    await stage.send(topic, 3_000)
    await stage.restart()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    running = asyncio.ensure_future(others())
    leased = await stage.lease(topic, 10)
    running.cancel()
    assert leased is not None
    # A step reads at most 64 runs, and takes about a millisecond.
    assert turns >= 10
    if topic is TIMELINE:
        assert leased.ts == sorted(NOW + number * 7_919 % 5_000 for number in range(3_000))[:10]
    await stage.storage.close()


@pytest.mark.parametrize("own", [True, False], ids=["own", "generated"])
async def test_d22_one_slow_row_does_not_keep_the_others_of_its_lease(tmp_path: Path, own: bool) -> None:
    stage = Stage(tmp_path / "data", 256 * MIB)
    await stage.begin(TIMELINE)
    await stage.send_batch(TIMELINE, 1_000, body=b"b" * 1_000, own=own)
    leased = await stage.lease(TIMELINE)
    assert leased is not None
    assert stage.used > 900_000
    ids = leased.ids()
    await stage.apply(Delete(TIMELINE, leased.lease_id, "worker", [(0, 300), (301, 700), (701, 1_000)]))
    assert stage.used < 20_000
    # What remains is as it was: in memory, and read from disk.
    for restart in (False, True):
        if restart:
            await stage.restart()
        (held,) = await stage.storage.leases_of(TIMELINE, "worker", NOW)
        assert (held.ids(), held.ts, held.rows) == ([ids[300], ids[700]], [NOW] * 2, [300, 700])
        assert list(held.bodies) == [b"b" * 1_000] * 2
        assert (await stage.storage.get(TIMELINE, [ids[300], ids[0]], NOW))[1] is None
        await stage.apply(
            Extend(TIMELINE, leased.lease_id, "worker", [(300, 301), (700, 701)], NOW + (3 + restart) * HOUR_MS)
        )
        lost = await apply_one(stage.storage, Delete(TIMELINE, leased.lease_id, "worker", [(0, 1)]), NOW, DIRECT_CALL)
        assert list(lost.codes) == [0]
    await stage.storage.close()


@KINDS
@pytest.mark.parametrize("own", [True, False], ids=["own", "generated"])
@pytest.mark.parametrize("seed", range(3))
async def test_rows_that_remain_of_a_lease_are_leased_again_in_order(
    tmp_path: Path, topic: Topic, own: bool, seed: int
) -> None:
    chance = random.Random(seed)
    stage = Stage(tmp_path / "data", 256 * MIB)
    await stage.begin(topic)
    ids = [f"m-{row}" for row in range(400)] if own else None
    ts = sorted(NOW + chance.randrange(2_000) for _ in range(400))
    bodies = [b"%d" % row for row in range(400)]
    batch = CreateBatch("o", ProducerSession(NOW, 1), 0, ts, bodies, ids=ids)
    await stage.apply(Create(topic, batch))
    leased = await stage.lease(topic)
    assert leased is not None
    body_of = dict(zip(leased.ids(), leased.bodies, strict=True))
    numbers = dict(zip(leased.rows or range(400), leased.ids(), strict=True))
    kept = sorted(chance.sample(range(400), 12))
    gone = [(row, row + 1) for row in range(400) if row not in kept]
    await stage.apply(Delete(topic, leased.lease_id, "worker", gone))
    await stage.apply(Recall(topic, leased.lease_id, "worker", [(row, row + 1) for row in kept[:6]]))
    again = await stage.lease(topic)
    assert again is not None
    assert set(again.ids()) == {numbers[row] for row in kept[:6]}
    assert again.ts == sorted(again.ts)
    assert list(again.bodies) == [body_of[one] for one in again.ids()]
    found = await stage.storage.get(topic, [numbers[row] for row in kept], NOW)
    assert [message and message.body for message in found] == [body_of[numbers[row]] for row in kept]
    page = await stage.storage.browse(topic, Filter(), None, 1_000, NOW)
    assert {message.id for message in page.messages} == {numbers[row] for row in kept}
    await stage.apply(Delete(topic, leased.lease_id, "worker", [(row, row + 1) for row in kept[6:]]))
    await stage.apply(Delete(topic, again.lease_id, "worker", None))
    assert await stage.storage.count(topic, Filter(), NOW) == 0
    assert not list(stage.storage._database.scan_keys(keys.RUN, keys.after(keys.RUN)))
    assert stage.used == 0
    await stage.storage.close()
