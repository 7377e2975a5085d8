"""Snapshots that clients open: named, bounded, and closed when they are no longer needed."""

from __future__ import annotations

import pytest

from dejaq import limits
from dejaq.broker.carrier.snapshots import Snapshots
from dejaq.domain.batch import CreateBatch
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import InvalidArgument, LimitExceeded, Missing
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.memory import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock

TOPIC = Topic("t", 1, TopicSettings(buckets=4))


@pytest.fixture
async def snapshots(clock: VirtualClock) -> Snapshots:
    storage = MemoryStorage()
    await storage.open(clock.now_ms())
    await storage.put_topic(TOPIC)
    return Snapshots(storage=storage, clock=clock, find_topic=lambda name: TOPIC)


async def _open(snapshots: Snapshots) -> str:
    return (await snapshots.open(carrier.SnapshotRequest(topic="t"))).snapshot


async def _scan(snapshots: Snapshots, name: str, first: int = 0, end: int = 4) -> None:
    request = carrier.ScanRequest(snapshot=name, first_bucket=first, end_bucket=end)
    assert [portion async for portion in snapshots.scan(request)] == []


async def test_beyond_the_limit_one_that_was_read_whole_makes_room(snapshots: Snapshots) -> None:
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


async def test_one_that_nobody_reads_ends(snapshots: Snapshots, clock: VirtualClock) -> None:
    name = await _open(snapshots)
    await clock.advance(limits.SNAPSHOT_IDLE_MS_MAX + 1)
    await _open(snapshots)
    with pytest.raises(Missing):
        await _scan(snapshots, name)


async def test_buckets_outside_the_topic_are_refused(snapshots: Snapshots) -> None:
    name = await _open(snapshots)
    with pytest.raises(InvalidArgument, match="within the topic's 4"):
        await _scan(snapshots, name, end=5)
    await snapshots.close(carrier.CloseSnapshotRequest(snapshot=name))
    with pytest.raises(Missing):
        await _scan(snapshots, name)


class Ticking(VirtualClock):
    """Every look at it takes a second; notes what it is asked to wait."""

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
async def test_a_scan_rests_longer_than_it_works_while_somebody_waits_for_deliveries(delivers: bool) -> None:
    clock = Ticking()
    storage = MemoryStorage()
    await storage.open(0)
    await storage.put_topic(TOPIC)
    batch = CreateBatch(owner="g", session=ProducerSession(1, 7), sequence=0, ts=[5], bodies=[b"x"], ids=["m"])
    await storage.create(TOPIC, batch, 0)
    snapshots = Snapshots(storage=storage, clock=clock, find_topic=lambda name: TOPIC, delivers=lambda: delivers)
    request = carrier.ScanRequest(snapshot=await _open(snapshots), end_bucket=4, filter=carrier.Filter(end=2**62))
    portions = [list(portion.ids) async for portion in snapshots.scan(request)]
    assert portions == [["m"]]
    # After the one portion, and after the look that found no other.
    assert clock.waited == ([9.0, 9.0] if delivers else [])
