"""The same through gRPC, with a broker in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import dejaq
import dejaq.sync
from dejaq.sdk import connection
from dejaq.testing.process import BrokerProcess, free_port
from dejaq.testing.waiting import eventually

TOPIC = "mail"


async def test_open_producers_and_consumers_ride_through_kill_minus_nine(tmp_path: Path) -> None:
    """G1, G6: user code notices nothing but the time it takes; nothing acknowledged is lost, nothing comes early."""
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=30.0) as client:
        await client.create_topic(TOPIC, buckets=8)
        sent: set[str] = set()
        seen: dict[str, int] = {}
        early: list[str] = []

        async def produce(producer: dejaq.Producer) -> None:
            for number in range(150):
                sent.add(await producer.send(b"single", id=f"natural-{number}", delay=0.05))
                results = await producer.send_batch([b"batch"] * 20, delay=0.05)
                results.raise_for_failures()
                sent.update(results.ids)

        async def consume(consumer: dejaq.Consumer) -> None:
            async for batch in consumer.batches(100):
                now = time.time_ns() // 1_000_000
                early.extend(lease.id for lease in batch if lease.ts > now)
                results = await batch.delete()
                for message_id, code in results.items():
                    if code.succeeded:
                        seen[message_id] = seen.get(message_id, 0) + 1

        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, name="w", lease=5.0) as consumer,
        ):
            consuming = asyncio.ensure_future(consume(consumer))
            producing = asyncio.ensure_future(produce(producer))
            for goal in (300, 1_500):
                await eventually(lambda goal=goal: len(sent) > goal, within=20, poll=0.001)
                assert not producing.done()
                await broker.restart()
            await producing
            await eventually(lambda: len(seen) >= len(sent), within=20, what="everything is seen")
            consuming.cancel()
        assert set(seen) == sent
        assert len(sent) == 150 * 21
        assert early == []
        assert set(seen.values()) == {1}
        assert await client.count(TOPIC) == 0


async def test_a_broker_that_hangs_is_left_for_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "PING_SECONDS", 0.05)
    monkeypatch.setattr(connection, "PONG_SECONDS", 0.2)
    async with BrokerProcess() as hung, BrokerProcess() as other:
        for broker in (hung, other):
            async with dejaq.connect(broker.url) as client:
                await client.create_topic(TOPIC)
        async with (
            dejaq.connect(f"{hung.url},{other.address}") as client,
            client.producer(TOPIC) as producer,
        ):
            await producer.send(b"1")
            hung.pause()
            try:
                await asyncio.wait_for(producer.send(b"2", id="two"), 10)
                async with dejaq.connect(other.url) as direct:
                    assert await direct.get(TOPIC, ["two"]) != [None]
            finally:
                hung.resume()


async def test_nobody_at_the_address_is_no_broker() -> None:
    with pytest.raises(dejaq.NoBroker, match=r"127\.0\.0\.1"):
        async with dejaq.connect(f"dejaq://127.0.0.1:{free_port()}", deadline=0.3):
            pass


async def test_the_blocking_client_does_the_same() -> None:
    async with BrokerProcess() as broker:
        await asyncio.to_thread(use_the_blocking_client, broker.url)


def use_the_blocking_client(url: str) -> None:
    with dejaq.sync.connect(url) as client:
        client.create_topic(TOPIC, buckets=2)
        assert [topic.name for topic in client.topics()] == [TOPIC]
        with client.producer(TOPIC, group="g") as producer:
            sent = producer.send(b"hello", priority=1)
            results = producer.send_batch([b"a", b"b", b"c"], delay=60)
            assert producer.move(results.ids[:1], delay=0).ok
            assert producer.edit(results.ids[0], body=b"A") is dejaq.Code.OK
            assert producer.cancel([results.ids[2]]).ok
        assert client.count(TOPIC) == 3
        with client.consumer(TOPIC, name="w", max_messages=2) as consumer:
            leases = list(consumer)
            assert {lease.body for lease in leases} == {b"hello", b"A"}
            for lease in leases:
                if lease.id == sent:
                    lease.extend(60)
                    lease.delete()
                else:
                    lease.release(delay=3600)
        with client.consumer(TOPIC, name="w", max_messages=1) as consumer, client.producer(TOPIC) as producer:
            producer.send(b"x")
            for batch in consumer.batches():
                assert len(batch) == 1
                assert batch.delete().ok
        assert [m.body for page in client.browse(TOPIC) for m in page] == [b"b", b"A"]
        with pytest.raises(dejaq.Missing):
            client.describe_topic("nowhere")
        assert client.fan_out([TOPIC], b"x").ok
        assert client.ping().latency_ms > 0
    with pytest.raises(dejaq.NoBroker), dejaq.sync.connect(f"dejaq://127.0.0.1:{free_port()}", deadline=0.2):
        pass


async def test_a_cancelled_send_does_not_cost_the_others_their_session() -> None:
    async with (
        dejaq.Broker(listen="127.0.0.1:0") as broker,
        dejaq.connect(f"dejaq://{broker.address}") as client,
    ):
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            [before] = (await client.info()).clients
            for turns in range(40):
                sending = asyncio.ensure_future(producer.send(b"x" * 100_000))
                for _ in range(turns // 4):
                    await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait({sending})
            await producer.send(b"last")
            [after] = (await client.info()).clients
            assert after.id == before.id
