"""The SDK over each endpoint, with a broker in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import dejaq
import dejaq.sync
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.websocket import transport
from dejaq.sdk.session import pings
from dejaq.testing.servers.process import BrokerProcess, free_port
from dejaq.testing.waiting import eventually, patient

TOPIC = "mail"


@pytest.fixture(params=[False, True], ids=["websocket", "grpc"])
def grpc(request: pytest.FixtureRequest) -> bool:
    """Whether the test uses the gRPC endpoint."""
    return bool(request.param)


async def test_open_producers_and_consumers_continue_after_kill_minus_nine(tmp_path: Path, grpc: bool) -> None:
    """G1, G6: user code only notices the delay; no acknowledged message is lost, and no message is early."""
    async with (
        BrokerProcess(tmp_path / "data", grpc=grpc) as broker,
        dejaq.connect(broker.url, deadline=30.0) as client,
    ):
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
            client.consumer(TOPIC, name="w", lease=30.0) as consumer,
        ):
            consuming = asyncio.ensure_future(consume(consumer))
            producing = asyncio.ensure_future(produce(producer))
            for goal in (300, 1_500):
                await eventually(lambda: len(sent) > goal, within=20, poll=0.001)
                assert not producing.done()
                await broker.restart()
            await producing
            await eventually(lambda: len(seen) >= len(sent), within=20, what="every message is received")
            consuming.cancel()
        assert set(seen) == sent
        assert len(sent) == 150 * 21
        assert early == []
        assert set(seen.values()) == {1}
        assert await client.count(TOPIC) == 0


async def test_a_client_leaves_a_broker_that_hangs_for_one_that_answers(
    monkeypatch: pytest.MonkeyPatch, grpc: bool
) -> None:
    monkeypatch.setattr(pings, "PING_SECONDS", 0.05)
    monkeypatch.setattr(pings, "PONG_SECONDS", 0.2)
    monkeypatch.setattr(transport, "PING_SECONDS", 0.1)
    async with BrokerProcess(grpc=grpc) as hung, BrokerProcess(grpc=grpc) as other:
        for broker in (hung, other):
            async with dejaq.connect(broker.url) as client:
                await client.create_topic(TOPIC)
        async with (
            dejaq.connect(f"{hung.url},{other.client_address}") as client,
            client.producer(TOPIC) as producer,
        ):
            await producer.send(b"1")
            hung.pause()
            try:
                await asyncio.wait_for(producer.send(b"2", id="two"), patient(10))
                async with dejaq.connect(other.url) as direct:
                    assert await direct.get(TOPIC, ["two"]) != [None]
            finally:
                hung.resume()


async def test_an_address_without_a_broker_is_the_error_no_broker(grpc: bool) -> None:
    scheme = "dejaq+grpc" if grpc else "dejaq"
    with pytest.raises(dejaq.NoBroker, match=r"127\.0\.0\.1"):
        async with dejaq.connect(f"{scheme}://127.0.0.1:{free_port()}", deadline=0.3):
            pass


async def test_the_blocking_client_does_the_same(grpc: bool) -> None:
    async with BrokerProcess(grpc=grpc) as broker:
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


def url_of(broker: dejaq.Broker, *, grpc: bool) -> str:
    return f"dejaq+grpc://{broker.grpc_address}" if grpc else f"dejaq://{broker.address}"


async def test_a_cancelled_send_does_not_end_the_session_of_other_sends(grpc: bool) -> None:
    async with (
        dejaq.Broker(listen="127.0.0.1:0", grpc="127.0.0.1:0") as broker,
        dejaq.connect(url_of(broker, grpc=grpc)) as client,
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


async def test_producers_and_consumers_of_a_client_share_a_connection(tmp_path: Path) -> None:
    async with (
        dejaq.Broker(listen="127.0.0.1:0", connections_max=1) as broker,
        dejaq.connect(f"dejaq://{broker.address}") as client,
    ):
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as one, client.producer(TOPIC) as two, client.consumer(TOPIC) as consumer:
            sent = {await one.send(b"1"), await two.send(b"2")}
            assert {(await anext(consumer)).id, (await anext(consumer)).id} == sent
            async with client.transaction() as transaction:
                transaction.send(TOPIC, b"3")
            assert await client.count(TOPIC) == 3
            assert broker.central.server is not None
            assert len(broker.central.server._clients) == 1


async def test_a_unix_socket_serves_the_clients_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    for _ in range(2):
        async with (
            dejaq.Broker(listen="127.0.0.1:0", unix=str(path)),
            dejaq.connect(f"dejaq+unix://{path}") as client,
        ):
            assert path.stat().st_mode & 0o777 == 0o600
            await client.create_topic(TOPIC)
            async with client.producer(TOPIC) as producer, client.consumer(TOPIC) as consumer:
                sent = await producer.send(b"local")
                assert (await anext(consumer)).id == sent
        assert not path.exists()


async def test_a_socket_that_a_killed_broker_left_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    async with BrokerProcess(options=["--unix", str(path)]) as broker:
        with pytest.raises(dejaq.DejaqError) as caught:
            await dejaq.Broker(listen="127.0.0.1:0", unix=str(path)).start()
        assert caught.value.code is dejaq.Code.PORT_TAKEN
        broker.kill()
        assert path.exists()
        await broker.restart()
        async with dejaq.connect(f"dejaq+unix://{path}") as client:
            assert await client.topics() == []


async def test_a_grpc_client_at_the_websocket_port_learns_the_address_to_use() -> None:
    """Also a client of release 0.1 or 0.2, to which `dejaq://` means gRPC."""
    async with (
        dejaq.Broker(listen="127.0.0.1:0", grpc="127.0.0.1:0") as broker,
        dejaq.Broker(listen="127.0.0.1:0") as lone,
    ):
        for address, told in (
            (broker.address, f"dejaq+grpc://{broker.grpc_address}"),
            (lone.address, "--grpc HOST:PORT"),
        ):
            transport = GrpcTransport(address)
            with pytest.raises(dejaq.DejaqError) as called:
                await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, patient(5.0))
            with pytest.raises(dejaq.DejaqError) as opened:
                await (await transport.session()).receive()
            for caught in (called, opened):
                assert caught.value.code is dejaq.Code.VERSION_UNSUPPORTED
                assert f"dejaq://{address}" in caught.value.message
                assert told in caught.value.message
            await transport.close()
        async with dejaq.connect(f"dejaq://{lone.address}") as client:
            assert await client.topics() == []


async def test_a_websocket_client_at_the_grpc_port_learns_the_address_to_use() -> None:
    async with dejaq.Broker(grpc="127.0.0.1:0") as broker:
        with pytest.raises(dejaq.DejaqError) as caught:
            async with dejaq.connect(f"dejaq://{broker.grpc_address}", deadline=1.0):
                pass
        assert caught.value.code is dejaq.Code.VERSION_UNSUPPORTED
        assert f"dejaq+grpc://{broker.grpc_address}" in caught.value.message
