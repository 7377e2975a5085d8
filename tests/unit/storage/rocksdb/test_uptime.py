"""L14: nothing in memory grows while messages, clients, groups and topics come and go."""

from __future__ import annotations

import gc
from collections import Counter, deque
from pathlib import Path
from types import FunctionType, ModuleType

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.engine.journal import extent
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
ROWS = 100
ROUNDS = 40
# What has a bound of its own that the test does not reach: producer sessions, producer groups, layouts of runs.
BOUNDED = {"UsedSequences", "SessionSequences", "Owners", "Layouts"}


class Service:
    """A store and one round of its traffic."""

    def __init__(self, path: Path) -> None:
        self.storage = RocksStorage(path, journal=True)
        self.topic = Topic(name="mail", number=1, settings=TopicSettings(buckets=4))
        self.now = NOW

    async def begin(self) -> None:
        await self.storage.open(NOW)
        await self.storage.put_topic(self.topic, DIRECT_CALL)

    async def round(self, number: int) -> None:
        """A new topic, producer and consumer; everything that is created is deleted or cancelled."""
        other = Topic(name=f"day-{number}", number=10 + number, settings=TopicSettings(buckets=2))
        await self.storage.put_topic(other, DIRECT_CALL)
        for topic in (self.topic, other):
            await self.create(topic, number, 5_000, 0)
            await self.create(topic, number, HOUR_MS, ROWS)
            late = [f"{topic.name}-{number}-{ROWS + row}" for row in range(ROWS)]
            moved = Edits(ids=late, ts=[self.now + 2 * HOUR_MS] * ROWS)
            assert not (await apply_one(self.storage, Edit(topic, f"g{number}", moved), self.now, DIRECT_CALL)).codes
            assert not (await apply_one(self.storage, Cancel(topic, f"g{number}", late), self.now, DIRECT_CALL)).codes
        self.now += 10_000
        for topic in (self.topic, other):
            done = 0
            while done < ROWS:
                request = LeaseRequest(range(topic.settings.buckets), f"c{number}", self.now, self.now + 5_000, ROWS)
                held = await self.storage.lease(topic, request, self.now, DIRECT_CALL)
                assert held is not None
                delete = Delete(topic, held.lease_id, f"c{number}", None)
                assert not (await apply_one(self.storage, delete, self.now, DIRECT_CALL)).codes
                done += len(held)
        await self.storage.drop_topic(other, self.now, DIRECT_CALL)
        await self.storage.trim_journal(extent(self.storage._database)[1])

    async def create(self, topic: Topic, number: int, within_ms: int, first: int) -> None:
        ids = IdColumn([f"{topic.name}-{number}-{first + row}" for row in range(ROWS)])
        ts = [self.now + 1 + row * within_ms // ROWS for row in range(ROWS)]
        session = ProducerSession(NOW + number, 1)
        batch = CreateBatch(f"g{number}", session, first, ts, [b"x" * 50] * ROWS, ids=ids)
        assert not (await apply_one(self.storage, Create(topic, batch), self.now, DIRECT_CALL)).codes


def held_by(root: object) -> Counter[str]:
    """How many objects of each type, and elements of containers, can be reached from an object."""
    found: Counter[str] = Counter()
    seen = {id(root)}
    waiting = deque([root])
    while waiting:
        one = waiting.popleft()
        name = type(one).__name__
        if name in BOUNDED:
            continue
        found[name] += 1
        if isinstance(one, dict | list | set | deque):
            found[f"elements of {name}"] += len(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType):
                seen.add(id(other))
                waiting.append(other)
    return found


async def test_l14_nothing_grows_with_what_has_passed(tmp_path: Path) -> None:
    """Behind some rounds, as many objects are held as many rounds later."""
    service = Service(tmp_path / "s")
    await service.begin()
    for number in range(ROUNDS):
        await service.round(number)
    before = held_by(service.storage)
    for number in range(ROUNDS, 3 * ROUNDS):
        await service.round(number)
    after = held_by(service.storage)
    await service.storage.close()
    # One element for each round would be eighty.
    assert {name: (before[name], count) for name, count in after.items() if count > before[name] + ROUNDS} == {}
