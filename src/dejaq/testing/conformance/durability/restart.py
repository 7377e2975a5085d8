"""Close and open: every acknowledged change is still in the store (guarantee 1)."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.bodies.large import declare, sealed_parts
from dejaq.domain.changes import Cancel, Edits
from dejaq.domain.headers import encode_headers
from dejaq.domain.message import Status
from dejaq.domain.topic import TopicKind, TopicStage
from dejaq.errors import Code
from dejaq.storage.base import Filter, apply_one
from dejaq.testing.conformance.changes.steps import creating, deleting
from dejaq.testing.conformance.repeats import WINDOW_MS, again, begin
from dejaq.testing.conformance.scene import (
    LEASE_MS,
    OWNER,
    WORKER,
    Scene,
    attempts_of,
    ids_of,
    numbers_of,
)
from dejaq.testing.conformance.uploads import BODY, BUCKET, OTHER, gone, put, read, upload


async def messages_survive(scene: Scene) -> None:
    """Messages of every kind and size are the same after a restart, byte for byte."""
    large = b"L" * (limits.INLINE_BODY_BYTES_MAX + 1)
    await scene.put("rich", 5, body=large, priority=-7, headers={"h": "v"})
    await scene.put("plain", 86_400_000, body=b"")
    batch = scene.batch(None, delays=[1, 2, 70_000], bodies=[b"a", large, b"c"], headers=[{}, {"x": "y"}, {}], bucket=5)
    assert await scene.create(batch) == [Code.OK] * 3
    before = await scene.browse()
    assert len(before) == 5
    await scene.restart()
    assert await scene.browse() == before
    ids = [message.id for message in before]
    assert await scene.storage.get(scene.topic, ids, scene.now) == before


async def changes_survive(scene: Scene) -> None:
    """Edits, moves, releases, recalls, cancels and deletes keep their effects."""
    ids = await scene.generate([0, 0, 0, 0, 0, 0, 0, 0])
    ids += await scene.put_many(2)
    assert await scene.cancel(ids[6]) == [Code.OK]
    edits = Edits(
        ids[7:9],
        ts=[scene.now + 9_000, None],
        bodies=[b"new", None],
        headers=[None, encode_headers({"a": "b"})],
    )
    assert await scene.edit(edits) == [Code.OK, Code.OK]
    lease = await scene.lease()
    assert await scene.delete(lease, [(0, 2)]) == [Code.OK] * 2
    assert await scene.release(lease, [(2, 4)], delay=[500, 90_000]) == [Code.OK] * 2
    assert await scene.recall(lease, [(4, 5)]) == [Code.OK]
    assert await scene.extend(lease, [(5, 6)], by=200_000) == [Code.OK]
    before = await scene.browse()
    statuses = await scene.statuses()
    histogram = await scene.storage.histogram(scene.topic, Filter(), 1_000, scene.now)
    await scene.restart()
    assert await scene.browse() == before
    assert await scene.statuses() == statuses
    assert await scene.storage.histogram(scene.topic, Filter(), 1_000, scene.now) == histogram


async def leases_survive(scene: Scene) -> None:
    """A live lease is still held, is returned with its row numbers, and can be settled by its holder."""
    await scene.put_many(5, -3)
    await scene.generate([-2], bucket=1)
    lease = await scene.lease()
    assert await scene.delete(lease, [(1, 3)]) == [Code.OK] * 2
    scene.advance(1_000)
    await scene.restart()
    assert await scene.try_lease("worker-2") is None
    (left,) = await scene.storage.leases_of(scene.topic, WORKER, scene.now)
    assert (left.lease_id, left.expires) == (lease.lease_id, lease.expires)
    kept, numbers = (0, 3, 4, 5), numbers_of(lease)
    assert sorted(numbers_of(left)) == sorted(numbers[row] for row in kept)
    for number, message_id, ts in zip(numbers_of(left), left.ids(), left.ts, strict=True):
        row = numbers.index(number)
        assert (message_id, ts) == (lease.ids()[row], lease.ts[row])
    holder = await scene.holder(lease.ids()[4])
    assert holder is not None
    assert (holder.consumer, holder.lease_id, holder.row) == (WORKER, lease.lease_id, numbers[4])
    lost, done = Code.LEASE_LOST, Code.OK
    assert await scene.extend(lease) == [done, lost, lost, done, done, done]
    assert await scene.delete(lease) == [done, lost, lost, done, done, done]
    assert await scene.count() == 0


async def rows_extended_apart_survive(scene: Scene) -> None:
    """Each row of a lease keeps its own end through a restart."""
    await scene.put_many(3)
    lease = await scene.lease(lease_ms=1_000)
    assert await scene.extend(lease, [(1, 2)], by=5_000) == [Code.OK]
    scene.advance(1_000)
    await scene.restart()
    again = await scene.lease("worker-2")
    assert sorted(again.ids()) == sorted([lease.ids()[0], lease.ids()[2]])
    scene.advance(3_999)
    assert await scene.delete(lease) == [Code.LEASE_LOST, Code.OK, Code.LEASE_LOST]


async def leases_expire_while_the_store_is_closed(scene: Scene) -> None:
    """A lease that ended while the store was closed is lost: its messages can be leased, and attempts continue to
    count.
    """
    await scene.put_many(3)
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(60_000)
    await scene.restart()
    assert await scene.statuses() == (3, 0, 0)
    for message in await scene.browse():
        assert (message.ts, message.lock_consumer, message.attempts) == (lease.expires, WORKER, 1)
    assert await scene.delete(lease) == [Code.LEASE_LOST] * 3
    again = await scene.lease("worker-2")
    assert attempts_of(again) == [2] * 3
    assert again.ts == [lease.expires] * 3


async def a_repeat_is_known_after_a_restart(scene: Scene) -> None:
    """A repeated batch is ALREADY_EXISTS even when its messages are gone and the store was restarted."""
    batches = [scene.batch(["a", "b"], delays=[0, 0]), scene.batch(None, delays=[0, 0])]
    for batch in batches:
        assert await scene.create(batch) == [Code.OK, Code.OK]
    assert set(await scene.delete(await scene.lease())) == {Code.OK}
    await scene.restart()
    for batch in batches:
        assert await scene.create(batch) == [Code.ALREADY_EXISTS] * 2
    assert await scene.count() == 0


async def taken_ids_stay_taken(scene: Scene) -> None:
    """The index of natural ids holds after a restart."""
    await scene.put("there", 5, body=b"x")
    await scene.restart()
    other = scene.batch(["there"], delays=[5], bodies=[b"y"])
    assert await scene.create(other) == [Code.ID_TAKEN]
    same = scene.batch(["there"], delays=[5], bodies=[b"x"])
    assert await scene.create(same) == [Code.ALREADY_EXISTS]


async def versions_grow_over_restarts(scene: Scene) -> None:
    """No version and no lease id is ever used again, so an old token never matches."""
    last = 0
    await scene.put("m")
    for _ in range(4):
        lease = await scene.lease()
        assert lease.lease_id > last
        last = lease.lease_id
        assert await scene.release(lease) == [Code.OK]
        last = max(last, (await scene.get("m")).version)
        await scene.restart()
        # A store with several parts counts in each of them.
        name = f"after-{last}" if scene.storage.capabilities.parts == 1 else "m"
        if name == "m":
            assert await scene.edit(Edits(["m"], ts=[scene.now])) == [Code.OK]
        else:
            await scene.put(name, 1_000)
        assert (await scene.get(name)).version > last


async def a_stale_holder_is_fenced_off_after_a_restart(scene: Scene) -> None:
    """Fencing does not depend on state in memory."""
    await scene.put("m")
    stale = await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    await scene.restart()
    live = await scene.lease("worker-2")
    await scene.restart()
    for settle in (scene.delete, scene.extend, scene.release, scene.recall):
        assert await settle(stale) == [Code.LEASE_LOST]
    assert await scene.delete(live) == [Code.OK]


async def topics_survive(scene: Scene) -> None:
    """Topics, their states and the used numbers are kept; dropped topics stay dropped."""
    creating = (await scene.new_topic("creating")).in_state(TopicStage.CREATING)
    await scene.storage.put_topic(creating, scene.context)
    dropped = await scene.new_topic("dropped")
    await scene.put("m", topic=dropped)
    await scene.storage.drop_topic(dropped, scene.now, scene.context)
    await scene.restart()
    listed = sorted(await scene.storage.topics(), key=lambda topic: topic.number)
    assert listed == [scene.topic, creating]
    assert await scene.storage.count(dropped, Filter(), scene.now) == 0
    used = {scene.topic.number, creating.number, dropped.number}
    assert await scene.storage.next_topic_number() not in used


async def deleted_messages_stay_deleted(scene: Scene) -> None:
    """Whole batches and single rows that were deleted or cancelled stay deleted."""
    ids = await scene.generate([0] * 20, bucket=1)
    ids += await scene.put_many(20)
    lease = await scene.lease()
    assert set(await scene.delete(lease, [(0, 10), (15, 40)])) == {Code.OK}
    left = lease.ids()[10:15]
    await scene.restart()
    assert sorted(message.id for message in await scene.browse()) == sorted(left)
    scene.advance(LEASE_MS)
    assert await scene.statuses() == (5, 0, 0)
    assert await scene.cancel(*left) == [Code.OK] * 5
    await scene.restart()
    assert await scene.count() == 0
    assert await scene.try_lease() is None
    found = await scene.storage.get(scene.topic, ids, scene.now)
    assert found == [None] * len(ids)


async def order_survives(scene: Scene) -> None:
    """Due messages are leased in the same order after a restart, in the same millisecond and not before."""
    await scene.generate([5, 10_000, 20_000], bucket=1)
    await scene.generate([7, 9_999, 60_000], bucket=6)
    await scene.put("n", 8)
    await scene.restart()
    assert await scene.try_lease() is None
    every = range(scene.topic.settings.buckets)
    bound = await scene.storage.next_ts(scene.topic, every, scene.now)
    assert bound is not None
    assert bound <= scene.now + 5
    begin = scene.now
    scene.advance(60_000)
    lease = await scene.lease()
    assert [ts - begin for ts in lease.ts] == [5, 7, 8, 9_999, 10_000, 20_000, 60_000]


async def lost_messages_wait_behind_earlier_ones(scene: Scene) -> None:
    """After a restart, a lost message is leased at its lease's end and not before messages that were due earlier."""
    ids = await scene.generate([-90_000, -80_000, -70_000], bucket=2)
    lost = await scene.lease(lease_ms=1_000, rows_max=1)
    assert lost.ids() == ids[:1]
    scene.advance(2_000)
    await scene.restart()
    assert (await scene.lease(rows_max=1)).ids() == ids[1:2]
    assert (await scene.lease(rows_max=2)).ids() == [ids[2], ids[0]]


