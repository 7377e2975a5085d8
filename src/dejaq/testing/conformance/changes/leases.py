"""Lease: messages that are due and free, once, in order, within the requested rows, bytes, buckets and time."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.changes import Edits
from dejaq.domain.message import Status
from dejaq.errors import Code
from dejaq.storage.base import Holder
from dejaq.testing.conformance.scene import (
    LEASE_MS,
    WORKER,
    Scene,
    attempts_of,
    headers_of,
    ids_of,
    numbers_of,
    priorities_of,
    refusal_of,
)


async def nothing_due_is_none(scene: Scene) -> None:
    """Without a due message there is no lease."""
    assert await scene.try_lease() is None
    await scene.put("later", 1)
    assert await scene.try_lease() is None
    scene.advance(1)
    assert (await scene.lease()).ids() == ["later"]
    assert await scene.try_lease() is None


async def never_early(scene: Scene) -> None:
    """A message due one millisecond after `until` stays; one due at `until` is leased (guarantee 2)."""
    await scene.put("at", 500)
    await scene.put("after", 501)
    await scene.generate([500, 501], bucket=3)
    assert await scene.try_lease(ahead=499) is None
    lease = await scene.lease(ahead=500)
    assert lease.ts == [scene.now + 500] * 2
    assert await scene.try_lease(ahead=500) is None
    assert (await scene.lease(ahead=501)).ts == [scene.now + 501] * 2


async def a_lease_carries_the_whole_message(scene: Scene) -> None:
    """Ids, times, bodies, priorities, headers and attempts are those of the messages; the lease is named."""
    await scene.put("a", -2, body=b"A", priority=4, headers={"h": "1"})
    await scene.put("b", -1, body=b"B")
    lease = await scene.lease()
    assert lease.ids() == ["a", "b"]
    assert lease.ts == [scene.now - 2, scene.now - 1]
    assert lease.bodies == [b"A", b"B"]
    assert priorities_of(lease) == [4, 0]
    assert headers_of(lease) == [b"\x0a\x06\x0a\x01h\x12\x011", b""]
    assert attempts_of(lease) == [1, 1]
    assert (lease.consumer, lease.expires) == (WORKER, scene.now + LEASE_MS)


async def a_leased_message_shows_its_lease(scene: Scene) -> None:
    """While leased: ts is the lease's end, the holder is named, the version is the lease id, status processing."""
    await scene.put("held", -5)
    before = await scene.get("held")
    lease = await scene.lease()
    found = await scene.get("held")
    assert found.ts == lease.expires == scene.now + LEASE_MS
    assert (found.lock_consumer, found.attempts, found.version) == (WORKER, 1, lease.lease_id)
    assert found.version > before.version
    assert found.status(scene.now) is Status.PROCESSING
    assert await scene.holder("held") == Holder(WORKER, lease.lease_id, 0, scene.now - 5)


async def a_live_lease_excludes_everyone(scene: Scene) -> None:
    """A message has at most one live lease: nobody else gets the message before the lease's end (guarantee 3)."""
    await scene.put("one")
    (generated,) = await scene.generate([0])
    lease = await scene.lease(lease_ms=3_000)
    assert sorted(lease.ids()) == sorted(["one", generated])
    for consumer in (WORKER, "worker-2"):
        assert await scene.try_lease(consumer) is None
        assert await scene.try_lease(consumer, ahead=limits.PREFETCH_MS_MAX) is None
    scene.advance(2_999)
    assert await scene.try_lease("worker-2") is None
    scene.advance(1)
    assert len(await scene.lease("worker-2")) == 2


async def an_expired_lease_makes_the_message_available(scene: Scene) -> None:
    """At the lease's end the message is available, ts is the lease's end, the holder is still
    shown, no lease is live.
    """
    await scene.put("lost")
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    found = await scene.get("lost")
    assert found.status(scene.now) is Status.AVAILABLE
    assert (found.ts, found.lock_consumer) == (lease.expires, WORKER)
    assert (found.attempts, found.version) == (1, lease.lease_id)
    assert await scene.holder("lost") is None
    assert await scene.storage.leases_of(scene.topic, WORKER, scene.now) == []


