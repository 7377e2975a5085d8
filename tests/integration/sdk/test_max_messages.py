"""A consumer with `max_messages`."""

from __future__ import annotations

import asyncio

import dejaq
from dejaq.testing.waiting import eventually, patient
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def _drain(consumer: dejaq.Consumer) -> int:
    return len([lease async for lease in consumer])


async def test_a_consumer_that_has_taken_its_maximum_holds_nothing_more(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    """The broker would lease to it otherwise, and other consumers would wait until it is closed or loses its lease."""
    await producer.send(b"again")
    async with client.consumer(TOPIC, name="one", max_messages=1) as full:
        lease = await anext(full)
        await eventually(lambda: "unsubscribe" in wire.sent, within=5, what="the consumer has left the subscription")
        await lease.release(delay=0)
        assert full.paused
        await full.resume()
        assert await client.count(TOPIC, status="available") == 1
        async with client.consumer(TOPIC, name="two", max_messages=1) as other:
            assert (await other.take(1, timeout=patient(5))).attempts == [2]


async def test_every_task_of_a_consumer_ends_when_it_has_taken_its_maximum(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    async with client.consumer(TOPIC, name="one", max_messages=1) as consumer:
        tasks = [asyncio.ensure_future(_drain(consumer)) for _ in range(2)]
        await asyncio.sleep(0)
        await producer.send(b"x")
        taken = await asyncio.wait_for(asyncio.gather(*tasks), patient(5))
    assert sorted(taken) == [0, 1]
