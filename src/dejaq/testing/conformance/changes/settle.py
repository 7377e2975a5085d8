"""Delete, extend, release and recall: only by the holder of the live lease, row by row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from dejaq import limits
from dejaq.domain.batch import LeaseSet, Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit, Edits, Extend, Release
from dejaq.domain.message import Status
from dejaq.errors import Code, Refused
from dejaq.storage.base import apply_one
from dejaq.testing.conformance.scene import (
    LEASE_MS,
    OWNER,
    WORKER,
    Scene,
    attempts_of,
    headers_of,
    numbers_of,
    priorities_of,
    refusal_of,
    settled,
)

Settle = Callable[[LeaseSet], Awaitable[list[Code]]]


def _every_way(scene: Scene) -> list[Settle]:
    return [scene.delete, scene.extend, scene.release, scene.recall]


async def delete_removes(scene: Scene) -> None:
    """A deleted message is in no query and is never leased again."""
    await scene.put("gone")
    (generated,) = await scene.generate([0])
    lease = await scene.lease()
    assert await scene.delete(lease) == [Code.OK, Code.OK]
    assert await scene.storage.get(scene.topic, ["gone", generated], scene.now) == [None, None]
    assert await scene.statuses() == (0, 0, 0)
    assert await scene.browse() == []
    assert await scene.storage.leases_of(scene.topic, WORKER, scene.now) == []
    scene.advance(10 * LEASE_MS)
    assert await scene.try_lease() is None


async def rows_are_settled_by_number(scene: Scene) -> None:
    """Ranges are half-open row numbers of the lease; rows outside them keep their lease."""
    await scene.put_many(10)
    lease = await scene.lease()
    ids = lease.ids()
    assert await scene.delete(lease, [(0, 2), (9, 10), (4, 5)]) == [Code.OK] * 4
    gone, numbers = [0, 1, 4, 9], numbers_of(lease)
    found = await scene.storage.get(scene.topic, ids, scene.now)
    assert [row for row, message in enumerate(found) if message is None] == gone
    for row, message in enumerate(found):
        holder = await scene.holder(ids[row])
        assert (holder is None) == (message is None)
        assert holder is None or (holder.row, holder.lease_id) == (numbers[row], lease.lease_id)


async def rows_of_many_batches_keep_their_numbers(scene: Scene) -> None:
    """When a lease merges rows of several batches into one order, each row number still means its own row."""
    for bucket in range(3):
        await scene.generate([bucket - 9, bucket - 6, bucket - 3], bucket=bucket)
    for delay in (-8, -5, -2):
        await scene.put(f"natural{delay}", delay)
    lease = await scene.lease()
    assert len(lease) == 12
    ids = lease.ids()
    assert await scene.delete(lease, [(1, 3), (6, 7)]) == [Code.OK] * 3
    assert await scene.release(lease, [(4, 6), (9, 10)], delay=[40, 50, 90]) == [Code.OK] * 3
    assert await scene.extend(lease, [(0, 1), (10, 12)], by=70_000) == [Code.OK] * 3
    found = await scene.storage.get(scene.topic, ids, scene.now)
    places = [message.ts - scene.now if message else None for message in found]
    assert places[:7] == [70_000, None, None, LEASE_MS, 40, 50, None]
    assert places[7:] == [LEASE_MS, LEASE_MS, 90, 70_000, 70_000]


async def a_settled_row_is_lost(scene: Scene) -> None:
    """A row that was settled before is LEASE_LOST; the other rows of the same call succeed."""
    await scene.put_many(4)
    lease = await scene.lease()
    assert await scene.delete(lease, [(1, 2)]) == [Code.OK]
    assert await scene.release(lease, [(2, 3)], delay=60_000) == [Code.OK]
    lost, done = Code.LEASE_LOST, Code.OK
    assert await scene.delete(lease, [(0, 3)]) == [done, lost, lost]
    assert await scene.delete(lease) == [lost, lost, lost, done]
    assert await scene.delete(lease) == [lost] * 4
    assert await scene.count() == 1


async def only_the_holder_settles(scene: Scene) -> None:
    """Another consumer's extend, release, delete and recall are LEASE_LOST and change nothing."""
    await scene.put("mine")
    lease = await scene.lease()
    before = await scene.get("mine")
    for settle in (scene.delete, scene.extend, scene.release, scene.recall):
        assert await settle(lease, consumer="worker-2") == [Code.LEASE_LOST]
    assert await scene.get("mine") == before


