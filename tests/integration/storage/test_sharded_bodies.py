"""Large bodies on two shards: each is where its messages are, whatever goes between them and whenever it is cut."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import dejaq
from dejaq import limits
from dejaq.broker.cluster import mover as mover_module
from dejaq.broker.cluster.mover import Mover
from dejaq.broker.cluster.shards import MAP
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.large import PART_BYTES, Reference, declare, sealed_parts
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code
from dejaq.storage.base import Edits
from dejaq.storage.postgres import uploading
from dejaq.storage.postgres.shard import PostgresShard
from dejaq.storage.sharded.placement import ShardInfo, ShardMap, first_map
from dejaq.storage.sharded.shards import MakeShard
from dejaq.storage.sharded.store import ShardedStorage
from dejaq.storage.steps import CreateStep, Transaction
from dejaq.synchronization.local import LocalSynchronization
from dejaq.testing.conformance.uploads import each
from dejaq.testing.postgres import shared_server
from dejaq.timekeeper.clock import VirtualClock

NOW = 1_700_000_000_000
LATE = NOW + 2 * limits.UPLOAD_KEEP_MS
SESSION = ProducerSession(NOW, 1)
BODY = bytes(range(256)) * (5 * PART_BYTES // 1024)
IDS = [f"m-{number}" for number in range(12)]


@pytest.fixture
def make() -> MakeShard:
    cluster = f"bodies_{secrets.token_hex(4)}"

    def shard(info: ShardInfo) -> PostgresShard:
        return PostgresShard(info.dsn, name=info.name, ordinal=info.ordinal, cluster=f"{cluster}_{info.name}")

    return shard


@asynccontextmanager
async def opened(make: MakeShard, *names: str) -> AsyncIterator[ShardedStorage]:
    storage = ShardedStorage(first_map(dict.fromkeys(names, shared_server().dsn)), make)
    await storage.open(NOW)
    try:
        yield storage
    finally:
        await storage.close()


async def new_topic(storage: ShardedStorage, name: str = "mail", **settings: object) -> Topic:
    topic = Topic(name, await storage.next_topic_number(), TopicSettings(buckets=16, **settings))  # type: ignore[arg-type]
    await storage.put_topic(topic)
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


def by_shard(storage: ShardedStorage, topic: Topic) -> tuple[list[str], list[str]]:
    places = {one: storage.map.owner(topic, bucket_of(one, topic.settings.buckets)) for one in IDS}
    return [one for one in IDS if places[one] == 0], [one for one in IDS if places[one] == 1]


async def kept(storage: ShardedStorage, place: int) -> tuple[int, int]:
    """How many bodies a shard has, and how many parts of them."""
    connection = await storage.shards.at(place).connect()
    try:
        return tuple([await connection.fetchval(f"SELECT count(*) FROM large_{one}") for one in ("body", "part")])  # type: ignore[return-value]
    finally:
        await connection.close()


async def test_a_body_goes_to_the_shard_of_its_message(make: MakeShard) -> None:
    """G1: whoever comes to refer to a body on another shard brings it; each shard reclaims by its own messages."""
    async with opened(make, "a", "b") as storage:
        topic = await new_topic(storage)
        here, there = by_shard(storage, topic)
        references = [await upload(storage, topic, one) for one in (here[0], here[1], there[0])]
        assert len({one.number for one in references}) == 3
        unknown = Reference(references[0].size, references[0].stored, references[0].digest, 999)
        made = batch([here[0], there[0], there[1]], [references[0], references[0], unknown], 0)
        assert (await storage.create(topic, made, NOW)).codes == {2: Code.BODY_MISSING}
        edits = Edits([there[0]], bodies=[references[1].pack()], large=True)
        assert not (await storage.edit(topic, "billing", edits, NOW)).codes
        step = CreateStep(topic, batch([here[2]], [references[2]], 3))
        assert (await storage.transact(Transaction(SESSION, 9, [step]), NOW)).code is Code.OK
        assert await storage.bodies.reclaim(LATE) == 3
        assert [await kept(storage, place) for place in (0, 1)] == [(2, 4), (1, 2)]
        for one, reference in zip((here[0], there[0], here[2]), references, strict=True):
            assert await read(storage, topic, one, reference) == BODY
        await storage.cancel(topic, "billing", [here[0], there[0], here[2]], LATE)
        assert await storage.bodies.reclaim(2 * LATE) == 3
        assert [await kept(storage, place) for place in (0, 1)] == [(0, 0), (0, 0)]


async def test_a_body_waits_with_a_message_on_its_way(make: MakeShard) -> None:
    """G1: between two shards a message keeps its body where it was, however long it takes, and arrives with it."""
    async with opened(make, "a", "b") as storage:
        topic = await new_topic(storage)
        dead = await new_topic(storage, "mail.dead")
        here, _ = by_shard(storage, topic)
        moved = next(one for one in IDS if (one in here) != (one in by_shard(storage, dead)[0]))
        source = storage.shards.at(0 if moved in here else 1)
        reference = await upload(storage, topic, moved)
        await storage.create(topic, batch([moved], [reference], 0), NOW)
        request = LeaseRequest(range(16), "w", NOW, NOW + 60_000, 9)
        lease = await source.lease(topic, request, NOW)
        assert lease is not None
        assert not (await source.reject(topic, lease.lease_id, "w", None, dead, "no use", NOW)).codes
        assert source.has_sent
        assert await source.bodies.reclaim(LATE) == 0
        assert await storage.lease(topic, request, LATE) is None, "which brings what is on its way"
        (found,) = await storage.get(dead, [moved], LATE)
        assert found is not None
        assert found.body == reference.pack()
        assert await storage.bodies.reclaim(2 * LATE) == 1
        assert await read(storage, dead, moved, reference) == BODY


class Killed(Exception):
    """Here the process was killed."""


def killing(point: str, hit: int) -> Callable[[str], None]:
    left = hit

    def crash_at(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            raise Killed(point)

    return crash_at


async def test_bodies_move_with_their_bucket(make: MakeShard, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1, G12: killed at any point and begun again, a move brings each body whole, shared ones once to each shard."""
    points = [("bodies.part_adopted", 1), ("bodies.part_adopted", 4), ("mover.copied", 1), ("mover.removed", 1)]
    async with opened(make, "a") as storage, _synchronized(storage.map) as synchronization:
        topic, shared = await new_topic(storage), await new_topic(storage, "shared", share_bodies=True)
        own = {one: await upload(storage, topic, one, BODY + one.encode()) for one in IDS}
        await storage.create(topic, batch(IDS, list(own.values()), 0), NOW)
        once = [await upload(storage, shared, one) for one in IDS]
        assert len(set(once)) == 1
        await storage.create(shared, batch(IDS, once, 0), NOW)
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
        # Every body is of two parts; one of each shard is that of the other topic.
        counts = [len(some) + 1 for some in (here, there)]
        assert [await kept(storage, place) for place in (0, 1)] == [(count, 2 * count) for count in counts]
        for one, reference in own.items():
            assert await read(storage, topic, one, reference) == BODY + one.encode()
            assert await read(storage, shared, one, once[0]) == BODY


