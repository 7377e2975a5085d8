"""Replies: a producer asks, a consumer answers as it deletes, and what nobody reads expires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import dejaq
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC

REPLIES = f"{TOPIC}.replies"


@pytest.fixture
async def consumer(client: dejaq.Client) -> AsyncIterator[dejaq.Consumer]:
    async with client.consumer(TOPIC, name="worker-1") as consumer:
        yield consumer


async def answer(consumer: dejaq.Consumer, count: int) -> None:
    for _ in range(count):
        lease = await anext(consumer)
        await lease.delete(reply=lease.body.upper(), headers={"by": "worker-1"})


async def test_a_request_is_answered(client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer) -> None:
    """G10: the answer comes in the same transaction in which the message goes."""
    answering = asyncio.ensure_future(answer(consumer, 1))
    reply = await asyncio.wait_for(producer.request(b"hello", headers={"k": "v"}), 10)
    await answering
    assert (reply.body, dict(reply.headers)) == (b"HELLO", {"by": "worker-1"})
    assert await client.count(TOPIC) == 0
    assert await client.count(REPLIES) == 0, "it was read"


async def test_each_request_gets_its_own_answer(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer
) -> None:
    answering = asyncio.ensure_future(answer(consumer, 20))
    async with client.producer(TOPIC, group="other") as other:
        asked = [(producer if n % 2 else other).request(b"n%d" % n) for n in range(20)]
        replies = await asyncio.wait_for(asyncio.gather(*asked), 20)
    await answering
    assert [reply.body for reply in replies] == [b"N%d" % n for n in range(20)]


async def test_without_a_reply_it_says_so_and_a_late_one_can_be_read(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer, clock: VirtualClock
) -> None:
    with pytest.raises(dejaq.Indefinite, match="no reply to late within"):
        await producer.request(b"slow", id="late", timeout=0.05)
    await answer(consumer, 1)
    reply = await producer.reply_to("late", timeout=5)
    assert reply.body == b"SLOW"


async def test_a_reply_nobody_waits_for_expires(
    client: dejaq.Client,
    producer: dejaq.Producer,
    consumer: dejaq.Consumer,
    broker: dejaq.Broker,
    clock: VirtualClock,
) -> None:
    with pytest.raises(dejaq.Indefinite):
        await producer.request(b"slow", timeout=0.05)
    await answer(consumer, 1)
    assert await client.count(REPLIES) == 1
    for _ in range(4):
        await clock.advance(1_000)

    async def gone() -> bool:
        return await client.count(REPLIES) == 0

    await eventually(gone, within=10, what="the reply has expired")


@pytest.mark.parametrize(("keep", "kept"), [("first", b"one"), ("last", b"two")])
async def test_of_two_replies_one_is_kept(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer, keep: str, kept: bytes
) -> None:
    """The id may be used again once its message is gone, while the reply is still there."""
    with pytest.raises(dejaq.Indefinite):
        await producer.request(b"one", id="same", timeout=0.05, keep=keep)
    lease = await anext(consumer)
    await lease.delete(reply=lease.body)
    await producer.send(b"two", id="same", headers=lease.headers)
    lease = await anext(consumer)
    await lease.delete(reply=lease.body)
    assert (await producer.reply_to("same", timeout=5)).body == kept
    assert await client.count(TOPIC) == 0


async def test_a_lost_lease_answers_nothing(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    async with client.consumer(TOPIC, name="slow", lease=1, auto_extend=False) as slow:
        with pytest.raises(dejaq.Indefinite):
            await producer.request(b"x", timeout=0.05)
        lease = await anext(slow)
        await clock.advance(2_000)
        with pytest.raises(dejaq.Conflict) as refused:
            await lease.delete(reply=b"too late")
    assert refused.value.code is dejaq.Code.LEASE_LOST
    assert await client.count(REPLIES) == 0


async def test_a_message_that_wants_no_reply_is_only_deleted(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer
) -> None:
    await producer.send(b"x")
    lease = await anext(consumer)
    assert not lease.wants_reply
    await lease.delete(reply=b"for nobody")
    assert await client.count(TOPIC) == 0


async def test_expiring_topics_have_no_consumers_and_bad_requests_are_refused(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    await client.create_topic("short", expires=True)
    with pytest.raises(dejaq.InvalidArgument, match="expire"):
        async with client.consumer("short"):
            pass
    for bad in ({"keep": "both"}, {"timeout": 0}):
        with pytest.raises(dejaq.InvalidArgument):
            await producer.request(b"x", **bad)  # type: ignore[arg-type]
    assert await client.count(TOPIC) == 0


async def test_a_topic_of_that_name_that_does_not_expire_is_refused(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    await client.create_topic(REPLIES)
    with pytest.raises(dejaq.TopicExists):
        await producer.request(b"x")
