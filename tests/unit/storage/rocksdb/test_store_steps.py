"""The embedded store does what grows with the data in short steps: merges, their choice, snapshots, old sessions."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
from bench.scattered_store import batches, create_all

from dejaq import limits
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase, new_batch
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline import session_sequences
from dejaq.storage.rocksdb.timeline.ids.columns import Entries
from dejaq.storage.rocksdb.timeline.ids.print_slab import prints_for
from dejaq.storage.rocksdb.timeline.ids.sorted_run import PIECE_ENTRIES, MergeJob, RunWriter, SortedRun
from dejaq.storage.rocksdb.timeline.levels import merger
from dejaq.storage.rocksdb.timeline.levels.planning import MergePlan, next_merge
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.levels.wide_runs import Ids, Shelf, WideRun, WideRuns
from dejaq.storage.rocksdb.timeline.memory.budget import Budget
from dejaq.testing.loop_steps import measured_steps
from tests.unit.storage.rocksdb.memory_log import MemoryLog

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=4))


class Rests:
    """Processor time between the moments at which others may run."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._began = time.thread_time()

    async def rest(self) -> None:
        ended = time.thread_time()
        self.times.append(ended - self._began)
        self._began = ended


def wide_runs(owners: int, runs: int, *, overlap: bool) -> WideRuns:
    """Runs of several producer groups; those that do not overlap follow each other."""
    wide, batch = WideRuns(1, lambda key: False, Budget(1 << 20)), new_batch()
    for owner in range(owners):
        for number in range(runs):
            first = NOW + HOUR_MS + (0 if overlap else number * 30_000)
            key = keys.run(1, keys.SPREAD, first // keys.SLICE_MS, 1 + owner * runs + number, owner)
            wide.add(batch, key, WideRun(first, first + 25_000, 1_000, 100_000, 0, Ids.LISTED))
    return wide


@pytest.mark.parametrize(("owners", "runs"), [(1, 30_000), (1_500, 20)])
async def test_the_choice_of_the_next_merge_is_made_in_short_steps(owners: int, runs: int) -> None:
    """Of runs that do not overlap, and of many groups with few runs each."""
    wide, rests = wide_runs(owners, runs, overlap=False), Rests()
    assert await next_merge(wide, LevelSettings(merge_runs=8), NOW, rests.rest) is None
    assert len(rests.times) >= owners * runs // 256
    # Nearly all of them take less than half a millisecond; the list of one shelf is copied once.
    assert sorted(rests.times)[-3] < 0.002


async def test_a_large_shelf_is_looked_at_again_when_a_part_of_it_has_changed_or_a_run_came_near() -> None:
    """Each merge adds runs to the next level; to look at all of them each time took as long as the merge."""
    runs, levels = 1_600, LevelSettings(merge_runs=8)
    wide = wide_runs(1, runs, overlap=False)

    async def looks(now: int) -> bool:
        rests = Rests()
        assert await next_merge(wide, levels, now, rests.rest) is None
        return len(rests.times) > 1

    def change(count: int) -> None:
        for _ in range(count):
            wide.remove(new_batch(), next(key for key, run in wide if run.first > NOW + 2 * HOUR_MS))

    assert await looks(NOW)
    assert not await looks(NOW)
    change(runs // 16 - 8)
    assert not await looks(NOW)
    change(8)
    assert await looks(NOW)
    assert not await looks(NOW)
    assert await looks(NOW + HOUR_MS)


async def test_runs_that_were_never_merged_are_merged_before_others_and_count_in_every_plan() -> None:
    """Otherwise they gather behind merges of merges, and nothing slows creates down."""
    wide, batch = WideRuns(1, lambda key: False, Budget(1 << 20)), new_batch()
    for level in (1, 0):
        for number in range(40):
            first = NOW + HOUR_MS
            key = keys.run(1, keys.SPREAD, first // keys.SLICE_MS, 1 + 100 * level + number, 1)
            wide.add(batch, key, WideRun(first, first + 25_000, 1_000, 100_000, level, Ids.LISTED_ELSEWHERE))
    levels = LevelSettings(merge_runs=8, merge_runs_max=16)
    plan = await next_merge(wide, levels, NOW, Rests().rest)
    assert plan is not None
    assert (plan.shelf.level, plan.waiting) == (0, 40)
    wide.set_aside([key for key, run in wide if run.level == 0][:30])
    plan = await next_merge(wide, levels, NOW, Rests().rest)
    assert plan is not None
    # More of the others overlap now.
    assert (plan.shelf.level, plan.waiting) == (1, 10)


def test_a_merge_takes_more_of_the_time_the_more_runs_wait() -> None:
    shelf = Shelf(0, 1, 0, generated=False, young=False)
    shares = [
        merger.share_of(MergePlan(shelf, [], near=False, waiting=runs), 8_192) for runs in (0, 2_048, 4_096, 9_999)
    ]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == (merger.FAR_SHARE, merger.SHARE)
    assert merger.share_of(MergePlan(shelf, [], near=True, waiting=0), 8_192) == merger.SHARE


async def test_runs_that_leave_while_a_merge_is_chosen_are_not_in_it() -> None:
    wide = wide_runs(2, 40, overlap=True)
    gone = [key for key, _ in list(wide)[::2]]

    async def rest() -> None:
        if gone:
            wide.remove(new_batch(), gone.pop())

    plan = await next_merge(wide, LevelSettings(merge_runs=8), NOW, rest)
    assert plan is not None
    assert plan.runs
    assert all(key in wide for key in plan.runs)


async def test_a_merge_makes_and_writes_pieces_in_short_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[float] = []
    pause = merger._Pace.pause

    async def measured(pace: merger._Pace) -> None:
        steps.append(time.thread_time() - began[0])
        await pause(pace)
        began[0] = time.thread_time()

    began = [time.thread_time()]
    monkeypatch.setattr(merger._Pace, "pause", measured)
    storage = RocksStorage(tmp_path / "s", journal=False)
    await storage.open(NOW)
    topic = Topic(name="t", number=1, settings=TopicSettings(buckets=16))
    await storage.put_topic(topic, DIRECT_CALL)
    await create_all(storage, topic, batches(40_000, "own", "30d", 16))
    await storage.merger.settle()
    assert storage.merger.rows >= 30_000
    await storage.close()
    steps.sort()
    assert steps[len(steps) * 9 // 10] < 0.002, steps[-10:]


async def test_a_snapshot_of_many_wide_runs_is_opened_and_read_in_short_steps(tmp_path: Path) -> None:
    storage = RocksStorage(tmp_path / "s", journal=False)
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    state, batch = storage._states[1], new_batch()
    for number in range(20_000):
        first = NOW + HOUR_MS + number * 30_000
        key = keys.run(1, keys.SPREAD, first // keys.SLICE_MS, 10 + number, 1)
        state.wide.add(batch, key, WideRun(first, first + 25_000, 1_000, 100_000, 0, Ids.LISTED))
    storage._committer.write(batch)
    pending = storage._committer.pending()
    assert pending is not None
    await pending

    async def read() -> None:
        snapshot = await storage.snapshot(TOPIC, NOW)
        assert [one async for one in snapshot.scan(range(4), Filter(start=NOW, end=NOW + 1), bodies=False)] == []
        snapshot.close()

    with measured_steps() as steps:
        await asyncio.ensure_future(read())
    assert steps.count > 20
    assert steps.longest_ms < max(4.0, steps.total_ms / 5), steps
    await storage.close()


async def test_old_sessions_are_forgotten_a_few_with_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are gone in the end, and the names of the others stay."""
    monkeypatch.setattr(session_sequences, "FORGET_SESSIONS", 7)
    storage, later = RocksStorage(tmp_path / "s", journal=False), NOW + limits.PRODUCER_SESSION_MS_MAX + 1
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)

    async def create(number: int, now: int) -> int:
        batch = CreateBatch("o", ProducerSession(NOW, number), 0, [now + HOUR_MS], [b"x"])
        return len((await apply_one(storage, Create(TOPIC, batch), now, DIRECT_CALL)).codes)

    def kept() -> int:
        prefix = keys.of_topic(keys.SESSION, 1)
        return len(list(storage._database.scan_keys(prefix, keys.after(prefix))))

    for number in range(50):
        await create(number, NOW)
    before = kept()
    assert before == 50
    for number in range(100, 112):
        await create(number, later)
        assert before - kept() <= 7
        before = kept()
    assert kept() == 12
    # A repeat of one that was kept.
    assert await create(111, later) == 1
    await storage.close()


def test_the_last_step_of_a_merge_of_entries_takes_no_longer_than_the_others(tmp_path: Path) -> None:
    """What is in memory of the merged run grows with each step, and is not made at the end."""
    database, log = RocksDatabase(tmp_path / "db"), MemoryLog()
    runs: list[SortedRun] = []
    for number in range(1, 3):
        writer = RunWriter(1, number, 1, prints_for(300_000))
        batch = new_batch()
        writer.begin(batch)
        writer.add(batch, _entries(number, 300_000))
        run = writer.finish(batch)
        assert run is not None
        runs.append(run)
        log.apply(database, batch, number)
    job = MergeJob(runs, RunWriter(1, 9, 2, prints_for(600_000)))
    while not job.done:
        job.step(new_batch(), database, 8 * PIECE_ENTRIES)
    began = time.thread_time()
    merged = job.finish(new_batch())
    took = time.thread_time() - began
    assert merged is not None
    assert len(merged) == 600_000
    assert took < 0.002
    database.close()


def _entries(seed: int, count: int) -> Entries:
    chance = np.random.default_rng(seed)
    hashes = np.sort(chance.integers(0, 1 << 48, count, dtype=np.uint64))
    return Entries(hashes, np.full(count, seed, dtype=np.uint64), np.full(count, 2 * NOW, dtype=np.uint64))
