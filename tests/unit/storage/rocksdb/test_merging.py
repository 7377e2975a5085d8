"""The rows of many runs that come next in priority are merged into one run, and nothing else about them changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Create, Delete, Edit, Edits, Recall
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_in, bucket_of
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.bodies import row_groups
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState

NOW = 1_800_000_000_000
BATCHES, ROWS, PRIORITIES, LEASED = 48, 200, 1_000, 100
TOPIC = Topic(name="urgent", number=1, settings=TopicSettings(kind=TopicKind.PRIORITY, buckets=2))
EAGER = LevelSettings(merge_runs=8)
TABLES = (keys.RUN, keys.GONE, keys.DIRECTORY, keys.INDEX, keys.YOUNG, keys.LEASE, keys.TERMS, keys.MINUTE_COUNT)


class Stage:
    """A store with many batches over many priorities, and the order in which they must be leased."""

    def __init__(self, path: Path, levels: LevelSettings | None = None) -> None:
        self.storage = RocksStorage(path, journal=True, levels=levels)
        self.now = NOW
        self.ids: list[str] = []
        self.left: list[tuple[int, int]] = []

    async def begin(self) -> None:
        """Create the batches: in one bucket with generated ids, in the other with natural ids."""
        await self.storage.open(self.now)
        await self.storage.put_topic(TOPIC, DIRECT_CALL)
        await self.create(range(BATCHES))

    async def create(self, numbers: range) -> None:
        """Create batches; batches that are created after the first lease stay in memory."""
        for number in numbers:
            chance = random.Random(number)
            self.now += 1
            priorities = sorted(chance.randrange(-PRIORITIES // 2, PRIORITIES // 2) for _ in range(ROWS))
            batch = CreateBatch(
                owner="g",
                session=ProducerSession(NOW, 7),
                sequence=number * ROWS,
                bucket=1,
                ts=[self.now] * ROWS,
                bodies=[b"%d" % priority for priority in priorities],
                priorities=priorities,
                ids=[f"own-{number}-{row}" for row in range(ROWS)] if number % 2 else None,
            )
            assert not (await apply_one(self.storage, Create(TOPIC, batch), self.now, DIRECT_CALL)).codes
            self.ids += [batch.id_of(row) for row in range(ROWS)]
            self.left += [(priority, self.now) for priority in priorities]
        self.left.sort()

    async def lease_from(self, bucket: int) -> LeaseSet | None:
        """Lease the next rows of one bucket."""
        request = LeaseRequest([bucket], "c", until=self.now, expires=self.now + 60_000, rows_max=LEASED)
        return await self.storage.lease(TOPIC, request, self.now, DIRECT_CALL)

    async def lease(self, rows: int = LEASED) -> LeaseSet:
        """Lease the next rows, and check that they are the first ones."""
        self.now += 1
        request = LeaseRequest(range(2), "c", until=self.now, expires=self.now + 60_000, rows_max=rows)
        lease = await self.storage.lease(TOPIC, request, self.now, DIRECT_CALL)
        assert lease is not None
        priorities = lease.priorities or [0] * len(lease)
        assert list(zip(priorities, lease.ts, strict=True)) == self.left[: len(lease)]
        assert lease.bodies == [b"%d" % priority for priority in priorities]
        del self.left[: len(lease)]
        return lease

    async def delete(self, lease: LeaseSet) -> None:
        """Delete all rows of a lease."""
        assert not (
            await apply_one(self.storage, Delete(TOPIC, lease.lease_id, "c", None), self.now, DIRECT_CALL)
        ).codes

    def parts(self, lease: LeaseSet) -> int:
        """The number of stretches of runs from which a lease was built."""
        held = self.storage._states[TOPIC.number].leases.get(lease.lease_id)
        assert held is not None
        return len(held.parts)

    async def versions(self) -> dict[str, int]:
        """The version of each message that is not leased."""
        found = await self.storage.get(TOPIC, self.ids, self.now)
        return {message.id: message.version for message in found if message is not None and not message.lock_consumer}


async def test_a_lease_from_many_small_runs_makes_the_next_leases_cheap(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store")
    await stage.begin()
    try:
        parts: list[int] = []
        while stage.left:
            lease = await stage.lease()
            parts.append(stage.parts(lease))
            await stage.delete(lease)
            if len(parts) == BATCHES:
                await stage.create(range(BATCHES, 2 * BATCHES))
        assert parts[0] > LEASED // 4
        assert sum(parts) / len(parts) < LEASED // 8
        state, database = stage.storage._states[TOPIC.number], stage.storage._database
        assert state.total == 0
        for table in TABLES:
            prefix = keys.of_topic(table, TOPIC.number)
            assert list(database.scan_keys(prefix, keys.after(prefix))) == []
    finally:
        await stage.storage.close()


async def test_batches_are_merged_while_nobody_leases(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store", EAGER)
    await stage.begin()
    try:
        await stage.storage.merger.settle()
        assert stage.storage.merger.rows > BATCHES * ROWS // 2
        lease = await stage.lease()
        assert stage.parts(lease) < LEASED // 4
        await stage.delete(lease)
        while stage.left:
            await stage.delete(await stage.lease())
        assert stage.storage._states[TOPIC.number].total == 0
    finally:
        await stage.storage.close()


@pytest.mark.parametrize("restarted", [False, True])
async def test_consumers_of_some_buckets_divide_merged_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """Each gets the rows of its bucket in the order of priority, whether the bucket is in the id or its hash."""
    # Runs on a timeline would be divided into groups of rows.
    monkeypatch.setattr(row_groups, "ROWS_MIN", 2)
    monkeypatch.setattr(row_groups, "SPAN_MS_MIN", 1)
    stage = Stage(tmp_path / "store", EAGER)
    await stage.begin()
    try:
        await stage.storage.merger.settle()
        if restarted:
            await stage.storage.close()
            stage.storage = RocksStorage(tmp_path / "store", journal=True, levels=EAGER)
            await stage.storage.open(stage.now)
        whole = await stage.lease()
        await stage.delete(whole)
        seen = set(whole.ids())
        last: dict[int, tuple[int, int]] = {}
        calls = 0
        while len(seen) < BATCHES * ROWS:
            calls += 1
            assert calls < 4 * BATCHES * ROWS // LEASED
            bucket = calls % 2
            lease = await stage.lease_from(bucket)
            if lease is None:
                continue
            ranks = list(zip(lease.priorities or [0] * len(lease), lease.ts, strict=True))
            assert ranks == sorted(ranks)
            assert ranks[0] >= last.get(bucket, ranks[0])
            last[bucket] = ranks[-1]
            for message_id in lease.ids():
                own = message_id.startswith("own")
                assert (bucket_of(message_id, 2) if own else bucket_in(message_id)) == bucket
                assert message_id not in seen
                seen.add(message_id)
            if calls % 3:
                await stage.delete(lease)
        assert seen == set(stage.ids)
    finally:
        await stage.storage.close()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_consumer_of_several_buckets_gets_the_rows_of_one_run_in_each(
    tmp_path: Path, *, restarted: bool
) -> None:
    """A run over several buckets that was divided has rows in the window of each; a lease takes those of all its
    buckets, in the order of priority, and leaves none behind.
    """
    topic = Topic(name="three", number=1, settings=TopicSettings(kind=TopicKind.PRIORITY, buckets=3))
    ids = [f"own-{row}" for row in range(30)]
    storage = RocksStorage(tmp_path / "store", journal=True)
    await storage.open(NOW)
    try:
        await storage.put_topic(topic, DIRECT_CALL)
        batch = CreateBatch(
            owner="g",
            session=ProducerSession(NOW, 7),
            sequence=0,
            bucket=0,
            ts=[NOW] * len(ids),
            bodies=[b"x"] * len(ids),
            ids=ids,
        )
        assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes
        if restarted:
            await storage.close()
            storage = RocksStorage(tmp_path / "store", journal=True)
            await storage.open(NOW)
        wanted = {one for one in ids if bucket_of(one, 3) < 2}
        assert {bucket_of(one, 3) for one in wanted} == {0, 1}
        seen: list[str] = []
        for rows in (7, len(ids)):
            assert await storage.next_ts(topic, range(2), NOW) == 0
            request = LeaseRequest(range(2), "c", until=NOW, expires=NOW + 60_000, rows_max=rows)
            lease = await storage.lease(topic, request, NOW, DIRECT_CALL)
            assert lease is not None
            seen += lease.ids()
        assert sorted(seen) == sorted(wanted)
        assert await storage.next_ts(topic, [2], NOW) == 0
        rest = LeaseRequest([2], "d", until=NOW, expires=NOW + 60_000, rows_max=len(ids))
        lease = await storage.lease(topic, rest, NOW, DIRECT_CALL)
        assert lease is not None
        assert set(lease.ids()) == set(ids) - wanted
    finally:
        await storage.close()


async def test_a_lease_finds_a_row_behind_many_runs_of_other_buckets(tmp_path: Path) -> None:
    """One lease divides eight runs over several buckets, and None would mean that nothing is due."""
    topic = Topic(name="three", number=1, settings=TopicSettings(kind=TopicKind.PRIORITY, buckets=3))
    names: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for number in range(1_000):
        names[bucket_of(f"own-{number}", 3)].append(f"own-{number}")
    batches = [names[2][8 * number : 8 * number + 8] for number in range(20)]
    batches.append([names[0][0], *names[1][:7]])
    storage = RocksStorage(tmp_path / "store", journal=True)
    await storage.open(NOW)
    try:
        await storage.put_topic(topic, DIRECT_CALL)
        for number, ids in enumerate(batches):
            batch = CreateBatch(
                owner="g",
                session=ProducerSession(NOW, 7),
                sequence=8 * number,
                bucket=0,
                ts=[NOW] * 8,
                bodies=[b"x"] * 8,
                priorities=[number] * 8,
                ids=ids,
            )
            assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes
        request = LeaseRequest([0], "c", until=NOW, expires=NOW + 60_000, rows_max=10)
        lease = await storage.lease(topic, request, NOW, DIRECT_CALL)
        assert lease is not None
        assert lease.ids() == names[0][:1]
        assert await storage.lease(topic, request, NOW, DIRECT_CALL) is None
        rest = LeaseRequest([1, 2], "d", until=NOW, expires=NOW + 60_000, rows_max=1_000)
        lease = await storage.lease(topic, rest, NOW, DIRECT_CALL)
        assert lease is not None
        assert lease.ids() == [one for ids in batches for one in ids if one != names[0][0]]
    finally:
        await storage.close()


async def test_merging_is_not_visible_to_callers(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store")
    await stage.begin()
    try:
        before = await stage.versions()
        recalled = await stage.lease()
        leases = [await stage.lease() for _ in range(4)]
        await stage.storage.merger.settle()
        state = stage.storage._states[TOPIC.number]
        assert isinstance(state, PriorityTopicState)
        assert any(run.merged for bucket in (0, 1, keys.SPREAD) for run in state.ready(bucket).runs())
        after = await stage.versions()
        assert after == {message_id: before[message_id] for message_id in after}
        assert len(after) == len(stage.left)
        snapshot = await stage.storage.snapshot(TOPIC, stage.now)
        seen: dict[str, int] = {}
        async for portion in snapshot.scan_stored(range(2), Filter(status=Status.AVAILABLE), bodies=True):
            for stretch in getattr(portion, "stretches", ()):
                seen |= dict.fromkeys(stretch.span.expand(), stretch.version)
        snapshot.close()
        assert seen.items() <= after.items()
        assert len(seen) > LEASED
        # An owner that read a message before the merge can still change it afterwards.
        changed = sorted(seen)[:3]
        edits = Edits(ids=changed, priorities=[-9_000] * 3, versions=[before[one] for one in changed])
        assert not (await apply_one(stage.storage, Edit(TOPIC, "g", edits), stage.now, DIRECT_CALL)).codes
        counts = await stage.storage.histogram(TOPIC, Filter(status=Status.AVAILABLE), 1, stage.now)
        assert sum(count for _, count in counts) == len(after)
        assert [ts for ts, _ in counts] == [NOW + 1 + number for number in range(BATCHES)]
        assert not (
            await apply_one(stage.storage, Recall(TOPIC, recalled.lease_id, "c", None), stage.now, DIRECT_CALL)
        ).codes
        await stage.storage.close()
        stage.storage = RocksStorage(tmp_path / "store", journal=True)
        await stage.storage.open(stage.now)
        now = {message.id: message for message in await stage.storage.get(TOPIC, stage.ids, stage.now) if message}
        assert len(now) == BATCHES * ROWS
        assert {one: now[one].version for one in after.keys() - set(changed)} == {
            one: before[one] for one in after.keys() - set(changed)
        }
        for lease in leases:
            await stage.delete(lease)
        assert await stage.storage.count(TOPIC, Filter(), stage.now) == BATCHES * ROWS - 4 * LEASED
    finally:
        await stage.storage.close()
