"""How much a consumer holds that may be closed soon, or that is behind."""

from __future__ import annotations

import asyncio

import pytest

from dejaq.broker.delivery.leaser import Leaser
from dejaq.broker.delivery.pace import GROW_MS, LATE_ROWS
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, until
from tests.unit.broker.conftest import Connect
from tests.unit.broker.test_leaser import CountingStorage


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage()


async def test_a_consumer_that_is_behind_holds_few_late_messages_until_it_is_fast(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    """L15: a consumer that was opened with a backlog leased thousands of messages, and returned them when it closed."""
    producer, batches = await (await connect()).produce(), Batches()
    for part in range(3):
        ids = [f"m{part}-{number}" for number in range(1_000)]
        await producer.ask(create=batches.natural(ids, clock.now_ms() - 10_000))
    consumer = await (await (await connect()).consume()).subscribe(rows=10_000)
    await until(lambda: len(consumer.received()) >= 64)
    await clock.advance(GROW_MS // 2)
    assert len(consumer.received()) == 64, "it has not settled any"
    await consumer.settle(carrier.DELETE, consumer.pushes[0].lease)
    await until(lambda: len(consumer.received()) == 192)
    await clock.advance(GROW_MS // 2)
    assert len(consumer.received()) == 192, "twice as many"
    while len(consumer.received()) < 3_000:
        held = len(consumer.received())
        await consumer.settle(carrier.DELETE, consumer.pushes[-1].lease)
        await until(lambda held=held: len(consumer.received()) > held)  # type: ignore[misc]
    assert len(consumer.pushes) < 10


async def test_a_consumer_whose_messages_wait_for_user_code_gets_no_more_of_them(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    """L15: a consumer that was slower than its messages got all of them in time, and returned them when it closed."""
    producer, batches = await (await connect()).produce(), Batches()
    start = clock.now_ms() + 3_000
    ids = [f"m{number}" for number in range(4_000)]
    await producer.ask(create=batches.natural(ids[:2_000], [start + number for number in range(2_000)]))
    await producer.ask(create=Batches(2).natural(ids[2_000:], [start + number for number in range(2_000, 4_000)]))
    consumer = await (await (await connect()).consume()).subscribe(rows=10_000, prefetch_ms=500)
    settled = 0
    for _ in range(60):
        await clock.advance(100)
        await asyncio.sleep(0)
        if clock.now_ms() > start + 500 and settled < len(consumer.pushes):
            push = consumer.pushes[settled]
            late_us = 1_000 * (clock.now_ms() - 10)
            await consumer.settle(carrier.DELETE, push.lease, handed_us=[late_us])
            settled += 1
    held = sum(len(push.ts) for push in consumer.pushes[settled:])
    assert held <= 128, "it is half a second behind"


async def test_a_consumer_that_was_just_opened_leases_few_messages_ahead(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    """L15: a consumer that is opened for 300 messages returned as many when it closed."""
    producer = await (await connect()).produce()
    now = clock.now_ms()
    ids = [f"m{number}" for number in range(2_500)]
    await producer.ask(create=Batches().natural(ids, [now + 2 * number for number in range(2_500)]))
    consumer = await (await (await connect()).consume()).subscribe(rows=10_000, prefetch_ms=500)
    ahead: dict[int, int] = {}
    for _ in range(60):
        await clock.advance(50)
        await until(lambda: len(consumer.received()) >= (clock.now_ms() - now) // 2)
        ahead[clock.now_ms() - now] = len(consumer.received()) - (clock.now_ms() - now) // 2
    assert max(count for at, count in ahead.items() if at <= 500) <= 65
    assert min(count for at, count in ahead.items() if at > 2_500) > 150, "a quarter of a second at least"
    assert 8 <= len(storage.leases) / 3 <= 16, "lease calls per second"


async def test_a_consumer_that_loses_buckets_makes_no_lease_call(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    """L15: each consumer that was opened made the others lease, although they could only find less."""
    await (await (await connect()).consume("a")).subscribe()
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["soon"], clock.now_ms() + 10_000))
    await clock.advance(100)
    storage.leases.clear()
    await (await (await connect()).consume("b")).subscribe()
    await clock.advance(100)
    assert {request.consumer for request in storage.leases} == {"b"}


async def test_a_consumer_that_settles_nothing_gets_more_late_messages_with_time(
    connect: Connect, clock: VirtualClock
) -> None:
    """User code may hold thousands of messages for a long time."""
    producer, batches = await (await connect()).produce(), Batches()
    ids = [f"m{number}" for number in range(1_000)]
    await producer.ask(create=batches.natural(ids, clock.now_ms() - 10_000))
    consumer = await (await (await connect()).consume()).subscribe(rows=10_000)
    await until(lambda: len(consumer.received()) == LATE_ROWS)
    for _ in range(6):
        await clock.advance(GROW_MS)
    await until(lambda: len(consumer.received()) == 1_000)


@pytest.mark.parametrize(("credit", "busy_ms"), [(10, 0), (1_000, 0), (1_000, 5_000)])
async def test_a_consumer_without_room_waits_for_it(
    connect: Connect, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, credit: int, busy_ms: int
) -> None:
    """A time to look again that has passed would keep the event loop busy."""
    looks: list[int] = []
    fall_behind = Leaser._fall_behind

    def counted(leaser: Leaser, now: int) -> int | None:
        looks.append(now)
        return fall_behind(leaser, now)

    monkeypatch.setattr(Leaser, "_fall_behind", counted)
    producer = await (await connect()).produce()
    ids = [f"m{number}" for number in range(5_000)]
    await producer.ask(create=Batches().natural(ids[:2_500], clock.now_ms() - 10_000))
    await producer.ask(create=Batches(2).natural(ids[2_500:], clock.now_ms() - 10_000))
    consumer = await (await (await connect()).consume()).subscribe(rows=credit)
    await until(lambda: len(consumer.received()) == min(credit, 64))
    if busy_ms:
        await consumer.ask(busy=carrier.Busy(ms=busy_ms))
    for _ in range(30):
        await clock.advance(100)
    assert len(looks) < 60
