"""The settings of a topic about bodies and rates also apply to transactions."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq.broker.calls.overseer import OverseerService
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.protocol.v1.overseer_pb2 import TopicRequest, TopicResponse
from dejaq.storage.base import Filter
from dejaq.storage.memory.store import MemoryStorage
from dejaq.testing.waiting import patient


async def test_bodies_are_compressed_as_the_topic_says() -> None:
    body = b"the same words " * 500
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("packed", buckets=4, compression="zstd")
        async with client.transaction(group="g") as t:
            t.send("packed", body, id="a")
            t.send("packed", b"small", id="b")
        async with client.transaction(group="g") as t:
            t.edit("packed", "b", body=body)
        async with client.consumer("packed", name="c") as consumer:
            for _ in range(2):
                lease = await anext(consumer)
                assert lease.body == body
                assert len(lease.raw_body) < len(body) // 10


async def test_a_client_above_its_rate_is_slowed_down() -> None:
    """G8: messages created by a transaction count like messages of a producer, and none of them is lost."""
    async with dejaq.Broker() as broker, dejaq.connect(broker, deadline=20) as client:
        await client.create_topic("bounded", buckets=4, client_rate=50)
        began = client.now_ms()
        for number in range(4):
            async with client.transaction() as t:
                for row in range(25):
                    t.send("bounded", b"x", id=f"{number}-{row}")
        assert client.now_ms() - began >= 400
        assert await client.count("bounded") == 100


async def test_a_client_that_cannot_wait_is_refused() -> None:
    """G8: the refusal is definite and nothing was changed; another client is not refused."""
    async with dejaq.Broker() as broker, dejaq.connect(broker, deadline=patient(0.3), name="hasty") as hasty:
        await hasty.create_topic("bounded", buckets=4, client_rate=10)
        async with hasty.transaction() as t:
            for row in range(50):
                t.send("bounded", b"x", id=f"a{row}")
        code = Code.OK
        try:
            async with hasty.transaction() as t:
                t.send("bounded", b"x", id="b")
        except dejaq.DejaqError as error:
            code = error.code
        assert code in (Code.NO_BROKER, Code.OVERLOADED)
        assert await hasty.get("bounded", ["b"]) == [None]
        async with dejaq.connect(broker, name="other") as other, other.transaction() as t:
            t.send("bounded", b"x", id="b")


async def test_transactions_ask_once_for_the_settings_of_a_topic_and_for_no_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many transactions at once asked each for itself, and the broker counted the topic for each."""
    asked: list[bool] = []
    describe, count = OverseerService.describe_topic, MemoryStorage.count
    counted: list[str] = []

    async def noted(self: OverseerService, context: CallContext, request: TopicRequest) -> TopicResponse:
        asked.append(request.settings_only)
        return await describe(self, context, request)

    async def counting(self: MemoryStorage, topic: Topic, where: Filter, now: int) -> int:
        counted.append(topic.name)
        return await count(self, topic, where, now)

    monkeypatch.setattr(OverseerService, "describe_topic", noted)
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("out", buckets=4)
        asked.clear()
        monkeypatch.setattr(MemoryStorage, "count", counting)

        async def send(number: int) -> None:
            async with client.transaction() as t:
                t.send("out", b"x", id=f"m{number}")

        await asyncio.gather(*(send(number) for number in range(20)))
        assert asked == [True]
        assert counted == []
        monkeypatch.setattr(MemoryStorage, "count", count)
        assert await client.count("out") == 20


async def test_a_transaction_that_is_cancelled_while_it_asks_for_settings_leaves_the_others() -> None:
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("out", buckets=4)

        async def send(number: int) -> None:
            async with client.transaction() as t:
                t.send("out", b"x", id=f"m{number}")

        first, second = (asyncio.ensure_future(send(number)) for number in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait((first, second))
        second.result()
        assert [message and message.id for message in await client.get("out", ["m0", "m1"])] == [None, "m1"]