async def test_an_upload_outlives_a_move(make: MakeShard) -> None:
    """G1: a body that was uploaded before its bucket went to another shard can be referred to there."""
    async with opened(make, "a") as storage, _synchronized(storage.map) as synchronization:
        topic = await new_topic(storage)
        references = [await upload(storage, topic, one) for one in IDS]
        await Mover(synchronization, make, VirtualClock(NOW), grace=0).add("b", shared_server().dsn)
        record = await synchronization.get(MAP)
        assert record is not None
        await storage.follow(ShardMap.decode(record.value))
        assert by_shard(storage, topic)[1]
        assert not (await storage.create(topic, batch(IDS, references, 0), NOW)).codes
        await storage.bodies.reclaim(LATE)
        for one, reference in zip(IDS, references, strict=True):
            assert await read(storage, topic, one, reference) == BODY


@asynccontextmanager
async def _synchronized(first: ShardMap) -> AsyncIterator[LocalSynchronization]:
    synchronization = LocalSynchronization()
    await synchronization.open()
    await synchronization.put(MAP, first.encode())
    try:
        yield synchronization
    finally:
        await synchronization.close()


async def test_clients_see_nothing_of_it(make: MakeShard) -> None:
    """G12: large and shared bodies over two shards, sent, found, read and deleted through a broker."""
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
