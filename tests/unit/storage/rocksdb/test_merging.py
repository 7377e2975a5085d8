"""Rows of many runs that come next in priority are brought together, and nothing else about them changes."""

from __future__ import annotations

import random
from pathlib import Path

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.storage.base import Edits, Filter
from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.prioritising import PriorityImage
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000
BATCHES, ROWS, PRIORITIES, LEASED = 48, 200, 1_000, 100
TOPIC = Topic(name="urgent", number=1, settings=TopicSettings(kind=TopicKind.PRIORITY, buckets=2))
TABLES = (keys.RUN, keys.GONE, keys.DIRECTORY, keys.INDEX, keys.YOUNG, keys.LEASE, keys.TERMS, keys.CELL)


class Stage:
    """A store with many batches over many priorities, and the order in which they must leave."""

    def __init__(self, path: Path) -> None:
        self.storage = RocksStorage(path, journal=True)
        self.now = NOW
        self.ids: list[str] = []
        self.left: list[tuple[int, int]] = []

    async def begin(self) -> None:
        """Create them: in one bucket generated ids, in the other ids of our own."""
        await self.storage.open(self.now)
        await self.storage.put_topic(TOPIC)
        await self.create(range(BATCHES))

    async def create(self, numbers: range) -> None:
        """Create batches; what comes when a lease has been given stays in memory."""
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
            assert not (await self.storage.create(TOPIC, batch, self.now)).codes
            self.ids += [batch.id_of(row) for row in range(ROWS)]
            self.left += [(priority, self.now) for priority in priorities]
        self.left.sort()

    async def lease(self, rows: int = LEASED) -> LeaseSet:
        """Lease the next rows, which must be the first ones."""
        self.now += 1
        request = LeaseRequest(range(2), "c", until=self.now, expires=self.now + 60_000, rows_max=rows)
        lease = await self.storage.lease(TOPIC, request, self.now)
        assert lease is not None
        priorities = lease.priorities or [0] * len(lease)
        assert list(zip(priorities, lease.ts, strict=True)) == self.left[: len(lease)]
        assert lease.bodies == [b"%d" % priority for priority in priorities]
        del self.left[: len(lease)]
        return lease

    async def delete(self, lease: LeaseSet) -> None:
        """Delete all of a lease."""
        assert not (await self.storage.delete(TOPIC, lease.lease_id, "c", None, self.now)).codes

    def parts(self, lease: LeaseSet) -> int:
        """From how many stretches of runs a lease was put together."""
        held = self.storage._images[TOPIC.number].leases.get(lease.lease_id)
        assert held is not None
        return len(held.parts)

    async def versions(self) -> dict[str, int]:
        """The version of each message that is in no lease."""
        found = await self.storage.get(TOPIC, self.ids, self.now)
        return {message.id: message.version for message in found if message is not None and not message.lock_consumer}


async def test_a_lease_of_many_thin_runs_makes_the_next_ones_cheap(tmp_path: Path) -> None:
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
        image, database = stage.storage._images[TOPIC.number], stage.storage._database
        assert image.total == 0
        for table in TABLES:
            prefix = keys.of_topic(table, TOPIC.number)
            assert list(database.scan_keys(prefix, keys.after(prefix))) == []
    finally:
        await stage.storage.close()


async def test_merging_is_seen_by_nobody(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store")
    await stage.begin()
    try:
        before = await stage.versions()
        recalled = await stage.lease()
        leases = [await stage.lease() for _ in range(4)]
        image = stage.storage._images[TOPIC.number]
        assert isinstance(image, PriorityImage)
        assert any(run.merged for bucket in range(2) for run in image.ready(bucket).runs())
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
        # An owner who looked before still has its say after.
        changed = sorted(seen)[:3]
        edits = Edits(ids=changed, priorities=[-9_000] * 3, versions=[before[one] for one in changed])
        assert not (await stage.storage.edit(TOPIC, "g", edits, stage.now)).codes
        counts = await stage.storage.histogram(TOPIC, Filter(status=Status.AVAILABLE), 1, stage.now)
        assert sum(count for _, count in counts) == len(after)
        assert [ts for ts, _ in counts] == [NOW + 1 + number for number in range(BATCHES)]
        assert not (await stage.storage.recall(TOPIC, recalled.lease_id, "c", None, stage.now)).codes
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