async def an_expired_lease_settles_nothing(scene: Scene) -> None:
    """From the millisecond of its end on, a lease is LEASE_LOST for its holder too (guarantee 3)."""
    await scene.put_many(3)
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(999)
    assert await scene.delete(lease, [(0, 1)]) == [Code.OK]
    scene.advance(1)
    for settle in _every_way(scene):
        assert await settle(lease) == [Code.LEASE_LOST] * 3
    assert await scene.statuses() == (2, 0, 0)


async def a_stale_holder_is_fenced_off(scene: Scene) -> None:
    """Once another lease exists, the earlier lease is LEASE_LOST and the later lease is not affected."""
    await scene.put("fenced")
    await scene.generate([0], bucket=1)
    stale = await scene.lease("worker-1", lease_ms=1_000)
    scene.advance(1_000)
    live = await scene.lease("worker-2")
    before = [await scene.get(one) for one in live.ids()]
    for settle in _every_way(scene):
        assert await settle(stale) == [Code.LEASE_LOST] * 2
    assert [await scene.get(one) for one in live.ids()] == before
    assert await scene.delete(live) == [Code.OK] * 2


async def the_same_consumer_is_fenced_off_by_its_own_later_lease(scene: Scene) -> None:
    """The version distinguishes the leases of one consumer: the consumer's name alone settles nothing."""
    await scene.put("fenced")
    stale = await scene.lease(lease_ms=1_000)
    scene.advance(2_000)
    live = await scene.lease()
    for settle in _every_way(scene):
        assert await settle(stale) == [Code.LEASE_LOST]
    assert await scene.delete(live) == [Code.OK]


async def an_unknown_lease_is_lost(scene: Scene) -> None:
    """A lease id that never existed, or whose rows are all settled, is LEASE_LOST."""
    await scene.put("m")
    lease = await scene.lease()
    assert await scene.delete(lease) == [Code.OK]
    unknown = replace(lease, lease_id=lease.lease_id + 1_000)
    for one in (lease, unknown):
        for settle in _every_way(scene):
            assert await settle(one) == [Code.LEASE_LOST]
        assert await scene.delete(one, [(0, 1)]) == [Code.LEASE_LOST]
        assert await scene.release(one, [(0, 1)], delay=[5]) == [Code.LEASE_LOST]


async def leases_of_another_topic_are_lost(scene: Scene) -> None:
    """A lease is known in its own topic only."""
    other = await scene.new_topic("other")
    await scene.put("m")
    lease = await scene.lease()
    answer = apply_one(scene.storage, Delete(other, lease.lease_id, WORKER, None), scene.now, scene.context)
    assert await settled(answer, lease) == [Code.LEASE_LOST]
    assert await scene.delete(lease) == [Code.OK]


async def rows_outside_the_lease_are_refused(scene: Scene) -> None:
    """A range that is empty, reversed or beyond the lease is INVALID_ARGUMENT, and nothing is changed."""
    await scene.put_many(3)
    lease = await scene.lease()
    for ranges in ([(0, 4)], [(2, 2)], [(2, 1)], [(-1, 1)], [(0, 1), (3, 4)]):
        for settle in (scene.delete, scene.extend, scene.release, scene.recall):
            assert await refusal_of(settle(lease, ranges)) is Code.INVALID_ARGUMENT, ranges
    assert await scene.statuses() == (0, 0, 3)
    assert await scene.delete(lease) == [Code.OK] * 3