async def a_lost_message_is_leased_again(scene: Scene) -> None:
    """At least once: after each expiry the message is leased again, with one more attempt (guarantee 4)."""
    await scene.put("again", body=b"kept", headers={"h": "v"})
    (generated,) = await scene.generate([0], bucket=5)
    end = scene.now
    previous = 0
    for attempt in range(1, 5):
        lease = await scene.lease(f"worker-{attempt}", lease_ms=1_000)
        assert sorted(lease.ids()) == sorted(["again", generated])
        assert attempts_of(lease) == [attempt] * 2
        assert lease.ts == [end] * 2, "a lost message is due at the end of its lease"
        assert lease.lease_id > previous
        assert set(lease.bodies) == {b"kept", b"body 0"}
        previous, end = lease.lease_id, lease.expires
        scene.advance(1_500)
    assert (await scene.get("again")).attempts == 4


async def lost_messages_stand_in_line_at_their_lease_end(scene: Scene) -> None:
    """Lost rows are sorted by the end of their lease among messages that were not leased."""
    await scene.put("lost", -100)
    await scene.lease(lease_ms=1_000)
    await scene.put("before", 999)
    await scene.put("after", 1_001)
    scene.advance(2_000)
    lease = await scene.lease()
    assert lease.ids() == ["before", "lost", "after"]
    assert attempts_of(lease) == [1, 2, 1]


async def earliest_first(scene: Scene) -> None:
    """Over all buckets and kinds of id, earlier messages are leased before later ones."""
    await scene.generate([-90, -70, -50, -30, -10], bucket=2)
    await scene.generate([-85, -65, -45, -25, -5], bucket=7)
    for delay in (-80, -60, -40, -20, 0):
        await scene.put(f"natural{delay}", delay)
    times: list[int] = []
    while (lease := await scene.try_lease(rows_max=4)) is not None:
        times += lease.ts
    assert times == sorted(times)
    assert len(times) == 15


async def earliest_first_over_long_times(scene: Scene) -> None:
    """The order is right over hours and days of backlog."""
    hour = 3_600_000
    delays = [-400 * hour, -30 * hour, -hour, -hour + 1, -61_000, -60_000, -10_000, -9_999, -1, 0]
    for row, delay in enumerate(reversed(delays)):
        await scene.put(f"m{row}", delay)
    leased: list[int] = []
    while (lease := await scene.try_lease(rows_max=3)) is not None:
        leased += [ts - scene.now for ts in lease.ts]
    assert leased == delays


async def lower_priority_first_at_equal_times(scene: Scene) -> None:
    """Among messages due at the same time, the lower priority value comes first."""
    for priority in (5, -5, 0, limits.PRIORITY_MAX, limits.PRIORITY_MIN, 3):
        await scene.put(f"p{priority}", -10, priority=priority)
    batch = scene.batch(None, delays=[-10] * 3, priorities=[-4, 1, 4], bucket=1)
    assert await scene.create(batch) == [Code.OK] * 3
    await scene.put("earlier", -11, priority=9)
    order: list[int] = []
    while (lease := await scene.try_lease(rows_max=2)) is not None:
        order += priorities_of(lease)
    assert order == [9, limits.PRIORITY_MIN, -5, -4, 0, 1, 3, 4, 5, limits.PRIORITY_MAX]


async def at_most_rows_max(scene: Scene) -> None:
    """A lease has at most `rows_max` rows; the next lease gets the other rows."""
    ids = await scene.put_many(25)
    sizes: list[int] = []
    leased: list[str] = []
    while (lease := await scene.try_lease(rows_max=10)) is not None:
        sizes.append(len(lease))
        leased += lease.ids()
    assert sizes == [10, 10, 5]
    assert sorted(leased) == ids


