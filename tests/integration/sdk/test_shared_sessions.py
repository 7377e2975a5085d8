"""Producers of one client with the same topic and group share a session, and what they send at once shares frames."""

from __future__ import annotations

import asyncio
import gc

import pytest

import dejaq
from dejaq.errors import Code, Missing, NoBroker, OutOfState
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def test_sends_of_many_producers_share_a_session_and_a_frame(
    client: dejaq.Client, wire: CuttingTransport
) -> None:
    producers = [client.producer(TOPIC) for _ in range(10)]
    await asyncio.gather(*(producer.open() for producer in producers))
    sent = await asyncio.gather(*(one.send(b"x", id=f"m-{place}") for place, one in enumerate(producers)))
    assert sent == [f"m-{place}" for place in range(10)]
    assert wire.sessions == 1
    assert [len(frame.create.ts) for frame in wire.frames if frame.HasField("create")] == [10]
    assert await client.count(TOPIC) == 10
    await asyncio.gather(*(producer.close() for producer in producers))


async def test_each_caller_gets_the_answer_to_its_own_message(client: dejaq.Client) -> None:
    async with client.producer(TOPIC) as one, client.producer(TOPIC) as two:
        await one.send(b"first", id="taken", at=2_000_000_000_000)
        answers = await asyncio.gather(
            one.send(b"a", id="a"),
            two.send(b"other", id="taken", at=2_000_000_000_000),
            two.send(b"c", id="c"),
            return_exceptions=True,
        )
    assert [answer.code if isinstance(answer, dejaq.DejaqError) else answer for answer in answers] == [
        "a",
        Code.ID_TAKEN,
        "c",
    ]


async def test_producers_of_another_group_or_topic_have_a_session_of_their_own(
    client: dejaq.Client, wire: CuttingTransport
) -> None:
    await client.create_topic("other")
    async with client.producer(TOPIC) as one, client.producer(TOPIC, group="g") as two, client.producer("other"):
        assert wire.sessions == 3
        await one.send(b"x", id="mine", delay=60)
        with pytest.raises(dejaq.Conflict, match="NOT_OWNER"):
            await two.cancel("mine")


async def test_a_producer_that_closes_leaves_the_others_their_session(
    client: dejaq.Client, wire: CuttingTransport
) -> None:
    async with client.producer(TOPIC) as stays:
        async with client.producer(TOPIC) as leaves:
            sending = asyncio.ensure_future(leaves.send(b"x"))
            await asyncio.sleep(0)
        assert sending.done(), "a producer that closes waits for its sends"
        with pytest.raises(OutOfState, match="the producer is closed"):
            await leaves.send(b"x")
        with pytest.raises(OutOfState, match="open already"):
            await stays.open()
        await stays.send(b"y")
    async with client.producer(TOPIC) as later:
        await later.send(b"z")
    assert wire.sessions == 2
    assert await client.count(TOPIC) == 3


async def test_a_producer_that_opens_later_knows_the_topic_as_it_is_now(client: dejaq.Client) -> None:
    async with client.producer(TOPIC):
        await client.edit_topic(TOPIC, max_body_bytes=4 * 1024 * 1024)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x" * (2 * 1024 * 1024), id="large")
    assert await client.count(TOPIC) == 1


async def test_a_topic_that_was_created_again_gets_a_new_session(client: dejaq.Client, clock: VirtualClock) -> None:
    async with client.producer(TOPIC) as before:
        await client.delete_topic(TOPIC)
        with pytest.raises(Missing):
            await before.send(b"x")
        with pytest.raises(Missing):
            await client.producer(TOPIC).open()
        await clock.advance(1)
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as after:
            await after.send(b"y")
    assert await client.count(TOPIC) == 1


async def test_a_session_that_cannot_be_opened_is_refused_to_all_who_wait(
    client: dejaq.Client, wire: CuttingTransport, clock: VirtualClock
) -> None:
    async with dejaq.connect(wire, clock=clock, deadline=0.3) as impatient:
        wire.down = True
        producers = [impatient.producer(TOPIC) for _ in range(3)]
        opening = [asyncio.ensure_future(producer.open()) for producer in producers]
        await asyncio.sleep(0)
        opening[0].cancel()
        answers = await asyncio.gather(*opening, return_exceptions=True)
        assert [type(answer) for answer in answers] == [asyncio.CancelledError, NoBroker, NoBroker]
        assert answers[1] is not answers[2]
        wire.down = False
        async with producers[1]:
            await producers[1].send(b"x")
    assert await client.count(TOPIC) == 1


async def test_a_client_closes_producers_that_nobody_else_remembers(
    wire: CuttingTransport, clock: VirtualClock
) -> None:
    async with dejaq.connect(wire, clock=clock, deadline=5.0) as client:
        await client.create_topic(TOPIC)
        producer = client.producer(TOPIC)
        await producer.open()
        session = producer._session
        del producer
        gc.collect()
    assert session.connection.is_closed
