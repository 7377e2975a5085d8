"""Batches that are due soon in random order are merged into runs that follow each other, before consumers lease them.

Divided by bucket, a lease took one row from each of hundreds of runs.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from tests.integration.storage.killing import killed

NOW = 1_800_000_000_000
LEAD_MS = 5_000
BUCKETS, RUNS, RUN_ROWS = 8, 24, 250
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
EVEN, ODD = list(range(0, BUCKETS, 2)), list(range(1, BUCKETS, 2))


class Stage:
    """A store, and the time of each message that must be in it."""

    def __init__(self, path: Path, window_bytes: int = 64 * 1024 * 1024) -> None:
        self.path, self._window_bytes = path, window_bytes
        self.times: dict[str, int] = {}

    async def begin(self) -> None:
        self.storage = RocksStorage(self.path, journal=True, window_bytes=self._window_bytes)
        await self.storage.open(NOW)

    async def apply(self, change: Change, now: int = NOW) -> None:
        assert not (await apply_one(self.storage, change, now, DIRECT_CALL)).codes

    async def fill(self, width_ms: int = 20_000, runs: int = RUNS) -> None:
        """Create batches whose times lie between each other, and let them be merged."""
        await self.storage.put_topic(TOPIC, DIRECT_CALL)
        # Two consumers are there.
        for buckets in (EVEN, ODD):
            await self.storage.lease(TOPIC, LeaseRequest(buckets, "first", NOW, NOW + 1), NOW, DIRECT_CALL)
        chance = random.Random(len(self.times))
        for _number in range(runs):
            ts = [NOW + LEAD_MS + chance.randrange(width_ms) for _ in range(RUN_ROWS)]
            ids = [f"{chance.getrandbits(64):016x}" for _ in ts]
            batch = CreateBatch("o", ProducerSession(NOW, 1), len(self.times), ts, [b"x" * 50] * RUN_ROWS, ids=ids)
            await self.apply(Create(TOPIC, batch))
            self.times |= dict(zip(ids, ts, strict=True))
        await self.storage.merger.settle()

    async def lease(self, buckets: list[int], until: int, now: int = NOW, rows: int = 1_000) -> LeaseSet | None:
        await self.storage.load(TOPIC, range(BUCKETS), until)
        request = LeaseRequest(buckets, f"c{buckets[0]}", until, now + 600_000, rows)
        return await self.storage.lease(TOPIC, request, now, DIRECT_CALL)

    def parts(self, lease: LeaseSet) -> int:
        """From how many runs a lease has its rows, and that each of them is one part."""
        held = self.storage._state(TOPIC).leases.get(lease.lease_id)
        assert held is not None
        assert len(held.parts) == len({part.run.key for part in held.parts})
        return len(held.parts)

    async def drain(self, step_ms: int = 400, window_ms: int = 20_000) -> list[int]:
        """Lease everything in its order for both consumers; returns the number of parts of each lease."""
        parts: list[int] = []
        until = NOW + LEAD_MS
        while until < NOW + LEAD_MS + window_ms + step_ms:
            until += step_ms
            for buckets in (EVEN, ODD):
                lease = await self.lease(buckets, until, until)
                if lease is None:
                    continue
                assert [self.times.pop(one) for one in lease.ids()] == lease.ts == sorted(lease.ts)
                assert {bucket_of(one, BUCKETS) for one in lease.ids()} <= set(buckets)
                parts.append(self.parts(lease))
                await self.apply(Delete(TOPIC, lease.lease_id, lease.consumer, None), until)
        return parts


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    one = Stage(tmp_path / "s")
    await one.begin()
    return one


@pytest.mark.parametrize("width_ms", [20_000, 3_000])
async def test_a_lease_takes_rows_of_few_runs(stage: Stage, width_ms: int) -> None:
    """Also where all of them are due in one slice of time, where they were not merged."""
    await stage.fill(width_ms)
    parts = await stage.drain(width_ms // 50, width_ms)
    assert not stage.times
    # 120 rows per step. At most seven runs of a level may overlap, and of a step two runs may follow each other.
    assert len(parts) > 80
    assert sum(parts) / len(parts) < 12
    assert await stage.storage.count(TOPIC, Filter(), NOW + 60_000) == 0
    await stage.storage.close()


async def test_a_crash_after_a_part_of_a_lease_was_deleted_loses_and_repeats_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.fill()
    now = NOW + LEAD_MS + 4_000
    lease = await stage.lease(EVEN, now, now)
    assert lease is not None
    assert stage.parts(lease) > 1
    numbers = lease.rows or range(len(lease))
    by_number = dict(zip(numbers, lease.ids(), strict=True))
    await stage.apply(Delete(TOPIC, lease.lease_id, "c0", [(5, 40), (100, 101)]), now)
    crashed = Stage(tmp_path / "crashed")
    await killed(stage.path, crashed.path)
    await stage.storage.close()
    await crashed.begin()
    crashed.times = dict(stage.times)
    for row in (*range(5, 40), 100):
        del crashed.times[by_number[row]]
    (held,) = await crashed.storage.leases_of(TOPIC, "c0", now)
    assert sorted(held.ids()) == sorted(one for row, one in by_number.items() if row not in {*range(5, 40), 100})
    assert held.rows is not None
    await crashed.apply(Delete(TOPIC, held.lease_id, "c0", [(row, row + 1) for row in sorted(held.rows)]), now)
    for one in held.ids():
        del crashed.times[one]
    await crashed.drain()
    assert not crashed.times
    await crashed.storage.close()


async def test_rows_are_moved_edited_and_cancelled_where_they_were_merged(stage: Stage) -> None:
    await stage.fill()
    chosen = sorted(stage.times, key=stage.times.__getitem__)[::9]
    moved, edited, cancelled = chosen[::3], chosen[1::3], chosen[2::3]
    later = [NOW + LEAD_MS + 10_000 + number for number in range(len(moved))]
    await stage.apply(Edit(TOPIC, "o", Edits(moved, ts=later)))
    await stage.apply(Edit(TOPIC, "o", Edits(edited, bodies=[b"new"] * len(edited))))
    await stage.apply(Cancel(TOPIC, "o", cancelled))
    stage.times |= dict(zip(moved, later, strict=True))
    for one in cancelled:
        del stage.times[one]
    found = await stage.storage.get(TOPIC, edited, NOW)
    assert [one and one.body for one in found] == [b"new"] * len(edited)
    await stage.drain()
    assert not stage.times
    await stage.storage.close()


async def test_merged_rows_count_against_the_memory_for_rows(tmp_path: Path) -> None:
    """Loading ends when the memory is used up; all of them leave, and nothing is counted in the end."""
    stage = Stage(tmp_path / "s", window_bytes=256 * 1024)
    await stage.begin()
    await stage.fill(runs=2 * RUNS)
    await stage.storage.load(TOPIC, range(BUCKETS), NOW + LEAD_MS + 20_000)
    # A step of reading that began may exceed it. All rows take more than 2 MB.
    assert 200_000 < stage.storage.stats()["window_bytes"] < 1024 * 1024
    await stage.drain()
    assert not stage.times
    assert stage.storage.stats()["window_bytes"] < 1_000
    await stage.storage.close()


async def test_time_in_which_the_merger_had_nothing_to_do_is_no_work(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted as a long step, after which others would have had the loop for twice as long."""
    await stage.fill()
    before = stage.storage.stats()["merge_seconds"]
    passed = [0.0]
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + passed[0])
    passed[0] = 1_000.0
    await stage.fill()
    after = stage.storage.stats()
    assert after["merge_seconds"] - before < 100
    assert after["merge_step_seconds_max"] < 100
    await stage.storage.close()
