"""The deduplication window after crashes, moves of buckets and the passage of time, in each store on disk."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from dejaq.broker.shards import mover as mover_module
from dejaq.broker.shards.mover import Mover
from dejaq.broker.shards.shards import MAP
from dejaq.domain.batch import CreateBatch, Outcomes
from dejaq.domain.changes import Cancel, Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Indefinite
from dejaq.storage.base import Storage, apply_one
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.rocksdb.engine import committer, keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.sharded.placement import ShardMap
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.storage.shards import NOW, Killed, killing, opened, shards_of, synchronized

WINDOW_MS = 3_600_000
IDS = [f"m-{number}" for number in range(40)]


async def new_topic(storage: Storage) -> Topic:
    settings = TopicSettings(buckets=16, dedup_ms=WINDOW_MS)
    topic = Topic("once", await storage.next_topic_number(), settings)
    await storage.put_topic(topic, DIRECT_CALL)
    return topic


async def create(storage: Storage, topic: Topic, ids: list[str], now: int = NOW) -> Outcomes:
    session = ProducerSession(now, secrets.randbelow(2**32))
    batch = CreateBatch("billing", session, 0, ts=[now] * len(ids), bodies=[b"x"] * len(ids), ids=ids)
    return await apply_one(storage, Create(topic, batch), now, DIRECT_CALL)


async def create_and_cancel(storage: Storage, topic: Topic, ids: list[str], now: int = NOW) -> None:
    assert not (await create(storage, topic, ids, now)).codes
    assert not (await apply_one(storage, Cancel(topic, "billing", ids), now, DIRECT_CALL)).codes


@pytest.mark.parametrize("point", ["storage.before_write", "storage.after_write"])
async def test_an_interrupted_create_is_remembered_if_its_message_exists(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U7: a message and the record of its id are written together."""
    storage = RocksStorage(tmp_path)
    await storage.open(NOW)
    topic = await new_topic(storage)
    with monkeypatch.context() as patched:
        patched.setattr(committer, "crash_at", killing(point, 1))
        # The log is written in a thread, whose end leaves the caller without an answer.
        with pytest.raises((Killed, Indefinite)):
            await create(storage, topic, ["order-1"])
    await storage.close()

    again = RocksStorage(tmp_path)
    await again.open(NOW)
    outcomes = await apply_one(again, Cancel(topic, "billing", ["order-1"]), NOW, DIRECT_CALL)
    was_there = outcomes[0] is Code.OK
    assert was_there == (point == "storage.after_write")
    answer = Code.ALREADY_EXISTS if was_there else Code.OK
    assert (await create(again, topic, ["order-1"]))[0] is answer
    await again.close()


async def test_ended_periods_are_removed_from_disk(tmp_path: Path) -> None:
    """U7: the store keeps the ids of at most two windows."""
    storage = RocksStorage(tmp_path)
    await storage.open(NOW)
    topic = await new_topic(storage)
    for number in range(10):
        await create_and_cancel(storage, topic, [f"{number}-{one}" for one in IDS], NOW + number * WINDOW_MS)
    for table, count in ((keys.CREATED, 2 * len(IDS)), (keys.CREATED_COUNT, 2)):
        prefix = keys.of_topic(table, topic.number)
        assert len(list(storage._database.scan_keys(prefix, keys.after(prefix)))) == count
    await storage.close()


async def test_ids_whose_window_ended_are_removed_from_the_server() -> None:
    """U7: PostgreSQL removes ids whose window has ended in portions, while it works."""
    storage = PostgresStorage(shared_server().dsn, cluster=f"dedup_{secrets.token_hex(4)}")
    await storage.open(NOW)
    topic = await new_topic(storage)
    await create_and_cancel(storage, topic, IDS)
    # A time so late that the store maintains its tables.
    late = NOW + 2 * WINDOW_MS
    await create_and_cancel(storage, topic, ["late"], late)
    connection = await storage._database.connect()

    async def kept(count: int) -> bool:
        ids = await connection.fetchval("SELECT count(*) FROM created_id")
        counted = await connection.fetchval("SELECT coalesce(sum(count), 0)::bigint FROM created_count")
        return bool(ids == counted == count)

    await eventually(lambda: kept(1), within=20)
    await connection.close()
    assert (await create(storage, topic, ["late"], late))[0] is Code.ALREADY_EXISTS
    await storage.close()


async def test_a_bucket_that_moves_takes_its_created_ids_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """U7: a move to a new shard that is killed at any point and started again loses no id and counts each id once."""
    make = shards_of("dedup")
    async with opened(make, "a") as storage, synchronized(storage.map) as synchronization:
        topic = await new_topic(storage)
        await create_and_cancel(storage, topic, IDS)
        for point in ("mover.copied", "mover.removed", None):
            crash_at = killing(point, 1) if point else lambda name: None
            monkeypatch.setattr(mover_module, "crash_at", crash_at)
            moving = Mover(synchronization, make, VirtualClock(NOW), grace=0, at_once=3)
            try:
                await moving.add("b", shared_server().dsn)
            except Killed:
                assert point is not None
        record = await synchronization.get(MAP)
        assert record is not None
        await storage.follow(ShardMap.decode(record.value))
        owners = [storage.map.owner(topic, bucket) for bucket in range(topic.settings.buckets)]
        assert set(owners) == {0, 1}
        outcomes = await create(storage, topic, IDS)
        assert outcomes.codes == dict.fromkeys(range(len(IDS)), Code.ALREADY_EXISTS)
        kept: list[int] = []
        for place in (0, 1):
            connection = await storage.shards.at(place).connect()
            ids = await connection.fetchval("SELECT count(*) FROM created_id")
            assert await connection.fetchval("SELECT sum(count)::bigint FROM created_count") == ids
            kept.append(ids)
            await connection.close()
        assert sum(kept) == len(IDS)
        assert all(kept)