async def about_bytes_max(scene: Scene) -> None:
    """A lease has about `bytes_max` bytes: at least one row, and no row is added once the limit is reached."""
    for number in range(6):
        await scene.put(f"m{number}", number - 10, body=bytes(1_000))
    lease = await scene.try_lease(bytes_max=2_500)
    assert lease is not None
    assert 1 <= len(lease) <= 3
    lease = await scene.try_lease(bytes_max=1)
    assert lease is not None
    assert len(lease) == 1, "a message larger than bytes_max is leased alone"


async def large_bodies_count_in_bytes_max(scene: Scene) -> None:
    """Bodies that are stored separately count in the same way as inline bodies."""
    size = limits.INLINE_BODY_BYTES_MAX + 1
    for number in range(4):
        await scene.put(f"m{number}", number - 10, body=bytes(size))
    lease = await scene.try_lease(bytes_max=size)
    assert lease is not None
    assert 1 <= len(lease) <= 2


async def only_the_asked_buckets(scene: Scene) -> None:
    """All messages in the requested buckets are leased, and no others."""
    buckets = scene.topic.settings.buckets
    for bucket in range(buckets):
        await scene.generate([0, 0], bucket=bucket)
    await scene.put_many(40)
    left = 2 * buckets + 40
    for asked in ([0], [buckets - 1, 1], list(range(buckets))):
        lease = await scene.try_lease(buckets=asked)
        assert lease is not None
        found = await scene.storage.get(scene.topic, lease.ids(), scene.now)
        assert {message.bucket for message in found if message} <= set(asked)
        assert await scene.try_lease(buckets=asked) is None
        left -= len(lease)
        assert await scene.count(status=Status.AVAILABLE) == left
    assert left == 0
    assert await scene.try_lease(buckets=[]) is None


async def a_lease_set_may_span_buckets(scene: Scene) -> None:
    """One lease id covers rows of several buckets and kinds of id, settled by row number alone."""
    generated = [one for bucket in range(4) for one in await scene.generate([-1, -1], bucket=bucket)]
    natural = await scene.put_many(8)
    lease = await scene.lease()
    assert sorted(lease.ids()) == sorted(generated + natural)
    gone = lease.ids()[3:11]
    assert await scene.delete(lease, [(3, 11)]) == [Code.OK] * 8
    found = await scene.storage.get(scene.topic, lease.ids(), scene.now)
    assert [one for one, message in zip(lease.ids(), found, strict=True) if message is None] == gone


async def lease_ids_grow(scene: Scene) -> None:
    """Lease ids are fencing tokens: each is greater than all before it, and than every version before it."""
    await scene.put_many(5, -1)
    last = 0
    while (lease := await scene.try_lease(rows_max=1)) is not None:
        assert lease.lease_id > last
        last = lease.lease_id
    await scene.put("new")
    assert (await scene.get("new")).version > last


async def prefetched_messages_keep_their_time(scene: Scene) -> None:
    """A message leased ahead of its time has the time at which it is due, and its holder shows this time."""
    await scene.put("soon", 800)
    lease = await scene.lease(ahead=1_000)
    assert lease.ts == [scene.now + 800]
    found = await scene.get("soon")
    assert (found.ts, found.status(scene.now)) == (lease.expires, Status.PROCESSING)
    holder = await scene.holder("soon")
    assert holder is not None
    assert holder.due == scene.now + 800


async def a_lease_must_end_after_now(scene: Scene) -> None:
    """A lease that would end now or earlier, or that reaches further ahead than the window, is not created."""
    await scene.put("due")
    await scene.put("far", limits.PREFETCH_MS_MAX + 1)
    for lease_ms, ahead in ((0, 0), (-1, 0), (60_000, limits.PREFETCH_MS_MAX + 1)):
        # Whether the storage raises an error or returns nothing is its own choice.
        await refusal_of(scene.try_lease(lease_ms=lease_ms, ahead=ahead))
    assert await scene.statuses() == (1, 1, 0)
    assert (await scene.get("due")).attempts == 0


