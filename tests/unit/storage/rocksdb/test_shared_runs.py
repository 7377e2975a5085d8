"""Consumers that share the buckets of a topic lease their rows of a run together, also with rows of others between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Create, Delete, Extend, Recall, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.levels.row_buckets import RowBuckets
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings

NOW = 1_800_000_000_000
FIRST_MS, SPREAD_MS = 70_000, 60_000
BUCKETS, RUNS, RUN_ROWS = 16, 8, 100
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
SMALL = LevelSettings(merge_runs=4, merge_runs_max=8, near_runs=3, piece_rows=200)
LATER = NOW + FIRST_MS + SPREAD_MS
EVEN, ODD = list(range(0, BUCKETS, 2)), list(range(1, BUCKETS, 2))


class Shared:
    """A store with messages at scattered times, whose ids are in any bucket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.times: dict[str, int] = {}

    async def begin(self) -> None:
        self.storage = RocksStorage(self._path, levels=SMALL)
        await self.storage.open(NOW)

    async def fill(self, *, merged: bool) -> None:
        await self.storage.put_topic(TOPIC, DIRECT_CALL)
        chance = random.Random(9)
        for number in range(RUNS):
            ts = [NOW + FIRST_MS + chance.randrange(SPREAD_MS) for _ in range(RUN_ROWS)]
            ids = [f"{chance.getrandbits(64):016x}" for _ in ts]
            batch = CreateBatch("o", ProducerSession(NOW, 1), number * RUN_ROWS, ts, [b"x"] * RUN_ROWS, ids=ids)
            assert not (await apply_one(self.storage, Create(TOPIC, batch), NOW, DIRECT_CALL)).codes
            self.times |= dict(zip(ids, ts, strict=True))
        if merged:
            await self.storage.merger.settle()

    async def restart(self) -> None:
        await self.storage.close()
        await self.begin()

    async def lease(self, buckets: list[int], name: str, rows: int = 1_000, now: int = LATER) -> LeaseSet | None:
        await self.storage.load(TOPIC, range(BUCKETS), now)
        request = LeaseRequest(buckets, name, now, now + 10_000, rows)
        return await self.storage.lease(TOPIC, request, now, DIRECT_CALL)

    def of(self, buckets: list[int]) -> list[str]:
        """Every id of the buckets, in the order of their times."""
        own = [one for one in self.times if bucket_of(one, BUCKETS) in buckets]
        return sorted(own, key=self.times.__getitem__)

    async def count(self) -> int:
        return await self.storage.count(TOPIC, Filter(), LATER)


@pytest.fixture
async def shared(tmp_path: Path) -> Shared:
    stage = Shared(tmp_path)
    await stage.begin()
    return stage


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("rows", [1_000, 7])
async def test_each_consumer_gets_the_rows_of_its_buckets_in_order(shared: Shared, rows: int, merged: bool) -> None:
    await shared.fill(merged=merged)
    got: dict[str, list[str]] = {"even": [], "odd": []}
    while True:
        held = [await shared.lease(EVEN, "even", rows), await shared.lease(ODD, "odd", rows)]
        if not any(held):
            break
        for name, lease in zip(got, held, strict=True):
            if lease is not None:
                assert lease.ts == sorted(lease.ts)
                assert lease.ts == [shared.times[one] for one in lease.ids()]
                got[name] += lease.ids()
    for name, buckets in (("even", EVEN), ("odd", ODD)):
        assert sorted(got[name]) == sorted(shared.of(buckets))
        if rows == 1_000:
            assert [shared.times[one] for one in got[name]] == [shared.times[one] for one in shared.of(buckets)]
    await shared.storage.close()


async def test_rows_of_one_run_are_one_part_of_the_lease(shared: Shared) -> None:
    await shared.fill(merged=True)
    lease = await shared.lease(EVEN, "even")
    assert lease is not None
    held = shared.storage._state(TOPIC).leases.get(lease.lease_id)
    assert held is not None
    assert len(held.parts) == len({part.run.key for part in held.parts}) < len(lease) // 20
    await shared.storage.close()


