"""Snapshots that clients open: they have names, limits, and end when they are no longer needed."""

from __future__ import annotations

import asyncio

import pytest

from dejaq import limits
from dejaq.broker.calls.snapshots import Snapshots
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import InvalidArgument, LimitExceeded, Missing
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import apply_one
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock

CONTEXT = CallContext("a-request", "a peer")
TOPIC = Topic("t", 1, TopicSettings(buckets=4))


@pytest.fixture
async def snapshots(clock: VirtualClock) -> Snapshots:
    storage = MemoryStorage()
    await storage.open(clock.now_ms())
    await storage.put_topic(TOPIC, DIRECT_CALL)
    return Snapshots(storage=storage, clock=clock, find_topic=lambda name: TOPIC)


async def _open(snapshots: Snapshots) -> str:
    return (await snapshots.open(CONTEXT, carrier.SnapshotRequest(topic="t"))).snapshot


async def _scan(snapshots: Snapshots, name: str, first: int = 0, end: int = 4) -> None:
    request = carrier.ScanRequest(snapshot=name, first_bucket=first, end_bucket=end)
    assert [portion async for portion in snapshots.scan(CONTEXT, request)] == []


async def test_beyond_the_limit_a_completely_read_snapshot_is_closed(snapshots: Snapshots) -> None:
    names = [await _open(snapshots) for _ in range(limits.SNAPSHOTS_MAX)]
    with pytest.raises(LimitExceeded):
        await _open(snapshots)
    await _scan(snapshots, names[3], end=2)
    with pytest.raises(LimitExceeded):
        await _open(snapshots)
    await _scan(snapshots, names[3], first=2)
    await _open(snapshots)
    with pytest.raises(Missing):
        await _scan(snapshots, names[3])
    await _scan(snapshots, names[4])


async def test_a_snapshot_that_is_not_read_ends(snapshots: Snapshots, clock: VirtualClock) -> None:
    name = await _open(snapshots)
    await clock.advance(limits.SNAPSHOT_IDLE_MS_MAX + 1)
    await _open(snapshots)
    with pytest.raises(Missing):
        await _scan(snapshots, name)


async def test_a_snapshot_whose_reader_left_is_closed_after_some_time(
    snapshots: Snapshots, clock: VirtualClock
) -> None:
    """D7: an unread snapshot is closed without waiting until the next one is opened."""
    await _open(snapshots)
    sweeping = asyncio.create_task(snapshots.run())
    await clock.advance(limits.SNAPSHOT_IDLE_MS_MAX // 2)
    assert snapshots.open_count == 1
    await clock.advance(limits.SNAPSHOT_IDLE_MS_MAX // 2 + 60_000)
    assert snapshots.open_count == 0
    sweeping.cancel()


async def test_a_snapshot_whose_reader_stopped_is_closed_after_some_time(
    snapshots: Snapshots, clock: VirtualClock
) -> None:
    """D7: a reader that takes no portion for a long time, or never ends, does not keep a snapshot open."""
    name = await _open(snapshots)
    held = snapshots._open[name]
    held.readers = 1
    await clock.advance(limits.SNAPSHOT_IDLE_MS_MAX + 1)
    snapshots._sweep()
    assert snapshots.open_count == 0
    await _open(snapshots)
    for _ in range(limits.SNAPSHOT_AGE_MS_MAX // limits.SNAPSHOT_IDLE_MS_MAX + 1):
        for held in snapshots._open.values():
            held.used = clock.monotonic()
        await clock.advance(limits.SNAPSHOT_IDLE_MS_MAX)
        snapshots._sweep()
    assert snapshots.open_count == 0


async def test_buckets_outside_the_topic_are_refused(snapshots: Snapshots) -> None:
    name = await _open(snapshots)
    with pytest.raises(InvalidArgument, match="within the topic's 4"):
        await _scan(snapshots, name, end=5)
    await snapshots.close(CONTEXT, carrier.CloseSnapshotRequest(snapshot=name))
    with pytest.raises(Missing):
        await _scan(snapshots, name)


class Ticking(VirtualClock):
    """Each read of this clock takes a second; records the requested sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.waited: list[float] = []

    def monotonic(self) -> float:
        self.looks += 1
        return float(self.looks)

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


@pytest.mark.parametrize("delivers", [False, True])
async def test_a_scan_pauses_longer_than_it_works_while_consumers_wait(delivers: bool) -> None:
    clock = Ticking()
    storage = MemoryStorage()
    await storage.open(0)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    batch = CreateBatch(owner="g", session=ProducerSession(1, 7), sequence=0, ts=[5], bodies=[b"x"], ids=["m"])
    await apply_one(storage, Create(TOPIC, batch), 0, DIRECT_CALL)
    snapshots = Snapshots(storage=storage, clock=clock, find_topic=lambda name: TOPIC, delivers=lambda: delivers)
    request = carrier.ScanRequest(snapshot=await _open(snapshots), end_bucket=4, filter=carrier.Filter(end=2**62))
    portions = [list(portion.ids) async for portion in snapshots.scan(CONTEXT, request)]
    assert portions == [["m"]]
    # Once after the only portion, and once after the check that found no other portion.
    assert clock.waited == ([9.0, 9.0] if delivers else [])


async def test_a_snapshot_that_was_left_early_is_replaced(snapshots: Snapshots, clock: VirtualClock) -> None:
    """P4: after sixty-four reads that stopped early, no other read was accepted for ten minutes."""
    names = []
    for _ in range(limits.SNAPSHOTS_MAX):
        names.append(await _open(snapshots))
        await _scan(snapshots, names[-1], end=1)
    await clock.advance(limits.SNAPSHOT_IDLE_MS_MIN - 1)
    await _scan(snapshots, names[0], end=1)
    with pytest.raises(LimitExceeded):
        await _open(snapshots)
    await clock.advance(2)
    await _open(snapshots)
    await _scan(snapshots, names[0])
    with pytest.raises(Missing):
        await _scan(snapshots, names[1])


async def test_a_completely_read_snapshot_ends_after_a_minute(snapshots: Snapshots, clock: VirtualClock) -> None:
    """P4: a database transaction stayed open for ten minutes after the last row."""
    name = await _open(snapshots)
    await _scan(snapshots, name)
    await clock.advance(limits.SNAPSHOT_READ_MS_MAX + 1)
    await _open(snapshots)
    with pytest.raises(Missing):
        await _scan(snapshots, name)


async def test_callers_with_the_same_name_share_a_snapshot(snapshots: Snapshots, clock: VirtualClock) -> None:
    """P7: every task of a query reads the same instant; one name never belongs to two snapshots."""
    run = (await snapshots.open(CONTEXT, carrier.SnapshotRequest(topic="t"))).run
    request = carrier.SnapshotRequest(topic="t", name="query-1", run=run)
    first, second = await asyncio.gather(snapshots.open(CONTEXT, request), snapshots.open(CONTEXT, request))
    assert first == second
    other = await snapshots.open(CONTEXT, carrier.SnapshotRequest(topic="t", name="query-2", run=run))
    assert other.snapshot != first.snapshot
    await snapshots.close(CONTEXT, carrier.CloseSnapshotRequest(snapshot=first.snapshot))
    with pytest.raises(Missing, match="'query-1' has ended"):
        await snapshots.open(CONTEXT, request)
    with pytest.raises(Missing, match="the broker was started since"):
        await snapshots.open(CONTEXT, carrier.SnapshotRequest(topic="t", name="query-3", run="another"))
