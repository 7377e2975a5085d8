"""Shared bodies and kill -9: each message has its body, whatever was counted, and no record is left over."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import dejaq
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually

KILLS = 2
BODIES = [bytes([number]) * 2_000 for number in range(6)]


def left(storage: RocksStorage) -> list[bytes]:
    """The records of shared bodies that are left in the store."""
    tables = (keys.BODY, keys.USES, keys.DIGEST)
    return [key for table in tables for key, _ in storage._database.scan(table, keys.after(table))]


@pytest.mark.chaos
async def test_kill_minus_nine_with_shared_bodies(tmp_path: Path) -> None:
    """G1, G12: after every restart messages have their bodies, and a body is removed with its last message."""
    chance = random.Random(11)
    sent: dict[str, bytes] = {}
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        await client.create_topic("mail", buckets=4, share_bodies=True)

        async def produce(producer: dejaq.Producer, round_number: int) -> None:
            for part in range(20):
                ids = [f"m-{round_number}-{part}-{n}" for n in range(20)]
                bodies = [chance.choice(BODIES) for _ in ids]
                assert (await producer.send_batch(bodies, ids=ids)).ok
                sent.update(zip(ids, bodies, strict=True))
                if part % 4 == 3:
                    gone = chance.sample(sorted(sent), 10)
                    for name, code in (await producer.cancel(gone, results=True)).items():
                        assert code in (dejaq.Code.OK, dejaq.Code.NOT_FOUND)
                        del sent[name]

        async with client.producer("mail") as producer:
            for number in range(KILLS):
                producing = asyncio.ensure_future(produce(producer, number))
                least = 40 + 150 * number
                await eventually(lambda: len(sent) >= least or producing.done(), within=30, poll=0.001)
                broker.kill()
                await broker.restart()
                await producing
        there = {m.id: m.body async for page in client.browse("mail") for m in page}
        assert there == sent
        seen: dict[str, bytes] = {}
        async with client.consumer("mail", name="c", max_messages=len(sent)) as consumer:
            async for batch in consumer.batches():
                seen.update(zip(batch.ids, batch.bodies, strict=True))
                await batch.delete()
        assert seen == sent
        broker.terminate()
        assert await broker.exited() == 0
    storage = RocksStorage(tmp_path / "data", journal=False)
    await storage.open(0)
    try:
        assert left(storage) == []
    finally:
        await storage.close()