async def a_store_may_restart_often(scene: Scene) -> None:
    """The store works through any number of restarts."""
    session = scene.session()
    created: list[str] = []
    for step in range(6):
        batch = scene.batch(None, delays=[0] * 3, session=session, sequence=3 * step, bucket=step)
        assert await scene.create(batch) == [Code.OK] * 3
        created += ids_of(batch)
        await scene.restart()
        assert await scene.create(batch) == [Code.ALREADY_EXISTS] * 3
        lease = await scene.lease(rows_max=1)
        await scene.restart()
        assert await scene.delete(lease) == [Code.OK]
        created.remove(lease.ids()[0])
    assert sorted(message.id for message in await scene.browse()) == sorted(created)
    assert await scene.count(status=Status.AVAILABLE) == 12


async def transactions_survive(scene: Scene) -> None:
    """The changes of a transaction remain after a restart, and its name is still known (guarantee 10)."""
    out = await scene.new_topic("out")
    await scene.put_many(2)
    lease = await scene.lease()
    steps = (deleting(scene, lease, [(0, 1)]), creating(scene, out, "made"))
    assert (await scene.transact(*steps)).code is Code.OK
    await scene.restart()
    assert [message.id for message in await scene.browse_of(out)] == ["made"]
    assert [message.id for message in await scene.browse()] == lease.ids()[1:]
    await apply_one(scene.storage, Cancel(out, OWNER, ["made"]), scene.now, scene.context)
    assert (await scene.transact(*steps)).code is Code.ALREADY_EXISTS
    assert await scene.browse_of(out) == []


