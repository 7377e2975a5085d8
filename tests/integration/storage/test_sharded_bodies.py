"""Large bodies on two shards: each is on the shard of its messages, whatever is transferred and whenever it is cut."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

import dejaq
from dejaq import limits
from dejaq.broker.shards import mover as mover_module
from dejaq.broker.shards.mover import Mover
from dejaq.broker.shards.shards import MAP
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.bodies.large import PART_BYTES, Reference, declare, sealed_parts
from dejaq.domain.changes import Cancel, Create, Edit, Edits, Reject
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.dead_letter import Cause
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import ClusterRefused, Code, StoreError
from dejaq.storage.base import apply_one
from dejaq.storage.postgres.operations import uploading
from dejaq.storage.postgres.sharding import moving as moving_module
from dejaq.storage.sharded.placement import ShardMap, first_map
from dejaq.storage.sharded.shards import MakeShard
from dejaq.storage.sharded.store import ShardedStorage
from dejaq.storage.transactions import Transaction
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.conformance.uploads import each
from dejaq.testing.servers.postgres import shared_server
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.storage.shards import Killed, killing, opened, shards_of, synchronized

NOW = 1_700_000_000_000
LATE = NOW + 2 * limits.UPLOAD_KEEP_MS
SESSION = ProducerSession(NOW, 1)
BODY = bytes(range(256)) * (5 * PART_BYTES // 1024)
IDS = [f"m-{number}" for number in range(12)]


@pytest.fixture
def make() -> MakeShard:
    return shards_of("bodies")


async def new_topic(storage: ShardedStorage, name: str = "mail", **settings: object) -> Topic:
    topic = Topic(name, await storage.next_topic_number(), TopicSettings(buckets=16, **settings))  # type: ignore[arg-type]
    await storage.put_topic(topic, DIRECT_CALL)
    return topic


async def upload(storage: ShardedStorage, topic: Topic, message_id: str, body: bytes = BODY) -> Reference:
    parts = list(sealed_parts(body))
    bucket = bucket_of(message_id, topic.settings.buckets)
    return await storage.bodies.upload(topic, bucket, declare(parts, len(body)), each(parts), NOW)


async def read(storage: ShardedStorage, topic: Topic, message_id: str, reference: Reference) -> bytes:
    bucket = bucket_of(message_id, topic.settings.buckets)
    return b"".join([await storage.bodies.part(topic, bucket, reference, n) for n in range(reference.parts)])


def batch(ids: list[str], references: list[Reference], sequence: int) -> CreateBatch:
    bodies = [one.pack() for one in references]
    return CreateBatch("billing", SESSION, sequence, ts=[NOW] * len(ids), bodies=bodies, ids=ids, large=True)


def small_batch() -> CreateBatch:
    return CreateBatch("billing", SESSION, 0, ts=[NOW] * len(IDS), bodies=[b"x"] * len(IDS), ids=list(IDS))


def by_shard(storage: ShardedStorage, topic: Topic) -> tuple[list[str], list[str]]:
    places = {one: storage.map.owner(topic, bucket_of(one, topic.settings.buckets)) for one in IDS}
    return [one for one in IDS if places[one] == 0], [one for one in IDS if places[one] == 1]


async def kept(storage: ShardedStorage, place: int) -> tuple[int, int]:
    """The number of bodies on a shard, and the number of their parts."""
    connection = await storage.shards.at(place).connect()
    try:
        return tuple([await connection.fetchval(f"SELECT count(*) FROM large_{one}") for one in ("body", "part")])
    finally:
        await connection.close()


async def test_a_body_is_stored_on_the_shard_of_its_message(make: MakeShard) -> None:
    """G1: a message that refers to a body on another shard brings the body; each shard reclaims by its own messages."""
    async with opened(make, "a", "b") as storage:
        topic = await new_topic(storage)
        here, there = by_shard(storage, topic)
        references = [await upload(storage, topic, one) for one in (here[0], here[1], there[0])]
        assert len({one.number for one in references}) == 3
        unknown = Reference(references[0].size, references[0].stored, references[0].digest, 999)
        made = batch([here[0], there[0], there[1]], [references[0], references[0], unknown], 0)
        assert (await apply_one(storage, Create(topic, made), NOW, DIRECT_CALL)).codes == {2: Code.BODY_MISSING}
        edits = Edits([there[0]], bodies=[references[1].pack()], large=True)
        assert not (await apply_one(storage, Edit(topic, "billing", edits), NOW, DIRECT_CALL)).codes
        step = Create(topic, batch([here[2]], [references[2]], 3))
        assert (await storage.transact(Transaction(SESSION, 9, [step]), NOW, DIRECT_CALL)).code is Code.OK
        assert await storage.bodies.reclaim(LATE) == 3
        assert [await kept(storage, place) for place in (0, 1)] == [(2, 4), (1, 2)]
        for one, reference in zip((here[0], there[0], here[2]), references, strict=True):
            assert await read(storage, topic, one, reference) == BODY
        await apply_one(storage, Cancel(topic, "billing", [here[0], there[0], here[2]]), LATE, DIRECT_CALL)
        assert await storage.bodies.reclaim(2 * LATE) == 3
        assert [await kept(storage, place) for place in (0, 1)] == [(0, 0), (0, 0)]


async def test_a_body_stays_until_the_transfer_of_its_message_ends(make: MakeShard) -> None:
    """G1: during a transfer between shards a body stays on the source, and arrives with its message."""
    async with opened(make, "a", "b") as storage:
        topic = await new_topic(storage)
        dead = await new_topic(storage, "mail.dead")
        here, _ = by_shard(storage, topic)
        moved = next(one for one in IDS if (one in here) != (one in by_shard(storage, dead)[0]))
        source = storage.shards.at(0 if moved in here else 1)
        reference = await upload(storage, topic, moved)
        await apply_one(storage, Create(topic, batch([moved], [reference], 0)), NOW, DIRECT_CALL)
        request = LeaseRequest(range(16), "w", NOW, NOW + 60_000, 9)
        lease = await source.lease(topic, request, NOW, DIRECT_CALL)
        assert lease is not None
        assert not (
            await apply_one(source, Reject(topic, lease.lease_id, "w", None, dead, Cause("no use")), NOW, DIRECT_CALL)
        ).codes
        assert source.has_sent
        assert await source.bodies.reclaim(LATE) == 0
        assert await storage.lease(topic, request, LATE, DIRECT_CALL) is None, "this call completes the transfer"
        (found,) = await storage.get(dead, [moved], LATE)
        assert found is not None
        assert found.body == reference.pack()
        assert await storage.bodies.reclaim(2 * LATE) == 1
        assert await read(storage, dead, moved, reference) == BODY


async def test_bodies_move_with_their_bucket(make: MakeShard, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1, G12: a move that is killed and started again moves each body as a whole, shared bodies once to each shard."""
    points = [("bodies.part_adopted", 1), ("bodies.part_adopted", 4), ("mover.copied", 1), ("mover.removed", 1)]
    async with opened(make, "a") as storage, synchronized(storage.map) as synchronization:
        topic, shared = await new_topic(storage), await new_topic(storage, "shared", share_bodies=True)
        own = {one: await upload(storage, topic, one, BODY + one.encode()) for one in IDS}
        await apply_one(storage, Create(topic, batch(IDS, list(own.values()), 0)), NOW, DIRECT_CALL)
        once = [await upload(storage, shared, one) for one in IDS]
        assert len(set(once)) == 1
        await apply_one(storage, Create(shared, batch(IDS, once, 0)), NOW, DIRECT_CALL)
        for point in [*points, None]:
            crash_at = killing(*point) if point else lambda name: None
            monkeypatch.setattr(mover_module, "crash_at", crash_at)
            monkeypatch.setattr(uploading, "crash_at", crash_at)
            moving = Mover(synchronization, make, VirtualClock(NOW), grace=0, at_once=3)
            if point:
                with pytest.raises(Killed):
                    await moving.add("b", shared_server().dsn)
            else:
                await moving.add("b", shared_server().dsn)
        record = await synchronization.get(MAP)
        assert record is not None
        await storage.follow(ShardMap.decode(record.value))
        here, there = by_shard(storage, topic)
        assert there, "something has moved"
        await storage.bodies.reclaim(LATE)
        # Every body has two parts; one body of each shard belongs to the other topic.
        counts = [len(some) + 1 for some in (here, there)]
        assert [await kept(storage, place) for place in (0, 1)] == [(count, 2 * count) for count in counts]
        for one, reference in own.items():
            assert await read(storage, topic, one, reference) == BODY + one.encode()
            assert await read(storage, shared, one, once[0]) == BODY


