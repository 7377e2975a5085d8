"""Transactions through the SDK: all changes or none, over several topics (G10)."""

# ruff: noqa: PT012  a refusal comes out of a whole block

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import dejaq
from dejaq import limits
from dejaq.domain.ids import ProducerSession
from dejaq.errors import error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport

OUT = "out"


@pytest.fixture
async def out(client: dejaq.Client) -> str:
    await client.create_topic(OUT, buckets=2)
    return OUT


@pytest.fixture
async def consumer(client: dejaq.Client) -> AsyncIterator[dejaq.Consumer]:
    async with client.consumer(TOPIC, name="worker-1", lease=30) as consumer:
        yield consumer


async def bodies(client: dejaq.Client, topic: str) -> list[bytes]:
    return [message.body async for page in client.browse(topic) for message in page]


async def test_consume_process_produce_is_one_change(
    client: dejaq.Client, producer: dejaq.Producer, consumer: dejaq.Consumer, out: str, clock: VirtualClock
) -> None:
    """G10: the input is deleted and the outputs are created together."""
    await producer.send_batch([b"a", b"b", b"c"])
    batch = await consumer.take(2)
    single = await anext(consumer)
    async with client.transaction(group="billing") as t:
        t.delete(batch)
        t.release(single, delay=60)
        made = [t.send(out, body.upper(), delay=5) for body in batch.bodies]
        assert await bodies(client, out) == []
    assert await bodies(client, TOPIC) == [single.body]
    found = await client.get(out, made)
    assert [(m.body, m.ts, m.producer_group) for m in found if m] == [
        (body.upper(), clock.now_ms() + 5_000, "billing") for body in batch.bodies
    ]
    with pytest.raises(dejaq.Conflict):
        await single.delete()


async def test_changes_by_the_owner_are_part_of_a_transaction(
    client: dejaq.Client, producer: dejaq.Producer, out: str
) -> None:
    ids = [await producer.send(b"x", delay=60) for _ in range(3)]
    async with client.transaction(group="billing") as t:
        t.move(TOPIC, ids[0], delay=10)
        t.edit(TOPIC, ids[1], body=b"new", priority=4, headers={"k": "v"})
        t.cancel(TOPIC, [ids[2]])
        t.send(out, b"log", id="log-1")
    moved, edited, cancelled = await client.get(TOPIC, ids)
    assert moved is not None
    assert edited is not None
    assert (moved.ts, edited.body, edited.priority, cancelled) == (client.now_ms() + 10_000, b"new", 4, None)
    assert await bodies(client, out) == [b"log"]


async def test_a_refusal_names_the_refused_step_and_nothing_is_done(
    client: dejaq.Client, producer: dejaq.Producer, out: str
) -> None:
    """G10: when one step is refused, no step is done."""
    await producer.send(b"x", id="mine", delay=60)
    with pytest.raises(dejaq.Missing, match="cancel of gone in 'mail'") as refused:
        async with client.transaction(group="billing") as t:
            t.cancel(TOPIC, ["mine", "gone"])
            t.send(out, b"never")
    assert refused.value.code is dejaq.Code.NOT_FOUND
    assert await bodies(client, TOPIC) == [b"x"]
    assert await bodies(client, out) == []


async def test_an_error_in_the_block_discards_the_transaction(client: dejaq.Client, out: str) -> None:
    with pytest.raises(RuntimeError):
        async with client.transaction() as t:
            t.send(out, b"never")
            raise RuntimeError
    assert await bodies(client, out) == []
    with pytest.raises(dejaq.OutOfState):
        t.send(out, b"late")
    async with client.transaction():
        pass


async def test_a_consumer_that_lost_its_lease_produces_nothing(
    client: dejaq.Client, producer: dejaq.Producer, out: str, clock: VirtualClock
) -> None:
    """G10: a consumer that lost its lease creates nothing."""
    await producer.send(b"job")
    async with client.consumer(TOPIC, name="slow", lease=1, auto_extend=False) as slow:
        lease = await anext(slow)
        await clock.advance(2_000)
        with pytest.raises(dejaq.Conflict) as refused:
            async with client.transaction() as t:
                t.delete(lease)
                t.send(out, b"too late")
    assert refused.value.code is dejaq.Code.LEASE_LOST
    assert await bodies(client, out) == []


