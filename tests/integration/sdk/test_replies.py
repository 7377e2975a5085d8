"""Replies: a producer asks, a consumer answers in the transaction that deletes the request; unread replies expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.broker.calls.replies import CHUNK
from dejaq.domain.changes import Cancel, Change
from dejaq.domain.context import CallContext
from dejaq.testing.waiting import eventually, patient
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
    """G10: the answer is created in the transaction that deletes the request."""
    answering = asyncio.ensure_future(answer(consumer, 1))
    reply = await asyncio.wait_for(producer.request(b"hello", headers={"k": "v"}), patient(10))
    await answering
    assert (reply.body, dict(reply.headers)) == (b"HELLO", {"by": "worker-1"})
    assert await client.count(TOPIC) == 0
    assert await client.count(REPLIES) == 0, "the reply was read"


async def test_each_request_gets_its_own_answer(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer
) -> None:
    answering = asyncio.ensure_future(answer(consumer, 20))
    async with client.producer(TOPIC, group="other") as other:
        asked = [(producer if n % 2 else other).request(b"n%d" % n) for n in range(20)]
        replies = await asyncio.wait_for(asyncio.gather(*asked), patient(20))
    await answering
    assert [reply.body for reply in replies] == [b"N%d" % n for n in range(20)]


async def test_a_missing_reply_is_reported_and_a_late_reply_can_be_read(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer, clock: VirtualClock
) -> None:
    with pytest.raises(dejaq.Indefinite, match="no reply to late within"):
        await producer.request(b"slow", id="late", timeout=0.05)
    await answer(consumer, 1)
    reply = await producer.reply_to("late", timeout=5)
    assert reply.body == b"SLOW"


async def test_a_reply_that_no_producer_waits_for_expires(
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


async def test_unread_messages_are_removed_in_one_pass_and_in_small_commits(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 unread replies blocked the event loop for 9.5 s: each page of the sweep read all remaining messages."""
    async with dejaq.Broker(tmp_path, clock=clock, drain_ms=0) as broker, dejaq.connect(broker, clock=clock) as client:
        await client.create_topic("short", expires=True, buckets=4)
        for group in ("a", "b"):
            async with client.producer("short", group=group) as producer:
                due = clock.now_ms() + 2_000
                await asyncio.gather(*(producer.send(b"x", id=f"{group}-{n}", at=due + n) for n in range(300)))
                await producer.send(b"x", id=f"{group}-later", delay=60)
        storage = broker.central.storage
        passes, commits = 0, list[int]()
        snapshot, apply = storage.snapshot, storage.apply

        async def counted(*arguments: Any) -> Any:
            nonlocal passes
            passes += 1
            return await snapshot(*arguments)

        async def measured(changes: Sequence[Change], now: int, context: CallContext) -> Any:
            commits.extend(len(change.ids) for change in changes if isinstance(change, Cancel))
            return await apply(changes, now, context)

        async def refused(*_: Any) -> Any:
            raise AssertionError("a page reads everything that is due")

        monkeypatch.setattr(storage, "snapshot", counted)
        monkeypatch.setattr(storage, "apply", measured)
        monkeypatch.setattr(storage, "browse", refused)
        await clock.advance(3_000)
        await broker.central.replies.sweep(broker.central.catalog.live("short"))
        assert await client.count("short") == 2
        # The broker runs the same sweep by itself.
        assert passes <= 5
        assert max(commits) <= CHUNK


@pytest.mark.parametrize(("keep", "kept"), [("first", b"one"), ("last", b"two")])
async def test_one_of_two_replies_is_kept(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer, keep: str, kept: bytes
) -> None:
    """The id may be used again when its message is deleted, while the reply still exists."""
    with pytest.raises(dejaq.Indefinite):
        await producer.request(b"one", id="same", timeout=0.05, keep=keep)
    lease = await anext(consumer)
    await lease.delete(reply=lease.body)
    await producer.send(b"two", id="same", headers=lease.headers)
    lease = await anext(consumer)
    await lease.delete(reply=lease.body)
    assert (await producer.reply_to("same", timeout=5)).body == kept
    assert await client.count(TOPIC) == 0


@pytest.mark.parametrize("when", [{"delay": 1.0}, {}, {"at": 1_700_000_000_000}])
async def test_a_request_may_be_repeated_with_its_id(
    clock: VirtualClock, producer: dejaq.Producer, consumer: dejaq.Consumer, when: dict[str, float]
) -> None:
    """Also later: neither the time of a delay nor the end of the reply is compared."""
    with pytest.raises(dejaq.Indefinite):
        await producer.request(b"once", id="same", timeout=0.05, **when)  # type: ignore[arg-type]
    await clock.advance(10)
    again = asyncio.create_task(producer.request(b"once", id="same", timeout=0.05, **when))  # type: ignore[arg-type]
    with pytest.raises(dejaq.Indefinite):
        await again
    await clock.advance(2_000)
    lease = await asyncio.wait_for(anext(consumer), patient(10))
    await lease.delete(reply=b"one reply")
    assert (await producer.reply_to("same", timeout=5)).body == b"one reply"


async def test_a_consumer_that_lost_its_lease_cannot_reply(
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
            await producer.request(b"x", **bad)
    assert await client.count(TOPIC) == 0


async def test_a_topic_of_that_name_that_does_not_expire_is_refused(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    await client.create_topic(REPLIES)
    with pytest.raises(dejaq.TopicExists):
        await producer.request(b"x")