async def test_an_upload_survives_a_move(make: MakeShard) -> None:
    """G1: a message can refer to a body that was uploaded before its bucket moved to another shard."""
    async with opened(make, "a") as storage, synchronized(storage.map) as synchronization:
        topic = await new_topic(storage)
        references = [await upload(storage, topic, one) for one in IDS]
        await Mover(synchronization, make, VirtualClock(NOW), grace=0).add("b", shared_server().dsn)
        record = await synchronization.get(MAP)
        assert record is not None
        await storage.follow(ShardMap.decode(record.value))
        assert by_shard(storage, topic)[1]
        assert not (await apply_one(storage, Create(topic, batch(IDS, references, 0)), NOW, DIRECT_CALL)).codes
        await storage.bodies.reclaim(LATE)
        for one, reference in zip(IDS, references, strict=True):
            assert await read(storage, topic, one, reference) == BODY


async def test_clients_do_not_see_the_shards(make: MakeShard) -> None:
    """G12: large and shared bodies over two shards are sent, found, read and deleted through a broker."""
    medium, large = b"m" * 50_000, secrets.token_bytes(3 * PART_BYTES // 2)
    storage = ShardedStorage(first_map(dict.fromkeys("ab", shared_server().dsn)), make)
    async with dejaq.Broker(storage=storage) as broker, dejaq.connect(broker) as client:
        await client.create_topic("shared", buckets=16, share_bodies=True, max_body_bytes=limits.LARGE_BODY_BYTES_MAX)
        async with client.producer("shared") as producer:
            for number, body in enumerate((medium, large, b"small")):
                assert (await producer.send_batch([body] * 6, ids=[f"{number}-{n}" for n in range(6)])).ok
        assert [(await kept(storage, place))[0] for place in (0, 1)] == [2, 2]
        async with client.consumer("shared", name="c", max_messages=18) as consumer:
            seen = []
            async for leased in consumer.batches():
                seen += leased.bodies
                await leased.delete()
        assert sorted(seen) == sorted([medium, large, b"small"] * 6)
        assert await storage.bodies.reclaim(2**60) == 4


async def test_a_move_whose_connection_is_terminated_continues(
    make: MakeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: `storage add-shard` ended with INTERNAL when its connection was terminated."""
    async with opened(make, "a") as storage, synchronized(storage.map) as synchronization:
        topic = await new_topic(storage)
        await apply_one(storage, Create(topic, small_batch()), NOW, DIRECT_CALL)
        clear = moving_module._clear
        left = [2]

        async def terminated(connection: asyncpg.Connection, places: Sequence[int]) -> None:
            left[0] -= 1
            if left[0] >= 0:
                await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            await clear(connection, places)

        monkeypatch.setattr(moving_module, "_clear", terminated)
        monkeypatch.setattr(mover_module, "RETRY_SECONDS", 0.01)
        await Mover(synchronization, make, VirtualClock(NOW), grace=0).add("b", shared_server().dsn)
        record = await synchronization.get(MAP)
        assert record is not None
        await storage.follow(ShardMap.decode(record.value))
        assert by_shard(storage, topic)[1]
        found = await storage.get(topic, IDS, NOW)
        assert [one.body for one in found if one is not None] == [b"x"] * len(IDS)


async def test_a_move_whose_server_is_unavailable_names_the_next_step(
    make: MakeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: the error says that the command must be given again."""
    async with opened(make, "a") as storage, synchronized(storage.map) as synchronization:

        async def terminated(connection: asyncpg.Connection, places: Sequence[int]) -> None:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        topic = await new_topic(storage)
        await apply_one(storage, Create(topic, small_batch()), NOW, DIRECT_CALL)
        with monkeypatch.context() as patch:
            patch.setattr(moving_module, "_clear", terminated)
            patch.setattr(mover_module, "RETRY_SECONDS", 0.01)
            with pytest.raises(StoreError, match="give the command again"):
                await Mover(synchronization, make, VirtualClock(NOW), grace=0).add("b", shared_server().dsn)
        await Mover(synchronization, make, VirtualClock(NOW), grace=0).add("b", shared_server().dsn)


async def test_a_mover_that_was_frozen_does_not_undo_a_move_that_a_broker_completed(
    make: MakeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6, a similar defect: a mover that resumed after a broker had completed the move emptied the target."""
    async with opened(make, "a") as storage:
        hub = Hub()
        mine, other = LocalSynchronization(hub), LocalSynchronization(hub)
        await mine.open()
        await other.open()
        await mine.put(MAP, storage.map.encode())
        topic = await new_topic(storage)
        await apply_one(storage, Create(topic, small_batch()), NOW, DIRECT_CALL)
        copy = moving_module.copy
        frozen = [True]

        async def copy_late(*arguments: Any, **keys: Any) -> int:
            if frozen.pop() if frozen else False:
                mine.cut()
                await Mover(other, make, VirtualClock(NOW), grace=0).rescue()
                mine.mend()
            return await copy(*arguments, **keys)

        monkeypatch.setattr(moving_module, "copy", copy_late)
        with pytest.raises(ClusterRefused, match="another moves the buckets"):
            await Mover(mine, make, VirtualClock(NOW), grace=0).add("b", shared_server().dsn)
        record = await other.get(MAP)
        assert record is not None
        await storage.follow(ShardMap.decode(record.value))
        assert by_shard(storage, topic)[1], "something has moved"
        found = await storage.get(topic, IDS, NOW)
        assert [one.id for one in found if one is not None] == IDS