async def dead_letters_survive(scene: Scene) -> None:
    """Moves to and from a dead-letter topic remain after a restart, and so do attempts and the first lease."""
    dead = await scene.new_topic("mail.dead")
    scene.topic = await scene.new_topic("limited", max_attempts=3)
    first = scene.now
    await scene.put("n", body=b"kept" * 10_000)
    (generated,) = await scene.generate([0], bucket=2)
    assert await scene.release(await scene.lease(lease_ms=1_000)) == [Code.OK] * 2
    await scene.restart()
    for _ in range(2):
        await scene.lease(lease_ms=1_000)
        await scene.restart()
        scene.advance(1_000)
    lease = await scene.try_lease(dead_letter=dead)
    assert lease is not None
    assert lease.dead_lettered == 2
    await scene.restart()
    assert await scene.count() == 0
    found = await scene.get("n", dead)
    assert found.body == b"kept" * 10_000
    assert found.headers["dejaq-dead-first-lease"] == str(first)
    assert found.headers["dejaq-dead-last-lease"] == str(first + 1_000)
    assert await scene.redrive(dead, "n", generated) == [Code.OK] * 2
    await scene.restart()
    assert await scene.browse_of(dead) == []
    assert sorted((await scene.lease()).ids()) == sorted(["n", generated])