async def a_recall_ends_no_lease_that_was_continued(scene: Scene) -> None:
    """A recall that names an end leaves rows leased whose end is another: a later session continues them (G3)."""
    await scene.put_many(3)
    lease = await scene.lease(lease_ms=1_000)
    assert await scene.extend(lease, [(0, 1)], by=4_000) == [Code.OK]
    assert await scene.recall(lease, expires=lease.expires) == [Code.LEASE_LOST, Code.OK, Code.OK]
    assert await scene.recall(lease, [(0, 1)], expires=lease.expires) == [Code.LEASE_LOST]
    assert await scene.statuses() == (2, 0, 1)
    assert await scene.recall(lease, [(0, 1)], expires=scene.now + 4_000) == [Code.OK]
    assert await scene.statuses() == (3, 0, 0)


async def extend_moves_the_end(scene: Scene) -> None:
    """An extended lease ends later; the lease id, holder, attempts and due time stay."""
    await scene.put("m", -7)
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(500)
    assert await scene.extend(lease, by=4_000) == [Code.OK]
    found = await scene.get("m")
    assert (found.ts, found.version) == (scene.now + 4_000, lease.lease_id)
    assert (found.lock_consumer, found.attempts) == (WORKER, 1)
    holder = await scene.holder("m")
    assert holder is not None
    assert (holder.lease_id, holder.row, holder.due) == (lease.lease_id, 0, lease.ts[0])
    scene.advance(3_999)
    assert await scene.try_lease("worker-2") is None
    assert await scene.extend(lease, by=1_000) == [Code.OK]
    scene.advance(999)
    assert await scene.delete(lease) == [Code.OK]


async def extend_moves_the_asked_rows_only(scene: Scene) -> None:
    """Rows of one lease may end at different times; each is leasable at its own end."""
    await scene.put_many(4)
    lease = await scene.lease(lease_ms=1_000)
    ids = lease.ids()
    assert await scene.extend(lease, [(1, 2)], by=2_000) == [Code.OK]
    assert await scene.extend(lease, [(2, 3)], by=3_000) == [Code.OK]
    scene.advance(1_000)
    assert sorted((await scene.lease("worker-2")).ids()) == sorted([ids[0], ids[3]])
    lost, done = Code.LEASE_LOST, Code.OK
    assert await scene.extend(lease, by=1_500) == [lost, done, done, lost]
    scene.advance(1_499)
    assert await scene.try_lease("worker-2") is None
    assert await scene.delete(lease) == [lost, done, done, lost]


async def extend_never_shortens(scene: Scene) -> None:
    """A new end before the old end has no effect, so a message that is not due yet is never lost early."""
    await scene.put("m", 4_000)
    lease = await scene.lease(ahead=5_000, lease_ms=10_000)
    assert await scene.extend(lease, by=1_000) == [Code.OK]
    assert (await scene.get("m")).ts == lease.expires
    scene.advance(1_000)
    assert await scene.try_lease("worker-2") is None
    assert await scene.delete(lease) == [Code.OK]


async def extended_many_times_is_still_one_lease(scene: Scene) -> None:
    """Extends over hours keep one lease, one attempt and exact counts."""
    await scene.put_many(3)
    lease = await scene.lease(lease_ms=60_000)
    for _ in range(50):
        scene.advance(50_000)
        assert await scene.extend(lease, by=60_000) == [Code.OK] * 3
        assert await scene.statuses() == (0, 0, 3)
    assert (await scene.get(lease.ids()[0])).attempts == 1
    assert await scene.delete(lease) == [Code.OK] * 3


