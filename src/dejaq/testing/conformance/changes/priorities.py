"""Priority topics: of the available messages the lowest priority is leased first, then the oldest."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.changes import Edits
from dejaq.domain.message import Status
from dejaq.domain.topic import TopicKind
from dejaq.errors import Code
from dejaq.storage.base import Filter
from dejaq.testing.conformance.scene import (
    BUCKETS,
    OWNER,
    Scene,
    attempts_of,
    ids_of,
    priorities_of,
)


async def _prioritised(scene: Scene) -> None:
    scene.topic = await scene.new_topic("urgent", kind=TopicKind.PRIORITY)


async def _order(scene: Scene, rows_max: int = 3) -> list[str]:
    """The ids in the order in which they are leased."""
    ids: list[str] = []
    while (lease := await scene.try_lease(rows_max=rows_max)) is not None:
        ids += lease.ids()
    return ids


async def the_lowest_priority_goes_first(scene: Scene) -> None:
    """Over all buckets and kinds of id, messages are leased by priority, and older messages first at equal priority."""
    await _prioritised(scene)
    for number, (priority, delay) in enumerate([(5, -10), (-3, -1), (5, -30), (0, -20), (-3, -2), (0, -40)]):
        await scene.put(f"n{number}", delay, priority=priority)
    batch = scene.batch(None, delays=[-50, -50, -15, -15], priorities=[-3, 9, -9, 5], bucket=3)
    assert await scene.create(batch) == [Code.OK] * 4
    first, last, urgent, middle = ids_of(batch)
    assert await _order(scene) == [urgent, first, "n4", "n1", "n5", "n3", "n2", middle, "n0", last]


async def every_priority_has_its_place(scene: Scene) -> None:
    """The whole range of 32 bits is in order."""
    await _prioritised(scene)
    places = [limits.PRIORITY_MAX, 1, 0, -1, limits.PRIORITY_MIN, 65_536, -65_536, limits.PRIORITY_MAX - 1]
    for priority in places:
        await scene.put(f"p{priority}", priority=priority)
    assert await _order(scene) == [f"p{priority}" for priority in sorted(places)]


async def an_urgent_message_overtakes(scene: Scene) -> None:
    """A message with a lower priority that is created later is leased before the earlier messages."""
    await _prioritised(scene)
    await scene.put_many(10, -1_000)
    assert len(await scene.lease(rows_max=4)) == 4
    await scene.put("urgent", priority=-1)
    lease = await scene.lease(rows_max=4)
    assert lease.ids()[0] == "urgent"
    assert priorities_of(lease) == [-1, 0, 0, 0]


async def nothing_is_leased_ahead_of_its_time(scene: Scene) -> None:
    """A prefetch window has no effect: a more urgent message may be created until the message is due."""
    await _prioritised(scene)
    await scene.put("soon", 100, priority=-9)
    await scene.put("now", 0, priority=9)
    lease = await scene.try_lease(ahead=limits.PREFETCH_MS_MAX, lease_ms=30_000)
    assert lease is not None
    assert lease.ids() == ["now"]
    assert await scene.storage.next_ts(scene.topic, range(BUCKETS), scene.now) == scene.now + 100
    scene.advance(99)
    assert await scene.try_lease(ahead=1) is None
    scene.advance(1)
    assert (await scene.lease()).ids() == ["soon"]


async def a_waiting_message_takes_its_place_when_it_is_due(scene: Scene) -> None:
    """A message that was created ahead of its time is sorted by its priority once it is due,
    however late the lease is.
    """
    await _prioritised(scene)
    await scene.put("later", 50_000, priority=-5)
    await scene.generate([40_000, 60_000, 90_000], bucket=1)
    await scene.put("low", priority=7)
    scene.advance(70_000)
    await scene.put("new", priority=-1)
    order = await _order(scene, rows_max=2)
    assert (order[0], order[1], order[-1]) == ("later", "new", "low")
    assert len(order) == 5


async def a_release_keeps_the_priority(scene: Scene) -> None:
    """A message released with a delay waits for its time and is then sorted by its priority."""
    await _prioritised(scene)
    await scene.put("first", priority=-5)
    await scene.put_many(3, name="rest")
    lease = await scene.lease(rows_max=1)
    assert lease.ids() == ["first"]
    assert await scene.release(lease, delay=20_000) == [Code.OK]
    assert (await scene.lease(rows_max=1)).ids() != ["first"]
    scene.advance(20_000)
    again = await scene.lease(rows_max=1)
    assert (again.ids(), attempts_of(again), priorities_of(again)) == (["first"], [2], [-5])
    assert await scene.release(again) == [Code.OK]
    assert (await scene.lease(rows_max=1)).ids() == ["first"]


async def an_expiry_keeps_the_priority(scene: Scene) -> None:
    """Lost rows are sorted by their priority among available messages, and by the end of their
    lease at equal priority.
    """
    await _prioritised(scene)
    await scene.put("lost", priority=-5)
    (generated,) = await scene.generate([0], bucket=2)
    assert len(await scene.lease(lease_ms=1_000)) == 2
    await scene.put("older", 500)
    await scene.put("younger", 1_500)
    await scene.put("low", priority=1)
    scene.advance(2_000)
    assert await _order(scene, rows_max=1) == ["lost", "older", generated, "younger", "low"]


async def a_recall_puts_a_message_back(scene: Scene) -> None:
    """A message that user code never saw has its old place again."""
    await _prioritised(scene)
    await scene.put_many(2)
    await scene.put("first", priority=-1)
    lease = await scene.lease()
    assert await scene.recall(lease) == [Code.OK] * 3
    again = await scene.lease(rows_max=1)
    assert (again.ids(), attempts_of(again)) == (["first"], [1])


async def an_owner_changes_the_priority(scene: Scene) -> None:
    """An edit moves a message to its new place, whether it is available or waiting."""
    await _prioritised(scene)
    ids = await scene.put_many(4, -10)
    await scene.put("waiting", 1_000, priority=3)
    assert await scene.edit(Edits([ids[2], "waiting"], priorities=[-1, -2])) == [Code.OK] * 2
    assert await scene.edit(Edits([ids[0]], priorities=[8])) == [Code.OK]
    assert (await scene.get(ids[2])).priority == -1
    scene.advance(1_000)
    order = await _order(scene)
    assert (order[:2], set(order[2:4]), order[4:]) == (["waiting", ids[2]], {ids[1], ids[3]}, [ids[0]])


async def moving_changes_the_age(scene: Scene) -> None:
    """A message that is moved waits for its new time, or is sorted by a new time in the past."""
    await _prioritised(scene)
    await scene.put("a", -10)
    await scene.put("b", -20)
    await scene.put("c", -30)
    assert await scene.edit(Edits(["a", "c"], ts=[scene.now - 40, scene.now + 5_000])) == [Code.OK] * 2
    assert await _order(scene) == ["a", "b"]
    scene.advance(5_000)
    assert (await scene.lease()).ids() == ["c"]


async def deleted_and_cancelled_messages_are_gone(scene: Scene) -> None:
    """A deleted or cancelled message is not leased again, and its id is free."""
    await _prioritised(scene)
    await scene.put("n", priority=4)
    (generated,) = await scene.generate([0])
    assert await scene.cancel("n", generated) == [Code.OK] * 2
    await scene.put("n", priority=-4)
    assert await scene.delete(await scene.lease()) == [Code.OK]
    assert await scene.try_lease() is None
    assert await scene.count() == 0
    assert await scene.find("n") is None


async def counts_are_exact(scene: Scene) -> None:
    """Count and histogram are exact for every status and any part of the time."""
    await _prioritised(scene)
    start = scene.now
    for number in range(6):
        await scene.put(f"old{number}", -100_000 * number, priority=number % 3)
    for number in range(4):
        await scene.put(f"new{number}", 40_000 * (number + 1), priority=number)
    await scene.generate([-61_000, -5, 0, 70_000], bucket=4)
    lease = await scene.lease(rows_max=2)
    assert await scene.statuses() == (7, 5, 2)
    assert await scene.count(start=start - 150_000) == 11
    assert await scene.count(end=start + 1, status=Status.AVAILABLE) == 7
    assert await scene.count(owner=OWNER, status=Status.WAITING) == 5
    scene.advance(75_000)
    assert await scene.statuses() == (11, 3, 0)
    assert await scene.delete(lease) == [Code.LEASE_LOST] * 2
    drawn = await scene.storage.histogram(scene.topic, Filter(start=start - 600_000, end=scene.now + 1), 7, scene.now)
    assert sum(count for _, count in drawn) == 11
    assert await scene.count() == 14


async def browse_is_in_order_of_priority(scene: Scene) -> None:
    """Pages are in order of (priority, ts, id), with each message once, whatever its status."""
    await _prioritised(scene)
    for number in range(12):
        await scene.put(f"n{number:02d}", (number % 5 - 3) * 10_000, priority=number % 3 - 1)
    await scene.generate([-3, -2, 0, 30_000], bucket=5)
    await scene.lease(rows_max=3)
    found = await scene.browse(limit=1)
    assert len(found) == 16
    keys = [(message.priority, message.ts, message.id) for message in found]
    assert keys == sorted(keys)
    assert await scene.browse(limit=5) == found
    assert await scene.browse(Filter(status=Status.PROCESSING)) == [m for m in found if m.lock_consumer]
    late = Filter(start=scene.now - 10_000, end=scene.now + 10_000)
    assert await scene.browse(late, limit=2) == [m for m in found if late.start <= m.ts < late.end]


async def a_snapshot_has_everything(scene: Scene) -> None:
    """A scan returns available, waiting and leased messages, each once, and applies its filter."""
    await _prioritised(scene)
    for number in range(9):
        await scene.put(f"n{number}", (number - 4) * 10_000, priority=number % 4)
    await scene.lease(rows_max=2)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    assert snapshot.count == 9
    for where in (Filter(), Filter(start=scene.now - 10_000), Filter(priorities=(1, 2)), Filter(status=Status.WAITING)):
        portions = [one async for one in snapshot.scan(range(BUCKETS), where, bodies=True)]
        ids = [one for portion in portions for stretch in portion.stretches for one in stretch.span.expand()]
        assert sorted(ids) == sorted(message.id for message in await scene.browse(where)), where
    snapshot.close()


async def the_oldest_of_each_priority_is_known(scene: Scene) -> None:
    """The oldest available message of each priority is known; with many priorities, those of the
    most and least urgent.
    """
    await _prioritised(scene)
    assert await scene.storage.oldest(scene.topic, scene.now, 4) == []
    for number, priority in enumerate([3, 3, -2, 0, 9, -7, 5]):
        await scene.put(f"n{number}", -1_000 * number, priority=priority)
    await scene.put("waiting", 5_000, priority=-9)
    expected = [(-7, 5_000), (-2, 2_000), (0, 3_000), (3, 1_000), (5, 6_000), (9, 4_000)]
    oldest = [(priority, scene.now - age) for priority, age in expected]
    assert await scene.storage.oldest(scene.topic, scene.now, 6) == oldest
    assert await scene.storage.oldest(scene.topic, scene.now, 3) == [*oldest[:2], oldest[-1]]
    assert (await scene.lease(rows_max=1)).ids() == ["n5"]
    assert await scene.storage.oldest(scene.topic, scene.now, 6) == oldest[1:]


async def many_priorities_stay_in_order(scene: Scene) -> None:
    """Thousands of messages over hundreds of priorities are leased in order, while others are created in between."""
    await _prioritised(scene)
    expected: list[int] = []
    for batch in range(3):
        priorities = sorted((number * 7_919 + batch) % 501 - 250 for number in range(1_000))
        created = scene.batch(None, delays=[0] * 1_000, priorities=priorities, bucket=batch)
        assert await scene.create(created) == [Code.OK] * 1_000
        expected += priorities
    expected.sort()
    seen: list[int] = []
    while (lease := await scene.try_lease(rows_max=700)) is not None:
        seen += priorities_of(lease)
        if len(seen) == 1_400:
            await scene.put("between", priority=expected[1_400] - 1)
            between = await scene.lease(rows_max=1)
            assert between.ids() == ["between"]
    assert seen == expected


async def a_batch_of_many_priorities_stays_in_order(scene: Scene) -> None:
    """Rows of one batch are leased, lost, recalled, released, deleted and browsed, each by its own priority."""
    await _prioritised(scene)
    await scene.create(scene.batch(None, delays=[0] * 6, priorities=[1, 3, 5, 7, 9, 2_000], bucket=1))
    await scene.create(scene.batch(None, delays=[0] * 5, priorities=[2, 4, 6, 8, 2_001], bucket=2))
    await scene.create(scene.batch(["a", "b", "c"], delays=[0] * 3, priorities=[10, 11, 12]))
    assert [message.priority for message in await scene.browse(limit=4)] == [*range(1, 13), 2_000, 2_001]
    lost = await scene.lease(rows_max=4, lease_ms=1_000)
    assert priorities_of(lost) == [1, 2, 3, 4]
    given_back = await scene.lease(rows_max=3)
    assert priorities_of(given_back) == [5, 6, 7]
    assert await scene.recall(given_back) == [Code.OK] * 3
    released = await scene.lease(rows_max=2)
    assert priorities_of(released) == [5, 6]
    await scene.release(released, delay=500)
    scene.advance(1_000)
    seen: list[int] = []
    while (lease := await scene.try_lease(rows_max=1)) is not None:
        seen += priorities_of(lease)
        await scene.delete(lease)
    assert seen == [*range(1, 13), 2_000, 2_001]
    assert await scene.count() == 0


async def what_is_ready_stays_so_when_the_clock_steps_back(scene: Scene) -> None:
    """A message that was due, and is not due after a step of the clock, is leased when its time comes again."""
    scene.topic = await scene.new_topic("urgent", kind=TopicKind.PRIORITY, buckets=1)
    await scene.put("due", 0, priority=3)
    scene.advance(-5)
    assert await scene.try_lease() is None
    # A message that is created meanwhile replaces one that need not be kept in memory.
    await scene.put("later", 1, priority=5)
    await scene.put("latest", 2, priority=7)
    assert await scene.try_lease() is None
    scene.advance(5)
    leased: list[str] = []
    while (lease := await scene.try_lease(rows_max=1)) is not None:
        leased += lease.ids()
    assert leased == ["due", "later", "latest"]