async def until_in_the_past_still_leases_what_is_available(scene: Scene) -> None:
    """`until` before now does not hide messages that are available now."""
    await scene.put("due", -1)
    assert len(await scene.lease(ahead=-10)) == 1


async def next_ts_bounds_what_comes(scene: Scene) -> None:
    """No message in the buckets becomes due before `next_ts`; None means that the buckets are empty."""
    every = range(scene.topic.settings.buckets)
    assert await scene.storage.next_ts(scene.topic, every, scene.now) is None
    await scene.generate([3_600_000], bucket=1)
    await scene.generate([7_200_000], bucket=2)
    first = await scene.storage.next_ts(scene.topic, every, scene.now)
    assert first is not None
    assert scene.now < first <= scene.now + 3_600_000
    second = await scene.storage.next_ts(scene.topic, [2], scene.now)
    assert second is not None
    assert scene.now + 3_600_000 < second <= scene.now + 7_200_000
    assert await scene.storage.next_ts(scene.topic, [3], scene.now) is None
    await scene.put("due", -5)
    due = await scene.storage.next_ts(scene.topic, every, scene.now)
    assert due is not None
    assert due <= scene.now - 5


async def next_ts_knows_when_leases_end(scene: Scene) -> None:
    """The end of a live lease bounds `next_ts`, since its messages are due then; settled rows do not."""
    every = range(scene.topic.settings.buckets)
    await scene.put("held")
    lease = await scene.lease(lease_ms=600_000)
    bound = await scene.storage.next_ts(scene.topic, every, scene.now)
    assert bound is not None
    assert bound <= lease.expires
    assert await scene.release(lease, delay=100_000) == [Code.OK]
    bound = await scene.storage.next_ts(scene.topic, every, scene.now)
    assert bound is not None
    assert bound <= scene.now + 100_000
    assert await scene.cancel("held") == [Code.OK]
    assert await scene.storage.next_ts(scene.topic, every, scene.now) is None


async def following_next_ts_finds_everything_on_time(scene: Scene) -> None:
    """A consumer that only wakes at `next_ts` leases every message in the millisecond it is due."""
    every = range(scene.topic.settings.buckets)
    delays = [0, 1, 2, 500, 9_999, 10_000, 10_001, 59_999, 60_000, 60_001, 400_000]
    for bucket in (0, 5):
        await scene.generate(delays, bucket=bucket)
    seen: list[int] = []
    begin = scene.now
    for _ in range(10 * len(delays)):
        bound = await scene.storage.next_ts(scene.topic, every, scene.now)
        if bound is None:
            break
        # A bound that is not after now means that the consumer should look now; the next possible change is one ms
        # later.
        scene.now = max(bound, scene.now)
        lease = await scene.try_lease()
        if lease is None:
            scene.advance(1)
            continue
        assert lease.ts == [scene.now] * len(lease)
        seen += [ts - begin for ts in lease.ts]
        assert set(await scene.delete(lease)) == {Code.OK}
    assert seen == sorted(delays * 2)


async def load_is_only_a_hint(scene: Scene) -> None:
    """`load` changes no message and no order, whether it is called or not."""
    await scene.generate([-5, 5, 50_000], bucket=1)
    every = range(scene.topic.settings.buckets)
    await scene.storage.load(scene.topic, every, scene.now + 100)
    await scene.storage.load(scene.topic, every, scene.now + 100_000)
    await scene.storage.load(scene.topic, [], scene.now)
    assert (await scene.lease()).ts == [scene.now - 5]
    await scene.put("loaded-before", -1)
    assert (await scene.lease()).ids() == ["loaded-before"]
    assert await scene.statuses() == (0, 2, 2)


async def messages_that_arrive_late_are_leased(scene: Scene) -> None:
    """A message created with an earlier time than the leased messages is leased next."""
    await scene.generate([-100, -50, -10], bucket=1)
    assert len(await scene.lease()) == 3
    await scene.generate([-200], bucket=1)
    await scene.put("old", -86_400_000)
    assert (await scene.lease()).ts == [scene.now - 86_400_000, scene.now - 200]


