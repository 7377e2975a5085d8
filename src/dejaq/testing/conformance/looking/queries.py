"""Get, holders, count, histogram and browse: exact in every status, at every time."""

from __future__ import annotations

from dejaq.domain.message import Message, Status
from dejaq.errors import Code
from dejaq.storage.base import Filter
from dejaq.testing.conformance.scene import START_MS, WORKER, Scene, ids_of, refusal_of


async def _mixed(scene: Scene) -> None:
    """Two available, three waiting, four processing, two lost messages, of two owners and two consumers."""
    for number in range(4):
        await scene.put(f"held-{number}", -100, owner="a" if number < 3 else "b")
    await scene.lease(lease_ms=600_000)
    for number in range(2):
        await scene.put(f"lost-{number}", -100, owner="a")
    await scene.lease("worker-2", lease_ms=1_000)
    scene.advance(2_000)
    await scene.put("available", -1, owner="b")
    await scene.generate([0], owner="a")
    await scene.put("waiting", 1, owner="b")
    await scene.generate([59_999, 120_000], owner="a", bucket=5)


async def every_status_is_counted(scene: Scene) -> None:
    """Counts by status add up; a lost message is available."""
    assert await scene.statuses() == (0, 0, 0)
    await _mixed(scene)
    assert await scene.statuses() == (4, 3, 4)
    assert await scene.count() == 11
    scene.advance(1)
    assert await scene.statuses() == (5, 2, 4)
    scene.advance(700_000)
    assert await scene.statuses() == (11, 0, 0)


async def counts_follow_every_change(scene: Scene) -> None:
    """After each kind of change the counts are exact."""
    await scene.put_many(6)
    assert await scene.statuses() == (6, 0, 0)
    lease = await scene.lease()
    assert await scene.statuses() == (0, 0, 6)
    assert await scene.release(lease, [(0, 1)], delay=100) == [Code.OK]
    assert await scene.statuses() == (0, 1, 5)
    assert await scene.release(lease, [(1, 2)]) == [Code.OK]
    assert await scene.statuses() == (1, 1, 4)
    assert await scene.recall(lease, [(2, 3)]) == [Code.OK]
    assert await scene.statuses() == (2, 1, 3)
    assert await scene.delete(lease, [(3, 4)]) == [Code.OK]
    assert await scene.statuses() == (2, 1, 2)
    assert await scene.cancel(lease.ids()[0]) == [Code.OK]
    assert await scene.statuses() == (2, 0, 2)
    scene.advance(60_000)
    assert await scene.statuses() == (4, 0, 0)


async def counts_are_exact_in_any_range(scene: Scene) -> None:
    """`start <= ts < end`, exact to the millisecond, wherever the borders are."""
    delays = [0, 1, 999, 1_000, 9_999, 10_000, 10_001, 59_999, 60_000, 60_001, 3_600_000]
    await scene.generate(delays, bucket=1)
    borders = [-1, 0, 1, 2, 1_000, 1_001, 10_000, 60_000, 60_001, 3_600_000, 3_600_001]
    for low in borders:
        for high in borders:
            expected = sum(low <= delay < high for delay in delays)
            count = await scene.count(start=scene.now + low, end=scene.now + high)
            assert count == expected, (low, high)


async def leased_messages_count_at_their_lease_end(scene: Scene) -> None:
    """A leased message has the end of its lease as its time in count, histogram and browse."""
    await scene.put("m", -50_000)
    lease = await scene.lease(lease_ms=90_000)
    assert await scene.count(end=scene.now + 90_000) == 0
    assert await scene.count(start=scene.now + 90_000) == 1
    assert await _histogram(scene, Filter(start=scene.now), 60_000) == [(scene.now + 60_000, 1)]
    assert [message.ts for message in await scene.browse()] == [lease.expires]
    assert await scene.extend(lease, by=300_000) == [Code.OK]
    assert await scene.count(start=scene.now + 300_000, end=scene.now + 300_001) == 1
    assert await scene.count(end=scene.now + 300_000) == 0
    scene.advance(300_001)
    assert await scene.count(status=Status.AVAILABLE, start=scene.now - 1, end=scene.now) == 1