async def release_puts_the_message_at_its_new_time(scene: Scene) -> None:
    """A released message waits at the new time, without a lock, with a new version; its attempts stay."""
    await scene.put("m", body=b"kept", priority=3, headers={"h": "v"})
    lease = await scene.lease()
    assert await scene.release(lease, delay=90_000) == [Code.OK]
    found = await scene.get("m")
    assert (found.ts, found.lock_consumer, found.attempts) == (scene.now + 90_000, "", 1)
    assert found.version > lease.lease_id
    assert found.status(scene.now) is Status.WAITING
    assert (found.body, found.priority, found.headers) == (b"kept", 3, {"h": "v"})
    assert await scene.holder("m") is None
    scene.advance(89_999)
    assert await scene.try_lease() is None
    scene.advance(1)
    again = await scene.lease("worker-2")
    assert (again.ids(), again.bodies, again.ts) == (["m"], [b"kept"], [scene.now])
    assert (attempts_of(again), priorities_of(again)) == ([2], [3])
    assert headers_of(again) == headers_of(lease)


async def release_into_the_past_is_available_at_once(scene: Scene) -> None:
    """A release to now or earlier makes the message available immediately, at that place in the order."""
    await scene.put("first", -10)
    await scene.put("second", -5)
    first = await scene.lease(rows_max=1)
    assert await scene.release(first, delay=-1) == [Code.OK]
    assert (await scene.get("first")).status(scene.now) is Status.AVAILABLE
    assert (await scene.lease()).ids() == ["second", "first"]


async def release_takes_one_time_a_row(scene: Scene) -> None:
    """A list of times has one time per row of the ranges, in their order."""
    await scene.put_many(5)
    lease = await scene.lease()
    assert await scene.release(lease, [(3, 5), (0, 1)], delay=[30, 40, 10]) == [Code.OK] * 3
    ids = lease.ids()
    assert [(await scene.get(ids[row])).ts - scene.now for row in (3, 4, 0)] == [30, 40, 10]
    assert [(await scene.holder(ids[row])) is not None for row in (1, 2)] == [True, True]
    codes = await scene.release(lease, delay=[1, 2, 3, 4, 5])
    assert codes == [Code.LEASE_LOST, Code.OK, Code.OK, Code.LEASE_LOST, Code.LEASE_LOST]
    assert [(await scene.get(ids[row])).ts - scene.now for row in range(5)] == [10, 2, 3, 30, 40]


async def release_refuses_a_wrong_number_of_times(scene: Scene) -> None:
    """One time per row, or one for all, is allowed; any other number is INVALID_ARGUMENT and changes nothing."""
    await scene.put_many(3)
    lease = await scene.lease()
    for rows, delays in (([(0, 2)], [1]), ([(0, 2)], [1, 2, 3]), (None, [1, 2]), (None, [])):
        answer = scene.release(lease, rows, delay=delays)
        assert await refusal_of(answer) is Code.INVALID_ARGUMENT, (rows, delays)
    assert await scene.statuses() == (0, 0, 3)


async def release_keeps_large_bodies(scene: Scene) -> None:
    """A body that is stored separately stays the same through any number of leases and releases."""
    large = b"L" * (limits.INLINE_BODY_BYTES_MAX + 1)
    await scene.put("large", body=large)
    for attempt in range(1, 4):
        lease = await scene.lease()
        assert (lease.bodies, attempts_of(lease)) == ([large], [attempt])
        assert await scene.release(lease) == [Code.OK]
    assert (await scene.get("large")).body == large
    assert await scene.delete(await scene.lease()) == [Code.OK]
    assert await scene.find("large") is None


async def recall_undoes_a_lease(scene: Scene) -> None:
    """After a recall, time and attempts are as before the lease, nobody holds the message and the lease is lost."""
    await scene.put("m", 300, priority=2, headers={"h": "v"})
    (generated,) = await scene.generate([400], bucket=3)
    before = {one: await scene.get(one) for one in ("m", generated)}
    lease = await scene.lease(ahead=1_000)
    assert await scene.recall(lease) == [Code.OK, Code.OK]
    for message_id, old in before.items():
        found = await scene.get(message_id)
        assert (found.ts, found.attempts, found.lock_consumer) == (old.ts, 0, "")
        assert (found.body, found.priority, found.headers) == (old.body, old.priority, old.headers)
        assert found.version == old.version, "a recalled lease leaves no trace"
        assert await scene.holder(message_id) is None
    assert await scene.statuses() == (0, 2, 0)
    for settle in _every_way(scene):
        assert await settle(lease) == [Code.LEASE_LOST] * 2
    again = await scene.lease("worker-2", ahead=1_000)
    assert again.ts == [scene.now + 300, scene.now + 400]
    assert attempts_of(again) == [1, 1]
    assert again.lease_id > lease.lease_id


