"""Clients of a cluster: spread over the brokers, and taken from one that stops or fails, without an error."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import dejaq
from dejaq.broker.cluster import cluster, spreading
from dejaq.testing.waiting import eventually
from tests.integration.cluster.crew import Crew, crew_of


async def test_the_consumers_of_a_topic_are_spread_over_the_brokers():
    async with crew_of("a", "b", "c") as crew, AsyncExitStack() as stack:
        # All come to one broker, and know no other.
        client = await stack.enter_async_context(dejaq.connect(crew.urls[0]))
        await client.create_topic("mail", buckets=12)
        for number in range(6):
            await stack.enter_async_context(client.consumer("mail", name=f"c{number}"))
        brokers = [one.broker for one in (await client.info()).clients]
        assert sorted(brokers) == ["a", "a", "b", "b", "c", "c"]


async def test_a_client_that_knows_one_broker_outlives_it():
    async with crew_of("a", "b") as crew, dejaq.connect(crew.urls[0]) as client:
        await client.create_topic("mail")
        async with client.producer("mail") as producer:
            await producer.send(b"x", id="1")
            await crew.brokers.pop("a").stop()
            await producer.send(b"x", id="2")
        assert await client.count("mail") == 2


async def test_a_rolling_restart_is_no_error_for_anybody():
    async with crew_of("a", "b", "c", drain_ms=500) as crew, dejaq.connect(crew.url) as client:
        await client.create_topic("mail")
        sent: set[str] = set()
        seen: list[str] = []
        stop = asyncio.Event()

        async def produce() -> None:
            async with client.producer("mail") as producer:
                while not stop.is_set():
                    sent.add(await producer.send(b"x", delay=0.05))
                    await eventually(lambda: len(sent) - len(seen) < 50, within=10, what="consumers keep up")

        async def consume(name: str) -> None:
            async with client.consumer("mail", name=name) as consumer:
                async for lease in consumer:
                    seen.append(lease.id)
                    await lease.delete()

        producing = asyncio.create_task(produce())
        consuming = [asyncio.create_task(consume(f"c{number}")) for number in range(3)]
        try:
            for name in ("a", "b", "c"):
                await renew(crew, name)
                more = len(seen) + 50
                await eventually(lambda more=more: len(seen) >= more, within=10, what="delivery goes on")
            stop.set()
            await producing
            await eventually(lambda: len(seen) >= len(sent), within=10, what="everything sent is seen")
            assert sorted(seen) == sorted(sent), "each once, and nobody was told of an error"
        finally:
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)


async def renew(crew: Crew, name: str) -> None:
    """Stop a broker as an administrator would, and start it again at its address."""
    old = crew.brokers[name]
    address = old.address
    await old.stop()
    await crew.make(name, listen=address, drain_ms=500).start()
    await crew.gathered()


async def test_clients_come_back_to_a_broker_that_has_come_back(monkeypatch: pytest.MonkeyPatch):
    """Until the brokers are even again, without an error and without a message twice."""
    monkeypatch.setattr(spreading, "STEADY_SECONDS", 0.2)
    monkeypatch.setattr(spreading, "SETTLE_SECONDS", 1.0)
    monkeypatch.setattr(spreading, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(cluster, "TELL_SECONDS", 0.05)
    async with crew_of("a", "b", drain_ms=500) as crew, AsyncExitStack() as stack:
        client = await stack.enter_async_context(dejaq.connect(crew.url))
        await client.create_topic("mail", buckets=8)
        sent: list[str] = []
        seen: list[str] = []

        async def consume(consumer: dejaq.Consumer) -> None:
            async for lease in consumer:
                seen.append(lease.id)
                await lease.delete()

        consumers = [await stack.enter_async_context(client.consumer("mail", name=f"c{n}")) for n in range(2)]
        stack.push_async_callback(cancelled, [asyncio.create_task(consume(consumer)) for consumer in consumers])
        producers = [await stack.enter_async_context(client.producer("mail", group=f"p{n}")) for n in range(2)]

        def consumers_at(broker: str) -> list[bool]:
            return sorted(session.consumer is not None for session in crew.brokers[broker].central.greeter)

        async def even() -> bool:
            sent.extend([await producer.send(b"x", delay=0.02) for producer in producers])
            return consumers_at("a") == consumers_at("b") == [False, True]

        address = crew.brokers["b"].address
        await crew.brokers["b"].stop()
        await eventually(lambda: len(consumers_at("a")) == 4, within=10, what="everybody goes to the one that stays")
        await crew.make("b", listen=address, drain_ms=500).start()
        await crew.gathered()
        await eventually(even, within=20, what="each has one consumer and one producer")
        await eventually(lambda: len(seen) >= len(sent), within=20, what="everything sent is seen")
        assert sorted(seen) == sorted(sent), "each once, and nobody was told of an error"


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks; raises what one of them failed with before."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


@pytest.mark.parametrize("follow", [True, False])
async def test_a_client_that_follows_no_advice_is_not_asked_to_move(follow: bool):
    async with crew_of("a", "b") as crew, dejaq.connect(crew.urls[0], follow=follow) as client:
        await client.create_topic("mail")
        async with client.producer("mail"), client.consumer("mail"):
            sessions = [session for broker in crew.brokers.values() for session in broker.central.greeter]
            assert [session.movable for session in sessions] == [follow, follow]
