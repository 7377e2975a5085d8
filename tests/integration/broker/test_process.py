"""A broker as a process: how it stops, how it refuses to start, and which messages are left after a kill."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dejaq.errors import Unavailable
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.testing.servers.process import BrokerProcess
from tests.unit.broker.client import Batches, RawClient, create_topic, until


async def test_a_broker_drains_on_a_signal_and_exits_with_0(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path / "data") as broker:
        transport = WebSocketTransport(broker.address)
        await create_topic(transport)
        producer = await (await RawClient(transport).open()).produce()
        assert not (await producer.ask(create=Batches().natural(["a"], 0))).outcomes.codes
        broker.terminate()
        await until(lambda: producer.draining)
        await producer.close()
        assert await broker.exited() == 0
        await broker.restart()
        found = await transport.call(
            "Carrier.Get", carrier.GetRequest(topic="mail", ids=["a"]), carrier.MessageColumns, 5.0
        )
        assert list(found.ids) == ["a"]
        await transport.close()


async def test_a_broker_without_uvloop_serves_and_stops_all_the_same() -> None:
    async with BrokerProcess(prelude="import sys; sys.modules['uvloop'] = None") as broker:
        transport = WebSocketTransport(broker.address)
        await create_topic(transport)
        producer = await (await RawClient(transport).open()).produce()
        assert not (await producer.ask(create=Batches().natural(["a"], 0))).outcomes.codes
        await producer.close()
        await transport.close()
        broker.terminate()
        assert await broker.exited() == 0


async def test_a_second_signal_does_not_wait_for_clients(tmp_path: Path) -> None:
    async with BrokerProcess(options=["--drain-ms", "600000"]) as broker:
        transport = WebSocketTransport(broker.address)
        client = await RawClient(transport).open()
        await client.hello()
        broker.terminate()
        await until(lambda: client.draining)
        assert broker.running
        broker.terminate()
        assert await broker.exited() == 0
        await transport.close()


async def test_a_second_broker_on_the_same_directory_or_port_ends_at_once_with_a_clear_line(
    tmp_path: Path,
) -> None:
    async with BrokerProcess(tmp_path / "data") as first:
        same_data = BrokerProcess(tmp_path / "data")
        same_port = BrokerProcess(port=first.port)
        for second, word in ((same_data, "STORE_LOCKED"), (same_port, "PORT_TAKEN")):
            second.start()
            try:
                assert await second.exited() == 1
                assert word in second.log() or word.replace("_", " ").lower() in second.log().lower()
                assert "Traceback" not in second.log()
            finally:
                second.close()
        assert first.running


POINTS = ["broker.before_ack", "broker.after_ack", "broker.before_push", "broker.after_push"]


@pytest.mark.parametrize("point", POINTS)
async def test_a_broker_killed_at_a_named_point_keeps_acknowledged_messages(tmp_path: Path, point: str) -> None:
    """R4, G1, G4: acknowledged messages survive the kill and are delivered."""
    async with BrokerProcess(tmp_path / "data") as broker:
        transport = WebSocketTransport(broker.address)
        await create_topic(transport, buckets=4)
        await broker.restart(env={"DEJAQ_CRASH_AT": f"{point}:4"})
        acked: set[str] = set()
        sent: set[str] = set()
        try:
            producer = await (await RawClient(transport).open()).produce()
            consumer = await (await (await RawClient(transport).open()).consume("first")).subscribe(lease_ms=200)
            batches = Batches()
            for n in range(100):
                future = await producer.start(create=batches.natural([f"m{n}"], 0))
                sent.add(f"m{n}")
                await until(lambda future=future: future.done() or producer._reader.done())  # type: ignore[misc]
                if not future.done():
                    break
                acked.add(f"m{n}")
                if n % 10 == 9:
                    await until(lambda n=n: len(consumer.received()) > n or consumer._reader.done())  # type: ignore[misc]
        except Unavailable:
            pass
        assert await broker.exited() == -signal.SIGKILL
        await broker.restart()
        await transport.close()
        transport = WebSocketTransport(broker.address)
        second = await (await (await RawClient(transport).open()).consume("second")).subscribe()
        await until(lambda: acked <= set(second.received()))
        assert set(second.received()) <= sent
        assert len(second.received()) == len(set(second.received()))
        await transport.close()