async def recall_takes_the_asked_rows_only(scene: Scene) -> None:
    """Rows that are not recalled keep their lease."""
    await scene.put_many(5, 100)
    lease = await scene.lease(ahead=100)
    assert await scene.recall(lease, [(1, 3)]) == [Code.OK] * 2
    assert await scene.statuses() == (0, 2, 3)
    lost, done = Code.LEASE_LOST, Code.OK
    assert await scene.delete(lease) == [done, lost, lost, done, done]
    assert len(await scene.lease("worker-2", ahead=100)) == 2


async def recall_restores_earlier_attempts(scene: Scene) -> None:
    """A recall removes one attempt: the attempts of earlier leases stay, and so does the time of a release."""
    await scene.put("m")
    assert await scene.release(await scene.lease(), delay=500) == [Code.OK]
    lease = await scene.lease(ahead=500)
    assert attempts_of(lease) == [2]
    assert await scene.recall(lease) == [Code.OK]
    found = await scene.get("m")
    assert (found.ts, found.attempts, found.lock_consumer) == (scene.now + 500, 1, "")


async def recall_after_a_lost_lease(scene: Scene) -> None:
    """When the recalled lease followed a lost lease, the message is due at the end of the lost lease."""
    await scene.put("m", -10)
    lost = await scene.lease(lease_ms=1_000)
    scene.advance(5_000)
    lease = await scene.lease("worker-2")
    assert await scene.recall(lease) == [Code.OK]
    found = await scene.get("m")
    assert (found.ts, found.attempts) == (lost.expires, 1)
    assert found.status(scene.now) is Status.AVAILABLE
    for settle in _every_way(scene):
        assert await settle(lost) == [Code.LEASE_LOST]
    again = await scene.lease("worker-3")
    assert (again.ts, attempts_of(again)) == ([lost.expires], [2])


async def several_leases_are_deleted_from_at_once(scene: Scene) -> None:
    """A storage that deletes from several leases in one commit answers each of them separately."""
    storage = scene.storage
    await scene.generate([-9, -8, -7, -6])
    await scene.put_many(4)
    first, second = await scene.lease(rows_max=4), await scene.lease(rows_max=4)
    ids = first.ids() + second.ids()
    assert await scene.delete(second, [(1, 2)]) == [Code.OK]
    answers = await storage.apply(
        [
            Delete(scene.topic, second.lease_id, WORKER, [(0, 3)], [scene.now * 1_000]),
            Delete(scene.topic, first.lease_id, WORKER, [(0, 1)]),
            Delete(scene.topic, first.lease_id, WORKER, [(0, 2), (3, 4)]),
            Delete(scene.topic, 2**60, WORKER, [(0, 1)]),
        ],
        scene.now,
        scene.context,
    )
    lost = Code.LEASE_LOST
    assert [answer.codes for answer in answers if isinstance(answer, Outcomes)] == [{1: lost}, {}, {0: lost}, {0: lost}]
    found = await storage.get(scene.topic, ids, scene.now)
    assert [row for row, message in enumerate(found) if message is not None] == [2, 7]
    assert await scene.statuses() == (0, 0, 2)


