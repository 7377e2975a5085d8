"""Queries work in short steps, and answer as of one moment although messages come and go between these steps."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import pytest

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.reading import pace
from dejaq.storage.rocksdb.reading.counting import CountReading, Tally
from dejaq.storage.rocksdb.reading.leased import LeaseReading
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.minute_counts import MinuteCounts
from dejaq.testing.loop_steps import measured_steps

NOW = 1_800_000_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
BUCKETS = 8
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
OWNERS = ("a", "b", "c")


class Timeline:
    """A store with scattered messages of several producer groups, some of them leased."""

    def __init__(self, path: Path) -> None:
        self.storage = RocksStorage(path, journal=False)
        self.chance = random.Random(3)
        self.ids: dict[str, list[str]] = {owner: [] for owner in OWNERS}
        self._sequence = 0
        self._calls = count()

    async def begin(self) -> None:
        await self.storage.open(NOW)
        await self.storage.put_topic(TOPIC, DIRECT_CALL)

    async def create(self, rows: int, *, behind_ms: int = 5 * MINUTE_MS, ahead_ms: int = 30 * DAY_MS) -> None:
        owner = OWNERS[next(self._calls) % len(OWNERS)]
        ts = [NOW + self.chance.randrange(-behind_ms, ahead_ms) for _ in range(rows)]
        ids = [f"{owner}-{self._sequence + row}" for row in range(rows)]
        batch = CreateBatch(owner, ProducerSession(NOW, 5), self._sequence, ts, [b"x" * 20] * rows, ids=ids)
        self._sequence += rows
        assert not (await apply_one(self.storage, Create(TOPIC, batch), NOW, DIRECT_CALL)).codes
        self.ids[owner] += ids

    async def cancel(self, rows: int) -> None:
        for owner in OWNERS:
            gone = [self.ids[owner].pop(self.chance.randrange(len(self.ids[owner]))) for _ in range(rows)]
            await apply_one(self.storage, Cancel(TOPIC, owner, gone), NOW, DIRECT_CALL)

    async def lease(self, rows: int, *, until: int = NOW + 20_000) -> int:
        request = LeaseRequest(range(BUCKETS), "consumer", NOW, until, rows)
        held = await self.storage.lease(TOPIC, request, NOW, DIRECT_CALL)
        assert held is not None
        return held.lease_id

    async def messages(self) -> list[Message]:
        found: list[Message] = []
        cursor: bytes | None = None
        while True:
            page = await self.storage.browse(TOPIC, Filter(), cursor, 1_000, NOW)
            found += page.messages
            if (cursor := page.cursor) is None:
                return found


@pytest.fixture
async def timeline(tmp_path: Path) -> Timeline:
    timeline = Timeline(tmp_path / "store")
    await timeline.begin()
    return timeline


async def test_counts_by_group_and_status_stay_exact(timeline: Timeline) -> None:
    """After the first question, creates, cancels, leases, deletes and merges are counted group by group."""
    for _ in range(9):
        await timeline.create(300, behind_ms=10 * MINUTE_MS, ahead_ms=HOUR_MS)
    await timeline.lease(50)
    for round_ in range(4):
        found = await timeline.messages()
        for owner, status in product((None, *OWNERS), (None, *Status)):
            rows = [m for m in found if owner in (None, m.producer_group) and status in (None, m.status(NOW))]
            assert await timeline.storage.count(TOPIC, Filter(owner=owner, status=status), NOW) == len(rows)
            drawn = await timeline.storage.histogram(TOPIC, Filter(owner=owner, status=status), 7 * MINUTE_MS, NOW)
            assert sum(count for _, count in drawn) == len(rows)
        if round_ == 1:
            await timeline.storage.merger.settle()
            continue
        await timeline.create(200, behind_ms=10 * MINUTE_MS, ahead_ms=HOUR_MS)
        await timeline.cancel(20)
        lease_id = await timeline.lease(30)
        await apply_one(timeline.storage, Delete(TOPIC, lease_id, "consumer", None), NOW, DIRECT_CALL)
    await timeline.storage.close()


async def test_a_topic_with_very_many_groups_and_minutes_is_counted_without_keeping_them(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OWNER_MINUTES_MAX", 800)
    for _ in range(6):
        await timeline.create(200)
    expected = {owner: len(ids) for owner, ids in timeline.ids.items() if ids}
    for owner, rows in expected.items():
        assert await timeline.storage.count(TOPIC, Filter(owner=owner), NOW) == rows
    await timeline.create(200)
    expected = {owner: len(ids) for owner, ids in timeline.ids.items() if ids}
    for owner, rows in expected.items():
        assert await timeline.storage.count(TOPIC, Filter(owner=owner), NOW) == rows
    await timeline.storage.close()


class _Interrupted(QueryPace):
    """A pace that rests at every occasion, and has something happen meanwhile."""

    def __init__(self, happen: Callable[[], None]) -> None:
        super().__init__()
        self._happen = happen

    async def rest(self) -> None:
        self._happen()


async def test_changes_behind_the_reader_are_counted() -> None:
    """A histogram is exact as of its end: what changes in a part that was read is added, what is ahead is read."""
    chance = random.Random(5)
    counts = MinuteCounts(1)
    times = [NOW + chance.randrange(3 * DAY_MS) for _ in range(3_000)]
    counts.add_times(times, 1)
    tally = Tally(NOW, 7 * MINUTE_MS)
    reading = CountReading(counts, tally, NOW, NOW + 3 * DAY_MS)

    def happen() -> None:
        more = [NOW + chance.randrange(3 * DAY_MS) for _ in range(5)]
        counts.add_times(more, 1)
        times.extend(more)
        counts.add_times([times.pop(chance.randrange(len(times))) for _ in range(4)], -1)

    await reading.read(_Interrupted(happen))
    reading.end()
    happened = Counter(ts - (ts - NOW) % tally.step for ts in times)
    unread = Counter(ts - (ts - NOW) % tally.step for ts in times for low, high in tally.unread if low <= ts < high)
    assert dict(tally.steps()) == happened - unread
    # A change after the end is none of its business.
    happen()
    assert dict(tally.steps()) == happened - unread


async def test_leases_are_copied_as_of_the_last_moment(timeline: Timeline) -> None:
    """Leases are added, change and go while others are copied; the copies are those of the moment at the end."""
    await timeline.create(600, behind_ms=MINUTE_MS, ahead_ms=1)
    held = [await timeline.lease(1) for _ in range(500)]
    state = timeline.storage._state(TOPIC)
    chance, changes = random.Random(8), 0

    def happen() -> None:
        nonlocal changes
        lease = state.leases.get(held[chance.randrange(len(held))])
        if lease is not None and changes < 400:
            changes += 1
            if changes % 2:
                lease.move(lease.rows, NOW + 30_000 + changes)
            else:
                state.leases.remove(lease)
                lease.terms.clear()

    with LeaseReading(state) as copying:
        await copying.read(_Interrupted(happen))
        # More than are left to the end change in the last step.
        for _ in range(300):
            happen()
        found = {copy.id: copy.terms for copy in copying.taken()}
    assert changes > 350
    assert found == {lease.id: lease.terms for lease in state.leases}
    assert not state.leases._watchers
    await timeline.storage.close()


async def test_other_tasks_run_while_leases_are_copied(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lease may be the end of a step; here each is, as on a slow machine."""
    await timeline.create(400, behind_ms=MINUTE_MS, ahead_ms=1)
    for _ in range(200):
        await timeline.lease(1)
    monkeypatch.setattr(pace, "STEP_S", 0.0)
    storage, turns = timeline.storage, 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    queries: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.histogram(TOPIC, Filter(consumer="nobody"), HOUR_MS, NOW),
        lambda: storage.browse(TOPIC, Filter(consumer="nobody"), None, 10, NOW),
        lambda: storage.snapshot(TOPIC, NOW),
    ]
    for query in queries:
        turns = 0
        other = asyncio.create_task(take_turns())
        await query()
        other.cancel()
        # Each lease is copied, and compared with what is looked for.
        assert turns >= 2 * 200
    await storage.close()


