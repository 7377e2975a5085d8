"""Many consumers at one broker: what they ask of the store, and when."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dejaq.broker.delivery.flow import Flow
from dejaq.broker.delivery.inflight import Inflight
from dejaq.broker.delivery.leaser import Leaser
from dejaq.broker.metrics import Metrics
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.alarms import COMMON_MS, Alarms
from dejaq.timekeeper.clock import VirtualClock

CONSUMERS = 100


class TimedStorage(MemoryStorage):
    """Records when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[int] = Counter()

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        self.asked[now] += 1
        return await super().next_ts(topic, buckets, now)

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        self.asked[now] += 1
        return await super().lease(topic, request, now, context)


async def test_many_leasers_ask_the_store_at_common_times_and_no_message_is_late() -> None:
    """L7: on PostgreSQL, calls at the same time share a statement; 1,000 consumers asked at 1,000 times."""
    clock, storage, chance = VirtualClock(), TimedStorage(), random.Random(3)
    alarms = Alarms(clock)
    topic = Topic("t", 1, TopicSettings(buckets=CONSUMERS))
    await storage.open(clock.now_ms())
    await storage.put_topic(topic, DIRECT_CALL)
    start = clock.now_ms()
    for bucket in range(CONSUMERS):
        times = [start + chance.randrange(1_000, 6_000) for _ in range(5)]
        batch = CreateBatch("g", ProducerSession(1, bucket + 1), 0, times, [b"x"] * 5, bucket=bucket)
        await apply_one(storage, Create(topic, batch), start, DIRECT_CALL)
    got: list[int] = []

    async def push(lease: LeaseSet) -> None:
        assert lease.ts[0] >= clock.now_ms(), "none is late"
        got.extend(lease.ts)

    leasers = [
        Leaser(
            context=DIRECT_CALL, storage=storage, clock=clock, metrics=Metrics(), topic=topic, consumer=f"c{number}",
            inflight=Inflight(), push=push, alarms=alarms,
        )
        for number in range(CONSUMERS)
    ]  # fmt: skip
    for number, leaser in enumerate(leasers):
        leaser.set_flow(Flow(1_000, 1 << 24, lease_ms=30_000, prefetch_ms=500, prefetch_ms_max=5_000))
        leaser.assign([number])
    running = [asyncio.create_task(leaser.run()) for leaser in leasers]
    await clock.advance(1)
    storage.asked.clear()
    await clock.advance(6_000)
    assert len(got) == 5 * CONSUMERS
    assert all((at - start) % COMMON_MS in ((-start) % COMMON_MS, 0) for at in storage.asked)
    assert len(storage.asked) <= 6_000 // COMMON_MS + 1
    assert sum(storage.asked.values()) > 4 * len(storage.asked)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


class SlowSharedStorage(TimedStorage):
    """Other brokers use it too, and a lease call takes 600 ms."""

    capabilities = replace(MemoryStorage().capabilities, shared=True)

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        lease = await super().lease(topic, request, now, context)
        await self._clock.sleep(0.6)
        return lease


async def test_a_fleet_on_a_shared_storage_leases_so_early_that_slow_calls_make_no_message_late() -> None:
    """L7: with three brokers, 300 messages of 40,000 were late because their lease calls took longer than the lead."""
    clock = VirtualClock()
    storage, alarms = SlowSharedStorage(clock), Alarms(clock)
    alarms.count = 333
    topic = Topic("t", 1, TopicSettings(buckets=1))
    await storage.open(clock.now_ms())
    await storage.put_topic(topic, DIRECT_CALL)
    start = clock.now_ms() + 3_000
    times = [start + 500 * number for number in range(40)]
    batch = CreateBatch("g", ProducerSession(1, 1), 0, times, [b"x"] * 40, bucket=0)
    await apply_one(storage, Create(topic, batch), clock.now_ms(), DIRECT_CALL)
    got: list[LeaseSet] = []

    async def push(lease: LeaseSet) -> None:
        assert clock.now_ms() <= lease.ts[0], "none is late"
        assert lease.ts[-1] <= clock.now_ms() + 3_000
        got.append(lease)

    leaser = Leaser(
        context=DIRECT_CALL, storage=storage, clock=clock, metrics=Metrics(), topic=topic, consumer="c",
        inflight=Inflight(), push=push, alarms=alarms,
    )  # fmt: skip
    leaser.set_flow(Flow(1_000, 1 << 24, lease_ms=30_000, prefetch_ms=500, prefetch_ms_max=5_000))
    leaser.assign([0])
    running = asyncio.create_task(leaser.run())
    for _ in range(240):
        await clock.advance(100)
    assert sum(map(len, got)) == 40
    assert len(got) <= 20, "a lease finds some messages"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
