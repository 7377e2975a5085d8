"""Load balancing over brokers: consumers at different brokers are weighed together and stand in for each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from statistics import quantiles

import dejaq
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock
from tests.integration.cluster.crew import crew_of

TOPIC = "work"
NAMES = ("fast", "slow", "stuck", "well")
WITHIN = 30.0
# What passes is the work's time, and nothing is waited for by it.
WORK = SystemClock()


async def apart(client: dejaq.Client) -> None:
    """The consumers sit at different brokers."""
    brokers = [one.broker for one in (await client.info()).clients if one.who in NAMES]
    assert len(brokers) == 2
    assert len(set(brokers)) == len(brokers), brokers


async def test_a_consumer_half_as_fast_at_another_broker_gets_about_half() -> None:
    done: Counter[str] = Counter()
    spent: Counter[str] = Counter()

    async def run(consumer: dejaq.Consumer, seconds: float) -> None:
        async for lease in consumer:
            began = WORK.now_us()
            await WORK.sleep(seconds)
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
            # A batch is of one bucket.
            for _ in range(60):
                await producer.send_batch([b"x"] * 8)

            async def empty() -> bool:
                return await client.count(TOPIC) == 0

            await eventually(empty, within=WITHIN, what="everything is done")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    faster = (spent["slow"] / done["slow"]) / (spent["fast"] / done["fast"])
    assert 0.7 <= done["fast"] / done["slow"] / faster <= 1.45, (done, faster)


async def test_one_that_is_stuck_at_another_broker_delays_nobody_s_messages() -> None:
    """G8: what is due behind it goes to consumers of other brokers."""
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
        # It takes what it can and settles nothing.
        for _ in range(50):
            await producer.send_batch([b"x"] * 4)
        await asyncio.wait_for(anext(stuck), WITHIN)
        running = asyncio.ensure_future(run(well))
        await eventually(lambda: len(late) >= 195, within=WITHIN, what="the other has all but what the stuck one holds")
        late.clear()
        for _ in range(50):
            await producer.send_batch([b"x"] * 5, delay=0.05)
            await WORK.sleep(0.02)
        await eventually(lambda: len(late) >= 250, within=WITHIN, what="all of them came")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert quantiles(late, n=100)[97] < 500, sorted(late)[-10:]
