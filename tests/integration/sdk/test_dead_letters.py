"""Messages that are leased too often or rejected: moved to the dead-letter topic with their history, and moved back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dejaq
from dejaq.broker.metrics import DEAD_LETTERED
from dejaq.domain import dead_letter
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.consuming.settler import Settlement
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.cutting import CuttingTransport

TOPIC, DEAD = "limited", "limited.dead"


@pytest.fixture
async def limited(client: dejaq.Client) -> dejaq.TopicInfo:
    return await client.create_topic(TOPIC, buckets=4, max_attempts=2)


async def reject(client: dejaq.Client, *ids: str, reason: str = "no use", topic: str = TOPIC) -> None:
    async with client.producer(topic) as producer, client.consumer(topic, max_messages=len(ids)) as consumer:
        for one in ids:
            await producer.send(one.encode(), id=one)
        async for lease in consumer:
            await lease.reject(reason)


async def ids_of(client: dejaq.Client, topic: str = TOPIC, **where: Any) -> list[str]:
    return [message.id async for page in client.dead_letters(topic).browse(**where) for message in page]


async def test_the_dead_letter_topic_is_created_with_the_topic(client: dejaq.Client, limited: dejaq.TopicInfo) -> None:
    assert (limited.settings.max_attempts, limited.settings.dead_letter) == (2, "")
    made = await client.describe_topic(DEAD)
    assert (made.settings.buckets, made.settings.max_attempts) == (4, 0)


async def test_a_message_that_is_never_settled_becomes_a_dead_letter_and_others_continue(
    client: dejaq.Client, limited: dejaq.TopicInfo, clock: VirtualClock, broker: dejaq.Broker
) -> None:
    """G4: a message leaves its topic only by delete, cancel or a move to the dead-letter topic."""
    seen: list[tuple[str, int]] = []
    async with client.producer(TOPIC) as producer, client.producer(DEAD) as other:
        await producer.send(b"poison", id="poison", priority=3, headers={"k": "v"})
        await other.send(b"there", id="there")
        async with client.consumer(TOPIC, lease=1.0, auto_extend=False, name="w") as consumer:

            async def work() -> None:
                async for lease in consumer:
                    seen.append((lease.id, lease.attempts))
                    if lease.id != "poison":
                        await lease.delete()

            task = asyncio.ensure_future(work())
            for attempt in (1, 2):
                await eventually(lambda: len(seen) == attempt, within=10)
                await clock.advance(2_000)
            await eventually(lambda: broker.central.metrics.value(DEAD_LETTERED, TOPIC, "max_attempts"), within=10)
            await producer.send(b"fine", id="fine")
            await eventually(lambda: len(seen) == 3, within=10)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert seen == [("poison", 1), ("poison", 2), ("fine", 1)]
    [message] = await client.get(DEAD, ["poison"])
    assert message is not None
    assert (message.body, message.priority, message.attempts) == (b"poison", 3, 0)
    assert message.headers["k"] == "v"
    assert (message.headers[dead_letter.REASON], message.headers[dead_letter.ATTEMPTS]) == (dead_letter.EXHAUSTED, "2")
    assert message.headers[dead_letter.CONSUMER] == "w"
    assert await client.count(TOPIC) == 0
    assert await ids_of(client) == ["poison"]


async def test_a_rejection_needs_no_limit_and_creates_the_dead_letter_topic(client: dejaq.Client) -> None:
    await client.create_topic("plain", buckets=2)
    assert await ids_of(client, "plain") == []
    assert await client.dead_letters("plain").count() == 0
    await reject(client, "a", "b", reason="not JSON", topic="plain")
    assert await ids_of(client, "plain") == ["a", "b"]
    assert await ids_of(client, "plain", reason="not JSON") == ["a", "b"]
    assert await ids_of(client, "plain", reason="other") == []
    assert (await client.describe_topic("plain.dead")).available == 2


async def test_a_batch_rejects_by_position(client: dejaq.Client, limited: dejaq.TopicInfo) -> None:
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC) as consumer:
        await producer.send_batch([b"0", b"1", b"2"], ids=["m0", "m1", "m2"])
        batch = await anext(aiter(consumer.batches(10)))
        place = batch.ids.index("m1")
        assert (await batch.reject("odd", [place])).ok
        with pytest.raises(dejaq.Conflict) as lost:
            await batch.delete()
        assert lost.value.failed == {"m1": dejaq.Code.LEASE_LOST}
    assert await ids_of(client) == ["m1"]


@pytest.mark.parametrize("reason", ["", "x" * 501])
async def test_the_length_of_a_reason_is_limited(client: dejaq.Client, limited: dejaq.TopicInfo, reason: str) -> None:
    with pytest.raises(dejaq.InvalidArgument, match="a reason has 1 to 500"):
        await reject(client, "a", reason=reason)


async def test_a_rejection_whose_answer_was_lost_counts_as_done(
    client: dejaq.Client, limited: dejaq.TopicInfo, wire: CuttingTransport
) -> None:
    """G6: a change whose outcome an outage left unknown is resolved."""
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="w") as consumer:
        await producer.send(b"", id="a")
        lease = await anext(aiter(consumer))
        wire.cut("settle", done=True)
        await lease.reject("no use")
    assert await ids_of(client) == ["a"]


async def test_dead_letters_are_moved_back_by_id_and_by_filter(
    client: dejaq.Client, limited: dejaq.TopicInfo, clock: VirtualClock
) -> None:
    await reject(client, "a", "b", reason="first")
    await reject(client, "c", reason="second")
    letters = client.dead_letters(TOPIC)
    reported: list[int] = []
    with pytest.raises(dejaq.Missing) as missing:
        await letters.purge(["nobody", "none"])
    assert missing.value.failed == {"nobody": dejaq.Code.NOT_FOUND, "none": dejaq.Code.NOT_FOUND}
    back = await letters.redrive(["a", "nobody"], progress=lambda done, _: reported.append(done), results=True)
    assert (back.done, back.refused, back.examples) == (
        1,
        {dejaq.Code.NOT_FOUND: 1},
        {"nobody": dejaq.Code.NOT_FOUND},
    )
    assert reported == [2]
    with pytest.raises(dejaq.Missing) as missing:
        await letters.redrive(["a"])
    assert missing.value.failed == {"a": dejaq.Code.NOT_FOUND}
    assert (await letters.redrive(reason="second")).done == 1
    assert await ids_of(client) == ["b"]
    [a, c] = await client.get(TOPIC, ["a", "c"])
    assert a is not None
    assert c is not None
    assert (a.attempts, dict(a.headers), a.ts) == (0, {}, clock.now_ms())
    assert (await letters.purge()).done == 1
    assert await letters.count() == 0
    assert (await letters.redrive()).matched == 0


async def test_dead_letters_of_two_topics_in_one_are_kept_apart(client: dejaq.Client) -> None:
    for name in ("one", "two"):
        await client.create_topic(name, buckets=2, dead_letter="shared")
        await reject(client, "same", topic=name)
    assert len(await ids_of(client, "one")) == len(await ids_of(client, "two")) == 1
    assert await client.count("shared") == 2
    assert (await client.dead_letters("two").redrive()).done == 1
    assert [message.id async for page in client.browse("two") for message in page] == ["same"]
    assert await client.count("one") == 0
    assert len(await ids_of(client, "one")) == 1


async def test_redriving_to_a_deleted_topic_loses_nothing(client: dejaq.Client, limited: dejaq.TopicInfo) -> None:
    await reject(client, "a")
    await client.delete_topic(TOPIC)
    letters = client.dead_letters(TOPIC)
    with pytest.raises(dejaq.Missing, match="the dead letters stay in 'limited"):
        await letters.redrive()
    assert await ids_of(client) == ["a"]
    await client.create_topic("other", buckets=1)
    assert (await letters.redrive(to="other")).done == 1
    [found] = await client.get("other", ["a"])
    assert found is not None


async def test_the_dead_letters_of_an_unknown_topic_are_an_error(client: dejaq.Client) -> None:
    for work in (ids_of(client, "nowhere"), client.dead_letters("nowhere").count()):
        with pytest.raises(dejaq.Missing, match="nowhere"):
            await work


async def test_a_deleted_dead_letter_topic_is_created_again(client: dejaq.Client, limited: dejaq.TopicInfo) -> None:
    await client.delete_topic(DEAD)
    await reject(client, "a")
    assert await ids_of(client) == ["a"]


@pytest.mark.parametrize(
    "settings",
    [
        {"dead_letter": "self"},
        {"dead_letter": "a b"},
        {"max_attempts": 1_000_001},
        {"expiry_backoff": "sometimes"},
        {"expiry_backoff": "fixed:-1s"},
    ],
)
async def test_invalid_settings_are_refused(client: dejaq.Client, settings: dict[str, Any]) -> None:
    with pytest.raises(dejaq.InvalidArgument) as refused:
        await client.create_topic("self", **settings)
    assert refused.value.code is dejaq.Code.INVALID_SETTING


async def test_a_topic_name_too_long_for_a_dead_letter_topic_is_refused(client: dejaq.Client) -> None:
    with pytest.raises(dejaq.InvalidArgument, match="give a dead_letter"):
        await client.create_topic("x" * 125, max_attempts=1)
    await client.create_topic("x" * 125, max_attempts=1, dead_letter="short")


async def test_a_message_whose_lease_expired_waits_for_its_back_off(client: dejaq.Client, clock: VirtualClock) -> None:
    await client.create_topic("patient", buckets=1, expiry_backoff="fixed:5s")
    async with client.producer("patient") as producer:
        await producer.send(b"", id="a")
        async with client.consumer("patient", lease=1.0, auto_extend=False) as consumer:
            first = await anext(aiter(consumer))
            start = clock.now_ms()
            handed: asyncio.Future[dejaq.Lease] = asyncio.ensure_future(anext(aiter(consumer)))
            while not handed.done():
                await clock.advance(500)
            second = await handed
            assert (second.id, second.attempts, first.expired) == ("a", 2, True)
            assert clock.now_ms() - start >= 6_000
            assert second.ts >= start + 6_000
            await second.delete()


async def test_a_rejection_keeps_the_error_and_its_traceback(client: dejaq.Client, limited: dejaq.TopicInfo) -> None:
    """U24: a dead letter had a reason of one line, and nothing about the error."""

    def fail(depth: int) -> None:
        if not depth:
            raise ValueError("too large " * 300 + "\udc80")
        fail(depth - 1)

    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, max_messages=2) as consumer:
        await producer.send_batch([b"x", b"y"], ids=["x", "y"])
        first, second = [lease async for lease in consumer]
        try:
            fail(100)
        except ValueError as error:
            await first.reject("odd", error=error)
        await second.reject("odd", error="no such customer")
        with pytest.raises(dejaq.InvalidArgument):
            await second.reject("r" * 501, error="e")
    (x, y) = [message for page in [await client.get(DEAD, [first.id, second.id])] for message in page if message]
    said, trace = x.headers[dead_letter.ERROR], x.headers[dead_letter.TRACEBACK]
    assert said.startswith("ValueError: too large too")
    assert len(said) == 500
    assert len(trace) == 2_000
    assert trace.endswith("too large ?\n")
    assert y.headers[dead_letter.ERROR] == "no such customer"
    assert dead_letter.TRACEBACK not in y.headers
    assert (await client.dead_letters(TOPIC).redrive()).done == 2
    (back,) = await client.get(TOPIC, [first.id])
    assert back is not None
    assert back.headers == {}


async def test_a_worker_whose_last_attempt_fails_sends_the_error_with_the_message(
    client: dejaq.Client, limited: dejaq.TopicInfo, broker: dejaq.Broker
) -> None:
    """U24: the broker moved the message at its next lease, and the error was only in a log on some machine."""

    async def work(lease: dejaq.Lease) -> None:
        raise KeyError(f"attempt {lease.attempts}")

    async def dead() -> bool:
        return await client.dead_letters(TOPIC).count(reason=dead_letter.EXHAUSTED) == 1

    worker = client.worker(TOPIC, retry=dejaq.Backoff.fixed(0), prefetch=0)(work)
    async with client.producer(TOPIC) as producer, worker.running():
        await producer.send(b"x", id="x")
        await eventually(dead, within=10)
    (letter,) = [message async for page in client.dead_letters(TOPIC).browse() for message in page]
    assert letter.headers[dead_letter.ERROR] == "KeyError: 'attempt 2'"
    assert "in work" in letter.headers[dead_letter.TRACEBACK]
    assert letter.headers[dead_letter.ATTEMPTS] == "2"
    metrics = broker.central.metrics
    assert metrics.value(DEAD_LETTERED, TOPIC, dead_letter.EXHAUSTED) == 1


async def test_the_broker_refuses_an_error_that_is_too_long(client: dejaq.Client, limited: dejaq.TopicInfo) -> None:
    """G8: the limit applies to every client."""
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, max_messages=1) as consumer:
        await producer.send(b"x")
        lease = await anext(consumer)
        for cause in (dead_letter.Cause("odd", "e" * 501), dead_letter.Cause("odd", "e", "t" * 2_001)):
            settlement = Settlement(carrier.REJECT, cause=cause)
            with pytest.raises(dejaq.InvalidArgument):
                await lease._settle(settlement)
        await lease.delete()