async def test_no_query_delays_the_loop(timeline: Timeline) -> None:
    """Every step takes about a millisecond, however long the whole query takes."""
    for _ in range(40):
        await timeline.create(1_000)
    # Many leases of a row each.
    await timeline.create(200, behind_ms=MINUTE_MS, ahead_ms=1)
    for _ in range(40):
        await timeline.lease(1)
    storage = timeline.storage
    month = Filter(start=NOW, end=NOW + 30 * DAY_MS)
    queries: dict[str, Callable[[], Awaitable[object]]] = {
        "histogram of minutes": lambda: storage.histogram(TOPIC, month, 5 * MINUTE_MS, NOW),
        "histogram of divided minutes": lambda: storage.histogram(TOPIC, month, HOUR_MS - 1, NOW),
        "first count of a group": lambda: storage.count(TOPIC, Filter(owner="a"), NOW),
        "browse": lambda: storage.browse(TOPIC, Filter(), None, 2_000, NOW),
        "histogram of leases": lambda: storage.histogram(TOPIC, replace(month, status=Status.PROCESSING), 1_000, NOW),
        "snapshot": lambda: storage.snapshot(TOPIC, NOW),
        "browse of a group": lambda: storage.browse(TOPIC, Filter(owner="b"), None, 1_000, NOW),
    }
    await _check_steps(queries)
    await storage.close()


async def test_a_page_of_many_leases_that_end_together_delays_no_loop(timeline: Timeline) -> None:
    """They have one place in the order but for their ids, so all of them are sorted for one page."""
    for _ in range(8):
        await timeline.create(1_000, behind_ms=MINUTE_MS, ahead_ms=1)
    for rows in (4_000, 1, 3_000, 1, 998):
        await timeline.lease(rows)
    storage, held = timeline.storage, Filter(status=Status.PROCESSING)
    shares: list[float] = []
    for _ in range(3):
        with measured_steps() as steps:
            await asyncio.ensure_future(storage.browse(TOPIC, held, None, 100, NOW))
        shares.append(steps.longest_ms / steps.total_ms)
    # It was two thirds while all rows were found and sorted in one step.
    assert min(shares) < 0.45, shares
    found: list[Message] = []
    cursor: bytes | None = None
    while cursor is not None or not found:
        page = await storage.browse(TOPIC, held, cursor, 3_000, NOW)
        found, cursor = found + page.messages, page.cursor
    assert {message.ts for message in found} == {NOW + 20_000}
    assert [message.id for message in found] == sorted(
        message_id for ids in timeline.ids.values() for message_id in ids
    )
    await storage.close()


async def _check_steps(queries: dict[str, Callable[[], Awaitable[object]]]) -> None:
    for name, query in queries.items():
        with measured_steps() as steps:
            await asyncio.ensure_future(query())
        # A slow machine makes more steps and not longer ones.
        assert steps.longest_ms < max(4.0, steps.total_ms / 3), (name, steps)
        assert steps.total_ms < 4.0 or steps.count > 3, (name, steps)