async def a_back_off_survives(scene: Scene) -> None:
    """A message that waits after a lost lease still waits after a restart."""
    scene.topic = await scene.new_topic("patient", expiry_backoff="fixed:5s")
    await scene.put("n")
    await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    await scene.restart()
    assert await scene.try_lease() is None
    await scene.restart()
    scene.advance(4_999)
    assert await scene.try_lease() is None
    scene.advance(1)
    assert (await scene.lease()).ids() == ["n"]


async def priorities_survive(scene: Scene) -> None:
    """A priority topic keeps its order, its leases and its counts over a restart."""
    scene.topic = await scene.new_topic("urgent", kind=TopicKind.PRIORITY)
    for number, priority in enumerate([5, -5, 0, 2_000_000_000, -2_000_000_000]):
        await scene.put(f"n{number}", -number, priority=priority)
    await scene.put("waiting", 1_000, priority=-9)
    (generated,) = await scene.generate([0])
    held = await scene.lease(rows_max=1)
    assert held.ids() == ["n4"]
    await scene.restart()
    assert await scene.statuses() == (5, 1, 1)
    scene.advance(1_000)
    order: list[str] = []
    while (lease := await scene.try_lease(rows_max=1)) is not None:
        order += lease.ids()
        await scene.restart()
    assert order == ["waiting", "n1", "n2", generated, "n0", "n3"]
    assert await scene.delete(held) == [Code.OK]
    assert await scene.count() == 6


async def large_bodies_survive(scene: Scene) -> None:
    """Bodies with references survive with their count of references, and so does an upload without a reference."""
    used, idle = await upload(scene), await upload(scene, OTHER)
    for message_id in ("a", "b"):
        assert await put(scene, message_id, used) is Code.OK
    await scene.restart()
    assert await read(scene, used) == BODY
    assert await scene.cancel("a") == [Code.OK]
    assert not await gone(scene, used)
    assert await gone(scene, idle)
    await scene.restart()
    assert await read(scene, used) == BODY
    assert await scene.cancel("b") == [Code.OK]
    assert await gone(scene, used)


async def the_promise_of_a_body_that_was_found_survives(scene: Scene) -> None:
    """A body that was found by its digest exists after a restart, although the message that had it is gone."""
    shared = scene.topic = await scene.new_topic("shared", share_bodies=True)
    parts = list(sealed_parts(BODY))
    reference = await upload(scene, topic=shared)
    await put(scene, "m", reference)
    scene.advance(2 * limits.UPLOAD_KEEP_MS)
    assert await scene.storage.bodies.find(shared, BUCKET, declare(parts, len(BODY)), scene.now) == reference
    await scene.restart()
    assert await scene.cancel("m") == [Code.OK]
    await scene.restart()
    await scene.storage.bodies.reclaim(scene.now)
    assert await put(scene, "n", reference) is Code.OK
    assert await read(scene, reference) == BODY


async def created_ids_survive(scene: Scene) -> None:
    """Ids within the deduplication window stay taken, and count; ids beyond it are free."""
    await begin(scene, max_dedup_ids=3, buckets=1)
    await scene.put("order-1")
    assert await scene.delete(await scene.lease()) == [Code.OK]
    scene.advance(WINDOW_MS // 2)
    await scene.put("order-2")
    assert await scene.cancel("order-2") == [Code.OK]
    await scene.restart()
    assert await again(scene, "order-1", "order-2") == [Code.ALREADY_EXISTS] * 2
    assert await again(scene, "order-3", "order-4") == [Code.OK, Code.LIMIT_EXCEEDED]
    scene.advance(WINDOW_MS // 2)
    await scene.restart()
    assert await again(scene, "order-2") == [Code.ALREADY_EXISTS]
    scene.advance(WINDOW_MS)
    await scene.restart()
    assert await again(scene, "order-1", "order-2") == [Code.OK] * 2
