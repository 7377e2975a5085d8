"""Load balancing over brokers: consumers at different brokers share a topic's load and take over for each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from statistics import quantiles

import dejaq
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import SystemClock
from tests.integration.cluster.crew import crew_of
from tests.pace import measured, take_time

TOPIC = "work"
NAMES = ("fast", "slow", "stuck", "well")
WITHIN = 30.0
# The time that passes is the duration of the work. No test waits with it for a result.
WORK = SystemClock()


async def apart(client: dejaq.Client) -> None:
    """Check that the consumers are connected to different brokers."""
    brokers = [one.broker for one in (await client.info()).clients if one.who in NAMES]
    assert len(brokers) == 2
    assert len(set(brokers)) == len(brokers), brokers


async def evenness() -> float:
    """The ratio of the messages that both consumers got, divided by the ratio of their speeds: 1 is a fair share."""
    done: Counter[str] = Counter()
    spent: Counter[str] = Counter()

    async def run(consumer: dejaq.Consumer, seconds: float) -> None:
        async for lease in consumer:
            began = WORK.now_us()
            await take_time(seconds)
            await lease.delete()
            done[consumer.name] += 1
            spent[consumer.name] += WORK.now_us() - began

    async with crew_of("a", "b") as crew, dejaq.connect(crew.urls[0]) as client:
        await client.create_topic(TOPIC, buckets=64)
        async with (
            client.consumer(TOPIC, name="fast", max_in_flight=20) as fast,
            client.consumer(TOPIC, name="slow", max_in_flight=20) as slow,
            client.producer(TOPIC) as producer,
        ):
            await apart(client)
            tasks = [asyncio.ensure_future(run(fast, 0.01)), asyncio.ensure_future(run(slow, 0.02))]
            # Each batch goes to one bucket.
            for _ in range(60):
                await producer.send_batch([b"x"] * 8)

            async def empty() -> bool:
                return await client.count(TOPIC) == 0

            await eventually(empty, within=WITHIN, what="all messages are processed")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    faster = (spent["slow"] / done["slow"]) / (spent["fast"] / done["fast"])
    return done["fast"] / done["slow"] / faster


async def test_a_consumer_half_as_fast_at_another_broker_gets_about_half() -> None:
    found = await measured(evenness, lambda one: 0.7 <= one <= 1.45)
    assert 0.7 <= found[-1] <= 1.45, found


async def test_a_stuck_consumer_at_another_broker_does_not_delay_other_messages() -> None:
    """G8: due messages behind the stuck consumer go to consumers of other brokers."""
    late: list[int] = []

    async def run(consumer: dejaq.Consumer) -> None:
        async for lease in consumer:
            late.append(consumer.now_ms() - lease.ts)
            await lease.delete()

    async with crew_of("a", "b") as crew, AsyncExitStack() as stack:
        client = await stack.enter_async_context(dejaq.connect(crew.urls[0]))
        await client.create_topic(TOPIC, buckets=64)
        stuck = await stack.enter_async_context(client.consumer(TOPIC, name="stuck", max_in_flight=5, lease=60))
        well = await stack.enter_async_context(client.consumer(TOPIC, name="well"))
        producer = await stack.enter_async_context(client.producer(TOPIC))
        await apart(client)
        # The stuck consumer takes as many messages as it can and settles none.
        for _ in range(50):
            await producer.send_batch([b"x"] * 4)
        await asyncio.wait_for(anext(stuck), patient(WITHIN))
        running = asyncio.ensure_future(run(well))
        await eventually(
            lambda: len(late) >= 195,
            within=WITHIN,
            what="the other consumer got all messages that the stuck one does not hold",
        )

        async def lateness_ms() -> float:
            late.clear()
            for _ in range(50):
                await producer.send_batch([b"x"] * 5, delay=0.05)
                await take_time(0.02)
            await eventually(lambda: len(late) >= 250, within=WITHIN, what="all messages were delivered")
            return quantiles(late, n=100)[97]

        found = await measured(lateness_ms, lambda one: one < 500)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert found[-1] < 500, found