@pytest.mark.parametrize("done", [True, False])
async def test_an_unanswered_transaction_is_repeated_and_done_once(
    client: dejaq.Client, wire: CuttingTransport, out: str, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: a retry after an unknown outcome is recognised by its name, even when its messages are deleted by then."""
    call, cuts = wire.call, iter([True])

    async def cutting(method: str, request: carrier.TransactRequest, response: type, timeout: float) -> object:
        if method != "Carrier.Transact" or not next(cuts, False):
            return await call(method, request, response, timeout)
        if done:
            await call(method, request, response, timeout)
            async with client.producer(OUT) as other:
                await other.cancel("once")
        raise error_of(dejaq.Code.UNAVAILABLE, "the connection broke")

    monkeypatch.setattr(wire, "call", cutting)
    async with client.transaction() as t:
        t.send(out, b"x", id="once")
    assert await client.count(OUT) == (0 if done else 1)


async def test_a_transaction_without_an_answer_is_indefinite(
    client: dejaq.Client, wire: CuttingTransport, out: str, clock: VirtualClock
) -> None:
    async with dejaq.connect(wire, clock=clock, deadline=patient(0.1)) as hasty:
        async with hasty.transaction() as t:
            t.send(out, b"first")
        with pytest.raises(dejaq.Indefinite):
            async with hasty.transaction() as t:
                t.send(out, b"x")
                wire.down = True


async def test_a_transaction_frees_credit(client: dejaq.Client, producer: dejaq.Producer, out: str) -> None:
    """A message that a transaction settles no longer counts against the consumer's credit."""
    await producer.send_batch([b"%d" % number for number in range(6)])
    async with client.consumer(TOPIC, name="narrow", max_in_flight=2) as narrow:
        for _ in range(3):
            batch = await asyncio.wait_for(narrow.take(2), patient(10))
            async with client.transaction() as t:
                t.delete(batch)
                t.send(out, b"made")
    assert (await client.count(TOPIC), await client.count(OUT)) == (0, 3)


async def test_messages_of_a_transaction_are_delivered_at_once(client: dejaq.Client, out: str) -> None:
    async with client.consumer(out, name="waiting") as waiting:
        taking = asyncio.ensure_future(anext(waiting))
        async with client.transaction() as t:
            t.send(out, b"now")
        lease = await asyncio.wait_for(taking, patient(10))
        assert lease.body == b"now"
        await lease.delete()


async def test_a_prefetched_message_is_recalled_for_a_transaction(
    client: dejaq.Client, producer: dejaq.Producer, broker: dejaq.Broker
) -> None:
    async with client.consumer(TOPIC, name="holder", prefetch=2.0):
        held = await producer.send(b"x", delay=1)

        async def leased() -> bool:
            [message] = await client.get(TOPIC, [held])
            return message is not None and message.lock_consumer == "holder"

        await eventually(leased, within=10, what="the message is prefetched")
        async with client.transaction(group="billing") as t:
            t.cancel(TOPIC, held)
    assert await client.count(TOPIC) == 0


async def test_many_refusals_do_not_use_up_the_session(
    client: dejaq.Client, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCER_SESSION_GAPS_MAX", 20)
    async with client.transaction() as t:
        t.send(out, b"x", id="taken")
    for number in range(60):
        with pytest.raises(dejaq.Conflict):
            async with client.transaction() as t:
                t.send(out, b"other", id="taken")
        if number % 2 == 0:
            async with client.transaction() as t:
                t.send(out, b"fine")
    assert await client.count(out) == 1 + 30


@pytest.mark.parametrize(
    ("fill", "code"),
    [
        (lambda r: None, dejaq.Code.INVALID_ARGUMENT),
        (lambda r: r.steps.add(topic=TOPIC, actor="g"), dejaq.Code.INVALID_ARGUMENT),
        (lambda r: r.steps.add(topic=TOPIC).cancel.ids.append("x"), dejaq.Code.INVALID_ARGUMENT),
        (lambda r: r.steps.add(topic="none", actor="g").cancel.ids.append("x"), dejaq.Code.TOPIC_NOT_FOUND),
        (lambda r: r.steps.add(topic=TOPIC, actor="g").cancel.SetInParent(), dejaq.Code.INVALID_ARGUMENT),
        (lambda r: r.steps.add(topic=TOPIC, actor="g").edit.ids.append("x"), dejaq.Code.INVALID_ARGUMENT),
        (lambda r: r.steps.add(topic=TOPIC, actor="g").create.ids.append("x"), dejaq.Code.INVALID_ARGUMENT),
        (lambda r: r.steps.add(topic=TOPIC, actor="g").settle.SetInParent(), dejaq.Code.INVALID_ARGUMENT),
        (lambda r: [r.steps.add(topic=TOPIC, actor="g") for _ in range(1_001)], dejaq.Code.INVALID_ARGUMENT),
        (lambda r: r.steps.add(topic=TOPIC, actor="g").cancel.ids.extend(["x"] * 10_001), dejaq.Code.BATCH_TOO_LARGE),
        (lambda r: setattr(r, "session", b"short"), dejaq.Code.INVALID_ARGUMENT),
    ],
)
async def test_malformed_transactions_are_refused(
    client: dejaq.Client, wire: CuttingTransport, fill: object, code: dejaq.Code
) -> None:
    request = carrier.TransactRequest(session=ProducerSession(1, 1).pack())
    fill(request)  # type: ignore[operator]
    with pytest.raises(dejaq.Refused) as refused:
        await wire.call("Carrier.Transact", request, carrier.TransactResponse, 5)
    assert refused.value.code is code


async def test_bad_values_are_refused_before_they_are_sent(client: dejaq.Client, out: str) -> None:
    t = client.transaction()
    for bad, code in (
        ({"body": "text"}, dejaq.Code.INVALID_ARGUMENT),
        ({"body": b"", "id": "no good"}, dejaq.Code.INVALID_ID),
        ({"body": b"", "at": -1}, dejaq.Code.INVALID_TIME),
        ({"body": b"", "priority": 2**31}, dejaq.Code.INVALID_PRIORITY),
    ):
        with pytest.raises(dejaq.Refused) as refused:
            t.send(out, **bad)
        assert refused.value.code is code
    with pytest.raises(dejaq.Refused):
        t.move(out, ["x"])
    with pytest.raises(dejaq.Refused):
        t.edit(out, "x")
    await t.commit()
    assert await bodies(client, out) == []
