"""Topics: their records, their numbers, and a drop that removes everything."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dejaq.domain.batch import LeaseRequest
from dejaq.domain.changes import Delete
from dejaq.domain.topic import Durability, Topic, TopicSettings, TopicStage
from dejaq.errors import Code
from dejaq.storage.base import Filter, apply_one
from dejaq.testing.conformance.scene import WORKER, Scene, ids_of, settled


async def a_topic_is_kept_as_it_was_put(scene: Scene) -> None:
    """`topics` returns every topic, in any state, with all its settings."""
    settings = TopicSettings(
        buckets=3,
        max_future_ms=1_000,
        max_lease_ms=2_000,
        max_body_bytes=10,
        durability=Durability.RELAXED,
    )
    number = await scene.storage.next_topic_number()
    topic = Topic("x.Y-z_1", number, settings, TopicStage.CREATING, created_ms=scene.now)
    await scene.storage.put_topic(topic, scene.context)
    listed = await scene.storage.topics()
    assert sorted(listed, key=lambda one: one.number) == [scene.topic, topic]


async def put_replaces(scene: Scene) -> None:
    """A topic that is stored again has its new state; its messages stay."""
    await scene.put("m")
    for state in (TopicStage.DELETING, TopicStage.LIVE):
        changed = scene.topic.in_state(state)
        await scene.storage.put_topic(changed, scene.context)
        assert await scene.storage.topics() == [changed]
    assert await scene.count() == 1


async def numbers_are_never_used_again(scene: Scene) -> None:
    """A new topic's number never belonged to another topic, dropped or not."""
    used = {scene.topic.number}
    for name in ("a", "b", "c"):
        topic = await scene.new_topic(name)
        assert topic.number not in used
        used.add(topic.number)
        await scene.storage.drop_topic(topic, scene.now, scene.context)
    assert await scene.storage.next_topic_number() not in used


async def a_dropped_topic_leaves_nothing(scene: Scene) -> None:
    """Drop removes the record, the messages in every state, the leases and the sessions."""
    large = b"x" * 20_000
    await scene.put("held", body=large)
    lease = await scene.lease()
    await scene.put("natural", 5, body=large)
    batch = scene.batch(None, delays=[0, 50_000])
    assert await scene.create(batch) == [Code.OK, Code.OK]
    ids = ["held", "natural", *ids_of(batch)]
    dropped = scene.topic
    await scene.storage.drop_topic(dropped, scene.now, scene.context)
    assert await scene.storage.topics() == []
    assert await scene.storage.get(dropped, ids, scene.now) == [None] * 4
    assert await scene.storage.holders(dropped, ids, scene.now) == [None] * 4
    assert await scene.statuses() == (0, 0, 0)
    assert await scene.browse() == []
    assert await scene.storage.leases_of(dropped, WORKER, scene.now) == []
    assert await scene.storage.histogram(dropped, Filter(), 1_000, scene.now) == []
    assert await scene.storage.next_ts(dropped, range(8), scene.now) is None
    request = LeaseRequest(range(8), WORKER, until=scene.now, expires=scene.now + 1_000)
    assert await scene.storage.lease(dropped, request, scene.now, scene.context) is None
    answer = apply_one(scene.storage, Delete(dropped, lease.lease_id, WORKER, None), scene.now, scene.context)
    assert await settled(answer, lease) == [Code.LEASE_LOST]


async def a_new_topic_of_the_same_name_is_empty(scene: Scene) -> None:
    """After a drop the name may be used again: ids are free and the batches of sessions are forgotten."""
    batches = [scene.batch(["a", "b"], delays=[0, 9]), scene.batch(None, delays=[0, 9])]
    for batch in batches:
        assert await scene.create(batch) == [Code.OK, Code.OK]
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    scene.topic = await scene.new_topic(scene.topic.name)
    assert await scene.count() == 0
    for batch in batches:
        assert await scene.create(batch) == [Code.OK, Code.OK]
    assert await scene.count() == 4


async def a_drop_spares_the_other_topics(scene: Scene) -> None:
    """Messages, leases and sessions of other topics stay."""
    numbers = [await scene.new_topic(name) for name in ("before", "after")]
    batch = scene.batch(None, delays=[0, 10])
    for topic in numbers:
        assert await scene.create(batch, topic) == [Code.OK, Code.OK]
        await scene.put("n", topic=topic)
    await scene.put("m")
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    for topic in numbers:
        assert await scene.storage.count(topic, Filter(), scene.now) == 3
        assert await scene.create(batch, topic) == [Code.ALREADY_EXISTS] * 2
        assert len(await scene.browse_of(topic)) == 3
    assert {topic.name for topic in await scene.storage.topics()} == {"before", "after"}


async def dropping_twice_is_harmless(scene: Scene) -> None:
    """A drop that is repeated, as after a crash, does nothing more."""
    other = await scene.new_topic("other")
    await scene.put("m", topic=other)
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    assert await scene.storage.count(other, Filter(), scene.now) == 1


async def topics_of_any_bucket_count_work(scene: Scene) -> None:
    """With one bucket and with the most buckets, messages are stored, leased and found."""
    for buckets in (1, 1024):
        topic = await scene.new_topic(f"of-{buckets}", buckets=buckets)
        scene.topic = topic
        await scene.put_many(20)
        await scene.generate([0, 1], bucket=buckets - 1)
        assert await scene.count() == 22
        scene.advance(1)
        lease = await scene.lease()
        assert len(lease) == 22
        assert set(await scene.delete(lease)) == {Code.OK}


async def a_relaxed_topic_does_the_same(scene: Scene) -> None:
    """The setting `durability` changes when a change is acknowledged, but not its effect."""
    number = await scene.storage.next_topic_number()
    settings = replace(scene.topic.settings, durability=Durability.RELAXED)
    scene.topic = Topic("relaxed", number, settings, created_ms=scene.now)
    await scene.storage.put_topic(scene.topic, scene.context)
    await scene.put("m")
    batch = scene.batch(None, delays=[0, 5])
    assert await scene.create(batch) == [Code.OK, Code.OK]
    lease = await scene.lease()
    assert len(lease) == 2
    assert await scene.release(lease, [(0, 1)], delay=3) == [Code.OK]
    assert await scene.delete(lease, [(1, 2)]) == [Code.OK]
    assert await scene.create(batch) == [Code.ALREADY_EXISTS] * 2
    assert await scene.statuses() == (0, 2, 0)


async def an_open_store_has_no_failure(scene: Scene) -> None:
    """A store that works reports no failure, and still works after `recover`."""
    assert scene.storage.failure is None
    await scene.put("m")
    await scene.storage.recover(scene.now)
    assert scene.storage.failure is None
    assert scene.storage.capabilities.name


async def a_topic_that_was_dropped_is_loaded_in_no_time(scene: Scene) -> None:
    """Loading the due messages of a topic that is dropped, before or meanwhile, ends."""
    await scene.put_many(50)
    loading = asyncio.create_task(scene.storage.load(scene.topic, range(8), scene.now + 60_000))
    await asyncio.sleep(0)
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    async with asyncio.timeout(5):
        await loading
        await scene.storage.load(scene.topic, range(8), scene.now + 60_000)
