"""U4: damage that is found while the store is in use stops it, has its own error code, and does not prevent closing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import dejaq
from dejaq.broker import Broker
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, StoreError
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000


async def fill(storage: RocksStorage) -> Topic:
    """Put more messages into tables than the store reads when it is opened."""
    await storage.open(NOW)
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4), created_ms=NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    noise = random.Random(5)
    for number in range(40):
        batch = CreateBatch(
            owner="billing",
            session=ProducerSession(NOW, 7),
            sequence=number * 50,
            bucket=number % 4,
            ts=[NOW + 3_600_000 + row for row in range(50)],
            bodies=[noise.randbytes(200) for _ in range(50)],
        )
        assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes
    storage._database.flush()
    return topic


def damage(path: Path) -> None:
    """Overwrite the middle of every table, and of every file of the commit log."""
    for file in (*(path / "db").glob("*.sst"), *(path / "commit").iterdir()):
        content = bytearray(file.read_bytes())
        content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 4)
        file.write_bytes(content)


async def read(storage: RocksStorage, topic: Topic) -> None:
    await storage.browse(topic, Filter(), None, 2_000, NOW)


async def scan(storage: RocksStorage, topic: Topic) -> None:
    snapshot = await storage.snapshot(topic, NOW)
    async for _ in snapshot.scan(range(4), Filter(), bodies=True):
        pass


@pytest.mark.parametrize("meet", [read, scan], ids=lambda one: one.__name__)
async def test_damage_that_a_query_finds_stops_the_store(tmp_path: Path, meet: object) -> None:
    """U4, G7: STORE_CORRUPT at once; nothing is acknowledged from then on, and a retry does not help."""
    storage = RocksStorage(tmp_path / "data")
    topic = await fill(storage)
    damage(tmp_path / "data")
    with pytest.raises(StoreError) as found:
        await meet(storage, topic)  # type: ignore[operator]
    assert found.value.code is Code.STORE_CORRUPT
    assert storage.corrupt
    assert storage.failure is not None
    assert "restore the directory from a backup" in storage.failure
    for change in (storage.next_topic_number(), storage.put_topic(topic, DIRECT_CALL), storage.recover(NOW)):
        with pytest.raises(StoreError) as refused:
            await change
        assert refused.value.code is Code.STORE_CORRUPT
    await storage.close()


async def test_a_broker_whose_store_is_damaged_reports_it_and_stops_cleanly(tmp_path: Path) -> None:
    """U4: clients get STORE_CORRUPT instead of waiting for a broker, and the broker can be stopped."""
    storage = RocksStorage(tmp_path / "data")
    await fill(storage)
    await storage.close()
    broker = Broker(tmp_path / "data", listen="127.0.0.1:0", journal="off")
    async with broker:
        damage(tmp_path / "data")
        async with dejaq.connect(broker.address) as client:
            with pytest.raises(StoreError) as found:
                [message async for message in client.browse("mail")]
            assert found.value.code is Code.STORE_CORRUPT
            assert not broker.central.doctor.ready
            info = await client.info()
            assert any("damaged" in text for text in info.brokers[0].degradations)
            with pytest.raises(StoreError) as refused:
                await client.create_topic("other")
            assert refused.value.code is Code.STORE_CORRUPT