async def leases_of_gives_live_leases_back(scene: Scene) -> None:
    """A consumer that reconnects gets the remaining rows of its live leases, with the same row numbers."""
    await scene.put_many(6, -5)
    await scene.put("other", -1)
    lease = await scene.lease(rows_max=6)
    other = await scene.lease("worker-2")
    assert await scene.delete(lease, [(0, 1), (3, 5)]) == [Code.OK] * 3
    assert await scene.release(lease, [(5, 6)], delay=1_000) == [Code.OK]
    (left,) = await scene.storage.leases_of(scene.topic, WORKER, scene.now)
    assert (left.lease_id, left.consumer, left.expires) == (lease.lease_id, WORKER, lease.expires)
    assert numbers_of(left) == numbers_of(lease)[1:3]
    assert left.ids() == lease.ids()[1:3]
    assert left.bodies == lease.bodies[1:3]
    assert left.ts == lease.ts[1:3]
    assert attempts_of(left) == [1, 1]
    (theirs,) = await scene.storage.leases_of(scene.topic, "worker-2", scene.now)
    assert (theirs.lease_id, theirs.ids()) == (other.lease_id, ["other"])
    assert await scene.storage.leases_of(scene.topic, "nobody", scene.now) == []


async def leases_of_gives_each_lease(scene: Scene) -> None:
    """Several leases of a consumer are returned as several leases; a settled lease is not returned."""
    for number in range(3):
        await scene.put(f"m{number}", -number, headers={"n": str(number)}, priority=number)
    leases = [await scene.lease(rows_max=1) for _ in range(3)]
    assert await scene.delete(leases[1]) == [Code.OK]
    back = await scene.storage.leases_of(scene.topic, WORKER, scene.now)
    assert sorted(one.lease_id for one in back) == sorted([leases[0].lease_id, leases[2].lease_id])
    for one in back:
        (original,) = (lease for lease in leases if lease.lease_id == one.lease_id)
        assert one.ids() == original.ids()
        assert priorities_of(one) == priorities_of(original)
        assert headers_of(one) == headers_of(original)


async def leases_of_shows_where_rows_end(scene: Scene) -> None:
    """Rows of one lease that were extended separately are returned with their own ends."""
    await scene.put_many(4)
    lease = await scene.lease(lease_ms=1_000)
    assert await scene.extend(lease, [(1, 3)], by=5_000) == [Code.OK] * 2
    first, second, third, fourth = numbers_of(lease)
    assert await _ends(scene) == {
        first: lease.expires,
        second: scene.now + 5_000,
        third: scene.now + 5_000,
        fourth: lease.expires,
    }
    scene.advance(1_000)
    assert set(await _ends(scene)) == {second, third}


async def _ends(scene: Scene) -> dict[int, int]:
    sets = await scene.storage.leases_of(scene.topic, WORKER, scene.now)
    return {row: one.expires for one in sets for row in numbers_of(one)}


async def large_leases_are_whole(scene: Scene) -> None:
    """The largest lease set is leased and settled in one call each."""
    batch = scene.batch(None, delays=[-1] * limits.LEASE_ROWS_MAX, bucket=3)
    assert set(await scene.create(batch)) == {Code.OK}
    lease = await scene.try_lease()
    assert lease is not None
    assert sorted(lease.ids()) == sorted(ids_of(batch))
    assert set(await scene.delete(lease)) == {Code.OK}
    assert await scene.count() == 0


async def an_edited_message_takes_its_new_place(scene: Scene) -> None:
    """A message that was moved before another message is leased before it, wherever the store keeps the two."""
    await scene.generate([2_000, 2_001], bucket=0)
    first, second = [message.id for message in await scene.browse()]
    assert await scene.try_lease(ahead=5) is None
    assert await scene.edit(Edits([second], ts=[scene.now + 1_999])) == [Code.OK]
    lease = await scene.lease(ahead=5_000, rows_max=1)
    assert lease.ids() == [second]
    assert (await scene.lease(ahead=5_000, rows_max=1)).ids() == [first]