async def fields_filter_together(scene: Scene) -> None:
    """Each condition of a filter that is not None narrows it: status, owner, consumer and range."""
    await _mixed(scene)
    assert await scene.count(owner="a") == 3 + 2 + 1 + 2
    assert await scene.count(owner="b") == 1 + 1 + 1
    assert await scene.count(owner="nobody") == 0
    assert await scene.count(consumer=WORKER) == 4
    assert await scene.count(consumer="worker-2") == 2, "a lost message still shows its consumer"
    assert await scene.count(consumer="nobody") == 0
    assert await scene.count(consumer=WORKER, owner="b") == 1
    assert await scene.count(status=Status.PROCESSING, owner="a") == 3
    assert await scene.count(status=Status.AVAILABLE, owner="a") == 2 + 1
    assert await scene.count(status=Status.AVAILABLE, consumer="worker-2") == 2
    assert await scene.count(status=Status.PROCESSING, consumer="worker-2") == 0
    assert await scene.count(status=Status.WAITING, start=scene.now + 2) == 2
    assert await scene.count(status=Status.WAITING, end=scene.now) == 0


async def every_query_agrees(scene: Scene) -> None:
    """For any filter, count, histogram and browse match the same messages."""
    await _mixed(scene)
    everything = await scene.browse()
    for status in (None, *Status):
        for owner in (None, "a", "b"):
            for consumer in (None, WORKER, "worker-2"):
                for start, end in ((0, 2**63 - 1), (scene.now - 99, scene.now + 60_000)):
                    where = Filter(start=start, end=end, status=status, owner=owner, consumer=consumer)
                    expected = [message for message in everything if _matches(message, where, scene.now)]
                    assert await scene.browse(where, limit=3) == expected, where
                    assert await scene.storage.count(scene.topic, where, scene.now) == len(expected)
                    histogram = await _histogram(scene, where, 1_000)
                    assert sum(count for _, count in histogram) == len(expected)


def _matches(message: Message, where: Filter, now: int) -> bool:
    return (
        where.start <= message.ts < where.end
        and (where.status is None or message.status(now) is where.status)
        and (where.owner is None or message.producer_group == where.owner)
        and (where.consumer is None or message.lock_consumer == where.consumer)
    )


async def _histogram(scene: Scene, where: Filter, step: int) -> list[tuple[int, int]]:
    return await scene.storage.histogram(scene.topic, where, step, scene.now)


async def histogram_counts_each_step(scene: Scene) -> None:
    """Steps begin at the filter's start; steps without messages are left out; all are in order."""
    await scene.generate([0, 1, 9, 10, 11, 35, 100], bucket=2)
    await scene.put("natural", 10)
    now = scene.now
    assert await _histogram(scene, Filter(start=now, end=now + 101), 10) == [
        (now, 3),
        (now + 10, 3),
        (now + 30, 1),
        (now + 100, 1),
    ]
    assert await _histogram(scene, Filter(start=now, end=now + 100), 10) == [
        (now, 3),
        (now + 10, 3),
        (now + 30, 1),
    ]
    assert await _histogram(scene, Filter(start=now + 1, end=now + 12), 10) == [
        (now + 1, 4),
        (now + 11, 1),
    ]
    assert await _histogram(scene, Filter(start=now + 200), 10) == []


async def histogram_of_any_step_is_exact(scene: Scene) -> None:
    """From a millisecond to a day, aligned or not, the counts are exact."""
    delays = sorted((number * number * 37) % 400_000 for number in range(120))
    await scene.generate(delays, bucket=4)
    for start, step in (
        (0, 1),
        (0, 7),
        (13, 1_000),
        (-5, 10_000),
        (1, 60_000),
        (-99, 60_000),
        (0, 86_400_000),
    ):
        origin = scene.now + start
        expected: dict[int, int] = {}
        for delay in delays:
            if delay >= start:
                place = origin + (delay - start) // step * step
                expected[place] = expected.get(place, 0) + 1
        assert await _histogram(scene, Filter(start=origin), step) == sorted(expected.items()), (start, step)


