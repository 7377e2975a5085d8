"""Transactions that are committed at the same time share calls to the broker, and are otherwise independent (G10)."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq.errors import error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.waiting import eventually
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport

MANY = 40


@pytest.fixture
def calls(wire: CuttingTransport, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the transaction calls, in the order in which they are made."""
    made: list[str] = []
    call = wire.call

    async def counting(method: str, request: carrier.TransactRequest, response: type, timeout: float) -> object:
        if "Transact" in method:
            made.append(method)
        # As over a network, other tasks run before the request arrives.
        await asyncio.sleep(0)
        return await call(method, request, response, timeout)

    monkeypatch.setattr(wire, "call", counting)
    return made


async def send(client: dejaq.Client, number: int, body: bytes = b"x", topic: str = TOPIC) -> None:
    async with client.transaction() as t:
        t.send(topic, body, id=f"m-{number}")


async def test_many_concurrent_transactions_share_few_calls(client: dejaq.Client, calls: list[str]) -> None:
    await asyncio.gather(*(send(client, number) for number in range(MANY)))
    assert await client.count(TOPIC) == MANY
    assert len(calls) <= 5


async def test_a_single_transaction_has_a_call_of_its_own(client: dejaq.Client, calls: list[str]) -> None:
    for number in range(3):
        await send(client, number)
    assert calls == ["Carrier.Transact"] * 3


async def test_each_transaction_is_done_or_refused_by_itself(client: dejaq.Client, calls: list[str]) -> None:
    """G10: the refusal or error of one transaction does not affect the others of its call."""
    await send(client, 5, b"other")
    some = [send(client, number) for number in range(10)]
    some.append(send(client, 99, topic="nowhere"))
    found = await asyncio.gather(*some, return_exceptions=True)
    refused = {place: error for place, error in enumerate(found) if error is not None}
    assert {place: getattr(error, "code", error) for place, error in refused.items()} == {
        5: dejaq.Code.ID_TAKEN,
        10: dejaq.Code.TOPIC_NOT_FOUND,
    }
    assert await client.count(TOPIC) == 10
    assert "Carrier.TransactMany" in calls


@pytest.mark.parametrize("done", [True, False])
async def test_a_call_without_an_answer_is_repeated_and_done_once(
    client: dejaq.Client, wire: CuttingTransport, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: every transaction of a broken call is recognised by its own name."""
    call, cuts = wire.call, iter([True])

    async def cutting(method: str, request: carrier.TransactRequest, response: type, timeout: float) -> object:
        await asyncio.sleep(0)
        if method != "Carrier.TransactMany" or not next(cuts, False):
            return await call(method, request, response, timeout)
        if done:
            await call(method, request, response, timeout)
            async with client.producer(TOPIC, group="default") as other:
                # The messages are deleted before the repeat, which must not create them again.
                assert (await other.cancel(["m-2", "m-3"])).ok
        raise error_of(dejaq.Code.UNAVAILABLE, "the connection broke")

    monkeypatch.setattr(wire, "call", cutting)
    await asyncio.gather(*(send(client, number) for number in range(10)))
    assert await client.count(TOPIC) == (8 if done else 10)


async def test_a_transaction_that_waits_for_a_consumer_does_not_delay_the_others(
    client: dejaq.Client, producer: dejaq.Producer, calls: list[str]
) -> None:
    async with client.consumer(TOPIC, name="holder", prefetch=2.0):
        held = await producer.send(b"x", delay=1)

        async def leased() -> bool:
            [message] = await client.get(TOPIC, [held])
            return message is not None and message.lock_consumer == "holder"

        await eventually(leased, within=10, what="the message is prefetched")

        async def cancel() -> None:
            async with client.transaction(group="billing") as t:
                t.cancel(TOPIC, held)

        await client.create_topic("out", buckets=1)
        # The broker need not ask again about the topic.
        await send(client, 99, topic="out")
        await asyncio.gather(*(send(client, number, topic="out") for number in range(5)), cancel())
    assert (await client.count(TOPIC), await client.count("out")) == (0, 6)
    assert calls[-1] == "Carrier.Transact"


async def test_the_size_of_a_call_is_limited(wire: CuttingTransport, client: dejaq.Client) -> None:
    for count in (0, 101):
        request = carrier.TransactManyRequest(transactions=[carrier.TransactRequest()] * count)
        with pytest.raises(dejaq.Refused) as refused:
            await wire.call("Carrier.TransactMany", request, carrier.TransactManyResponse, 5)
        assert refused.value.code is dejaq.Code.INVALID_ARGUMENT
