"""U24: tests of users advance the time, and every event still happens at its own time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

import dejaq
from dejaq.testing.virtual_time import VirtualBroker, virtual_broker
from dejaq.testing.waiting import eventually, patient

TOPIC = "mail"
DAY_MS = 24 * 3_600_000
WITHIN = 10.0


@pytest.fixture
async def virtual() -> AsyncIterator[VirtualBroker]:
    async with virtual_broker() as made:
        await made.client.create_topic(TOPIC, buckets=4)
        yield made


async def test_each_message_is_handed_over_at_its_own_time(virtual: VirtualBroker) -> None:
    """U24, G2: a single jump over a month would hand over every message at its end."""
    late: list[int] = []

    @virtual.client.worker(TOPIC)
    async def handle(lease: dejaq.Lease) -> None:
        late.append(virtual.time.now_ms - lease.ts)

    async with handle.running(), virtual.client.producer(TOPIC) as producer:
        now = virtual.time.now_ms
        await producer.send_batch([b"x"] * 60, at=[now + number * DAY_MS // 2 for number in range(1, 61)])
        await virtual.time.advance(timedelta(days=31))
        await eventually(lambda: handle.stats.done == 60, within=WITHIN)
    assert late == [0] * 60 or (len(late) == 60 and max(late) <= 2), late
    assert min(late) >= 0


async def test_the_time_stops_at_the_requested_time(virtual: VirtualBroker) -> None:
    before = virtual.time.now
    await virtual.time.advance(0.5)
    await virtual.time.advance(timedelta(days=400))
    assert virtual.time.now - before == timedelta(days=400, milliseconds=500)


async def test_a_lease_that_is_held_is_extended_while_the_time_moves(virtual: VirtualBroker) -> None:
    """G3: a jump over the end of a lease would take the message from a healthy consumer."""
    async with virtual.client.producer(TOPIC) as producer, virtual.client.consumer(TOPIC) as consumer:
        await producer.send(b"x")
        lease = await anext(consumer)
        await virtual.time.advance(3_600)
        assert not lease.expired
        await lease.delete()


async def test_a_lease_that_is_not_extended_expires_at_its_end(virtual: VirtualBroker) -> None:
    async with virtual.client.producer(TOPIC) as producer:
        await producer.send(b"x")
        async with virtual.client.consumer(TOPIC, lease=10, auto_extend=False) as consumer:
            lease = await anext(consumer)
            await virtual.time.advance(9)
            assert not lease.expired
            again = asyncio.ensure_future(anext(consumer))
            await virtual.time.advance(3)
            assert (await asyncio.wait_for(again, patient(WITHIN))).attempts == 2


async def test_schedules_run_at_each_of_their_times(virtual: VirtualBroker) -> None:
    """U24: after a single jump, `missed` would leave out all occurrences but the last."""
    await virtual.client.create_topic("jobs", kind="cron")
    cron = virtual.client.cron("jobs")
    await cron.add("hourly", "@hourly", missed="skip")
    times = await cron.next("hourly", 30)
    seen: list[object] = []

    @virtual.client.worker("jobs")
    async def handle(lease: dejaq.Lease) -> None:
        seen.append(lease.at)

    async with handle.running():
        await virtual.time.advance(times[-1] - virtual.time.now + timedelta(seconds=1))
        await eventually(lambda: len(seen) == 30, within=WITHIN)
    assert seen == times