async def histogram_from_the_beginning_of_time(scene: Scene) -> None:
    """Without a start, steps are multiples of the step."""
    assert scene.now == START_MS
    await scene.put("m", 61_000)
    assert await _histogram(scene, Filter(), 60_000) == [((START_MS + 61_000) // 60_000 * 60_000, 1)]


async def browse_is_in_order_of_time_and_id(scene: Scene) -> None:
    """Pages of any size give every message once, ordered by (ts, id)."""
    for name, delay in (("b", 5), ("a", 5), ("Z", 5), ("a.", 5), ("a-", 5), ("c", 4), ("0", 6)):
        await scene.put(name, delay)
    batch = scene.batch(None, delays=[5, 5, 70_000], bucket=7)
    assert await scene.create(batch) == [Code.OK] * 3
    expected = sorted(
        [(5, one) for one in ("b", "a", "Z", "a.", "a-", *ids_of(batch)[:2])]
        + [(4, "c"), (6, "0"), (70_000, ids_of(batch)[2])]
    )
    for limit in (1, 2, 3, 10, 100):
        messages = await scene.browse(limit=limit)
        assert [(message.ts - scene.now, message.id) for message in messages] == expected, limit


async def browse_gives_whole_messages(scene: Scene) -> None:
    """Browse returns the same messages as get."""
    await _mixed(scene)
    await scene.put("rich", 7, body=b"x" * 20_000, priority=3, headers={"h": "v"})
    messages = await scene.browse(limit=4)
    assert len(messages) == 12
    found = await scene.storage.get(scene.topic, [message.id for message in messages], scene.now)
    assert found == messages


async def browse_of_nothing_is_one_empty_page(scene: Scene) -> None:
    """When nothing matches, the first page is empty and is the last."""
    page = await scene.storage.browse(scene.topic, Filter(), None, 10, scene.now)
    assert (page.messages, page.cursor) == ([], None)


async def browse_goes_on_after_changes(scene: Scene) -> None:
    """A cursor stays valid while messages before and after it are created and deleted; none is returned twice."""
    ids = await scene.generate([10, 20, 30, 40, 50, 60])
    page = await scene.storage.browse(scene.topic, Filter(), None, 3, scene.now)
    assert [message.id for message in page.messages] == ids[:3]
    assert page.cursor is not None
    assert await scene.cancel(ids[2], ids[3]) == [Code.OK, Code.OK]
    await scene.put("early", 5)
    await scene.put("late", 55)
    page = await scene.storage.browse(scene.topic, Filter(), page.cursor, 10, scene.now)
    assert [message.id for message in page.messages] == [ids[4], "late", ids[5]]
    assert page.cursor is None


async def a_strange_cursor_is_refused(scene: Scene) -> None:
    """A cursor that browse never returned is refused, or is used as a position; it has no other effect."""
    await scene.put_many(3)
    for cursor in (b"", b"x", b"\xff" * 40, b"\x00" * 8):
        answer = scene.storage.browse(scene.topic, Filter(), cursor, 10, scene.now)
        assert await refusal_of(answer) in (Code.INVALID_ARGUMENT, Code.OK)
    assert len(await scene.browse()) == 3


async def queries_change_nothing(scene: Scene) -> None:
    """Any number of queries leaves versions, attempts and leases unchanged."""
    await _mixed(scene)
    before = await scene.browse()
    for _ in range(3):
        await scene.statuses()
        await _histogram(scene, Filter(), 1_000)
        await scene.storage.holders(scene.topic, [message.id for message in before], scene.now)
        await scene.storage.leases_of(scene.topic, WORKER, scene.now)
        await scene.storage.next_ts(scene.topic, range(8), scene.now)
    assert await scene.browse() == before


async def an_empty_range_has_nothing(scene: Scene) -> None:
    """When `end` is not after `start`, nothing matches."""
    await scene.put("m", 10)
    at = scene.now + 10
    for start, end in ((at, at), (at + 1, at), (at + 1, at + 2)):
        where = Filter(start=start, end=end)
        assert await scene.storage.count(scene.topic, where, scene.now) == 0
        assert await _histogram(scene, where, 10) == []
        assert await scene.browse(where) == []


async def priorities_and_headers_narrow_a_filter(scene: Scene) -> None:
    """Count, histogram and browse can filter by a range of priorities and by headers."""
    await scene.put("plain", 10)
    await scene.put("low", 20, priority=-5, headers={"kind": "a", "more": "x"})
    await scene.put("high", 30, priority=9, headers={"kind": "b"})
    await scene.put("held", 0, priority=9, headers={"kind": "a"})
    await scene.generate([10, 20, 30], bucket=2)
    assert len(await scene.lease()) == 1
    expected: dict[Filter, set[str]] = {
        Filter(priorities=(-5, -1)): {"low"},
        Filter(priorities=(1, 9)): {"high", "held"},
        Filter(priorities=(1, 9), status=Status.WAITING): {"high"},
        Filter(priorities=(10, 2**31 - 1)): set(),
        Filter(headers=(("kind", "a"),)): {"low", "held"},
        Filter(headers=(("kind", "a"), ("more", "x"))): {"low"},
        Filter(headers=(("kind", "c"),)): set(),
        Filter(headers=(("kind", "a"),), end=scene.now + 21): {"low"},
        Filter(headers=(("kind", "a"),), owner="stranger"): set(),
    }
    for where, ids in expected.items():
        assert {message.id for message in await scene.browse(where, limit=1)} == ids, where
        assert await scene.storage.count(scene.topic, where, scene.now) == len(ids), where
    steps = await scene.storage.histogram(scene.topic, Filter(start=scene.now, priorities=(-5, 0)), 10, scene.now)
    assert steps == [(scene.now + 10, 2), (scene.now + 20, 2), (scene.now + 30, 1)]
    assert await scene.count(priorities=(0, 0)) == 4
