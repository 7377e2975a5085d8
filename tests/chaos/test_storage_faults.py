"""R12 for the storage: a store whose disk is full, fails or is slow acknowledges nothing, reports it, and recovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, admit
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Indefinite, StoreError
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.servers.faults import FaultUnavailable, FaultyDisk, SmallDisk, small_disk
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import size

NOW = 1_800_000_000_000
SESSION = ProducerSession(NOW, 7)
ROUNDS = size("R12", ci=1, full=10)


class Ledger:
    """Creates batches and records which of them were acknowledged."""

    def __init__(self, storage: RocksStorage, topic: Topic) -> None:
        self.storage = storage
        self.topic = topic
        self.sent = 0
        self.acknowledged: set[str] = set()
        self.unknown: set[str] = set()

    @classmethod
    async def begin(cls, path: Path) -> Ledger:
        storage = RocksStorage(path)
        await storage.open(NOW)
        topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4), created_ms=NOW)
        await storage.put_topic(topic, DIRECT_CALL)
        return cls(storage, topic)

    async def create(self, *, body_bytes: int = 100) -> None:
        """Create ten messages; raises the error of the store."""
        ids = [f"m-{self.sent + row}" for row in range(10)]
        batch = CreateBatch(
            owner="billing",
            session=SESSION,
            sequence=self.sent,
            ts=[NOW + self.sent] * 10,
            bodies=[b"x" * body_bytes] * 10,
            ids=ids,
        )
        self.sent += 10
        admit(batch, self.topic.settings, NOW)
        try:
            await apply_one(self.storage, Create(self.topic, batch), NOW, DIRECT_CALL)
        except Indefinite:
            self.unknown |= set(ids)
            raise
        self.acknowledged |= set(ids)

    async def create_until_refused(self) -> None:
        """Create until the store raises."""
        while True:
            await self.create(body_bytes=2_000)

    async def check(self) -> None:
        """Every acknowledged message exists, and every other message is one with an unknown outcome."""
        found: list[str] = []
        cursor = None
        while True:
            page = await self.storage.browse(self.topic, Filter(), cursor, 1_000, NOW)
            found += [message.id for message in page.messages]
            cursor = page.cursor
            if cursor is None:
                break
        assert len(found) == len(set(found))
        assert self.acknowledged <= set(found), "acknowledged messages are lost"
        assert set(found) <= self.acknowledged | self.unknown, "refused messages exist"
        assert await self.storage.count(self.topic, Filter(), NOW) == len(found)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    made = await Ledger.begin(tmp_path / "data")
    yield made
    await made.storage.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", 16 * 1024 * 1024) as made:
            yield made
    except FaultUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("fault", ["fail_writes", "fail_syncs"])
async def test_r12_an_io_error_is_indefinite_and_then_refused_until_the_disk_works(ledger: Ledger, fault: str) -> None:
    """G1, G7: the failed change is unknown, later changes are refused, and a recovered store has all acknowledged."""
    for _ in range(ROUNDS):
        await ledger.create()
        with FaultyDisk() as faulty:
            setattr(faulty, fault, True)
            with pytest.raises(Indefinite):
                await ledger.create()
            assert ledger.storage.failure is not None
            assert "Input/output error" in ledger.storage.failure
            with pytest.raises(StoreError) as refused:
                await ledger.create()
            assert refused.value.code is Code.STORE_FAILED
            with pytest.raises(StoreError):
                await ledger.storage.recover(NOW)
            assert ledger.storage.failure is not None
            faulty.heal()
            await ledger.storage.recover(NOW)
        assert ledger.storage.failure is None
        await ledger.create()
        await ledger.check()


async def test_r12_a_slow_disk_delays_the_acknowledgement(ledger: Ledger) -> None:
    """G1: nothing is acknowledged before its sync has ended, and the event loop is not blocked meanwhile."""
    await ledger.create()
    with FaultyDisk() as faulty:
        faulty.hold_syncs()
        waiting = asyncio.create_task(ledger.create())
        await eventually(lambda: faulty.syncs_held, within=5, what="the sync begins")
        reading = asyncio.create_task(ledger.storage.count(ledger.topic, Filter(), NOW))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done(), "acknowledged before the sync ended"
        assert not reading.done(), "a query showed what is not durable"
        faulty.let_syncs_go()
        await waiting
        assert await reading == 20
    await ledger.check()


async def test_r12_a_full_disk_stops_acknowledgements_until_there_is_space(disk: SmallDisk) -> None:
    """G1, G7, G8: on a full disk nothing is acknowledged; with space again the store continues, and nothing is lost."""
    ledger = await Ledger.begin(disk.path / "data")
    for _ in range(ROUNDS):
        for _ in range(20):
            await ledger.create()
        disk.fill(leave_bytes=200_000)
        with pytest.raises((Indefinite, StoreError)):
            await ledger.create_until_refused()
        assert ledger.storage.failure is not None
        assert "No space left" in ledger.storage.failure
        with pytest.raises(StoreError):
            await ledger.create()
        disk.fill()
        with pytest.raises(StoreError):
            await ledger.storage.recover(NOW)
        disk.free()
        await ledger.storage.recover(NOW)
        await ledger.create()
        await ledger.check()
    await ledger.storage.close()