async def test_rows_keep_their_numbers_when_some_are_settled_and_after_a_restart(shared: Shared) -> None:
    await shared.fill(merged=True)
    lease = await shared.lease(EVEN, "even", 300)
    assert lease is not None
    numbers = lease.rows or list(range(len(lease)))
    by_number = dict(zip(numbers, lease.ids(), strict=True))
    settle = shared.storage

    async def check(change: Delete | Extend | Release | Recall) -> None:
        assert not (await apply_one(shared.storage, change, LATER, DIRECT_CALL)).codes

    await check(Delete(TOPIC, lease.lease_id, "even", [(3, 9), (50, 51)]))
    await check(Extend(TOPIC, lease.lease_id, "even", [(20, 24)], LATER + 60_000))
    await check(Release(TOPIC, lease.lease_id, "even", [(30, 32)], [LATER + 1, LATER + 2]))
    await check(Recall(TOPIC, lease.lease_id, "even", [(40, 45)]))
    gone = [*range(3, 9), 50]
    left = set(range(len(lease))) - {*gone, 30, 31, *range(40, 45)}
    for _ in range(2):
        found = await shared.storage.get(TOPIC, [by_number[row] for row in range(len(lease))], LATER)
        assert [row for row, message in enumerate(found) if message is None] == gone
        assert {row for row, message in enumerate(found) if message and message.lock_consumer} == left
        assert [message.ts for message in found[30:32] if message] == [LATER + 1, LATER + 2]
        assert {message.ts for message in found[20:24] if message} == {LATER + 60_000}
        holders = await shared.storage.holders(TOPIC, [by_number[60]], LATER)
        assert [holder and (holder.lease_id, holder.row) for holder in holders] == [(lease.lease_id, 60)]
        sets = await shared.storage.leases_of(TOPIC, "even", LATER)
        assert sorted(row for one in sets for row in one.rows or ()) == sorted(left)
        assert all(
            dict(zip(one.rows or (), one.ids(), strict=True)) == {row: by_number[row] for row in one.rows or ()}
            for one in sets
        )
        await shared.restart()
    assert settle is not shared.storage
    assert (
        len(
            (
                await apply_one(shared.storage, Delete(TOPIC, lease.lease_id, "even", [(3, 10)]), LATER, DIRECT_CALL)
            ).codes
        )
        == 6
    )
    await shared.storage.close()


async def test_expired_rows_are_leased_again_with_their_attempts(shared: Shared) -> None:
    await shared.fill(merged=True)
    first = await shared.lease(EVEN, "even")
    assert first is not None
    again: list[str] = []
    while (lease := await shared.lease(EVEN, "other", now=LATER + 20_000)) is not None:
        assert lease.attempts == [2] * len(lease)
        again += lease.ids()
    assert sorted(again) == sorted(first.ids())
    codes = (await apply_one(shared.storage, Delete(TOPIC, first.lease_id, "even", None), LATER, DIRECT_CALL)).codes
    assert set(codes.values()) == {Code.LEASE_LOST}
    assert await shared.count() == RUNS * RUN_ROWS
    await shared.storage.close()


async def test_a_consumer_with_few_of_many_buckets_gets_the_same(shared: Shared) -> None:
    await shared.fill(merged=True)
    got = [await shared.lease([bucket], f"c{bucket}") for bucket in range(BUCKETS)]
    assert [lease.ids() if lease else [] for lease in got] == [shared.of([bucket]) for bucket in range(BUCKETS)]
    assert shared.storage._state(TOPIC).demand.shared_by_many
    await shared.storage.close()


def test_row_buckets_and_masks_name_the_same_rows() -> None:
    chance = random.Random(2)
    for count in (1, 7, 16, 17, 200, 1_024):
        buckets = [chance.randrange(BUCKETS) for _ in range(count)]
        rows = [row for row in range(count) if buckets[row] in (1, 4)]
        mask = RowBuckets(buckets).mask_of((1, 4))
        assert list(masks.rows(mask)) == rows
        assert masks.of_rows(rows) == mask
        assert masks.pick(range(1_000, 1_000 + count), mask) == [1_000 + row for row in rows]
    assert masks.pick(range(10), masks.span(3, 6)) == [3, 4, 5]


async def test_leased_rows_count_at_the_end_of_their_lease(shared: Shared) -> None:
    await shared.fill(merged=True)
    lease = await shared.lease(EVEN, "even", 300)
    assert lease is not None
    counts = dict(await shared.storage.histogram(TOPIC, Filter(), 1_000, LATER))
    expected: dict[int, int] = {}
    for message_id, ts in shared.times.items():
        at = LATER + 10_000 if message_id in set(lease.ids()) else ts
        expected[at // 1_000 * 1_000] = expected.get(at // 1_000 * 1_000, 0) + 1
    assert counts == expected
    await shared.storage.close()