async def a_bad_delete_among_good_ones_is_refused_alone(scene: Scene) -> None:
    """D11: of several deletes, one with invalid rows for its lease is refused alone; the others succeed."""
    too_many = (0, limits.LEASE_ROWS_MAX + 1)
    for number, bad in enumerate(([(0, 1), (1, 9)], [too_many], [(2, 1)], [(-1, 1)])):
        await scene.generate([-9, -8, -7, -6])
        await scene.put_many(2, name=f"m{number}")
        first, second = await scene.lease(rows_max=4), await scene.lease(rows_max=4)
        deletes = [
            Delete(scene.topic, first.lease_id, WORKER, [(0, 2)]),
            Delete(scene.topic, second.lease_id, WORKER, bad),
            Delete(scene.topic, 2**60, WORKER, [too_many]),
            Delete(scene.topic, first.lease_id, WORKER, [(2, 4)]),
            Delete(scene.topic, second.lease_id, WORKER, None),
        ]
        good, refused, unknown, rest, other = await scene.storage.apply(deletes, scene.now, scene.context)
        for answer in (good, rest, other):
            assert isinstance(answer, Outcomes)
            assert answer.codes == {}, (bad, answer)
        for answer in (refused, unknown):
            assert isinstance(answer, Refused)
            assert answer.code is Code.INVALID_ARGUMENT, (bad, answer)
        assert await scene.statuses() == (0, 0, 0)


async def changes_of_many_kinds_in_one_call_see_one_another(scene: Scene) -> None:
    """Each change of a call sees the results of the changes before it, and a refused change stops no other."""
    await scene.put_many(2)
    lease = await scene.lease()
    now, topic = scene.now, scene.topic
    changes: list[Change] = [
        Create(topic, scene.batch(["new"], delays=[60_000])),
        Extend(topic, lease.lease_id, WORKER, None, now + 2 * LEASE_MS),
        Edit(topic, OWNER, Edits(["new", "new"], ts=[now + 70_000, now + 80_000])),
        Delete(topic, lease.lease_id, WORKER, [(0, 1), (1, 9)]),
        Cancel(topic, "another", ["new"]),
        Cancel(topic, OWNER, ["new", "new"]),
        Delete(topic, lease.lease_id, WORKER, [(0, 1)]),
        Create(topic, scene.batch(["new"], delays=[90_000])),
        Edit(topic, OWNER, Edits(["new"], bodies=[b"edited"])),
        Release(topic, lease.lease_id, WORKER, None, now + 5),
    ]
    answers = [
        one.codes if isinstance(one, Outcomes) else one.code
        for one in await scene.storage.apply(changes, now, scene.context)
    ]
    assert answers[:3] == [{}, {}, {}]
    assert answers[3:6] == [Code.INVALID_ARGUMENT, {0: Code.NOT_OWNER}, {1: Code.NOT_FOUND}]
    assert answers[6:9] == [{}, {}, {}]
    found = await scene.get("new")
    assert (found.ts, found.body) == (now + 90_000, b"edited")
    assert await scene.statuses() == (0, 2, 0), "one was released and one is new"


async def an_extended_lease_may_be_recalled(scene: Scene) -> None:
    """A recall restores the time before the lease, however often the lease was extended."""
    await scene.put("m", 200)
    lease = await scene.lease(ahead=200)
    assert await scene.extend(lease, by=60_000) == [Code.OK]
    assert await scene.recall(lease) == [Code.OK]
    assert (await scene.get("m")).ts == scene.now + 200


async def every_change_gives_a_greater_version(scene: Scene) -> None:
    """Lease, release, edit and the next lease increase the version; an extend keeps it."""
    await scene.put("m")
    versions = [(await scene.get("m")).version]

    async def look() -> None:
        versions.append((await scene.get("m")).version)

    lease = await scene.lease()
    await look()
    assert await scene.extend(lease) == [Code.OK]
    assert (await scene.get("m")).version == versions[-1]
    assert await scene.release(lease) == [Code.OK]
    await look()
    assert await scene.edit(Edits(["m"], bodies=[b"new"])) == [Code.OK]
    await look()
    await scene.lease()
    await look()
    assert versions == sorted(set(versions))
