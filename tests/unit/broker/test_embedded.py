"""A broker inside the user's own program."""

from __future__ import annotations

from pathlib import Path

import pytest

import dejaq
from dejaq.broker import Broker
from dejaq.errors import Code, DejaqError, Unavailable
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.memory.store import MemoryStorage
from tests.unit.broker.client import Batches, RawClient, create_topic


def test_the_embedded_broker_is_public() -> None:
    assert dejaq.Broker is Broker


async def test_a_broker_without_an_address_serves_only_this_process() -> None:
    async with Broker() as broker:
        assert broker.address == broker.transport().address == "in-process"


async def test_a_broker_on_port_0_reports_its_port() -> None:
    async with Broker(listen="127.0.0.1:0", metrics="127.0.0.1:0") as broker:
        host, _, port = broker.address.partition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert broker.central.metrics_address != "127.0.0.1:0"


async def test_stored_messages_survive_the_broker(tmp_path: Path) -> None:
    """G1: acknowledged messages survive the broker."""
    for n in range(3):
        async with Broker(data=tmp_path / "data", drain_ms=0) as broker:
            transport = broker.transport()
            assert (await create_topic(transport, buckets=4)).created == (n == 0)
            producer = await (await RawClient(transport).open()).produce()
            assert not (await producer.ask(create=Batches(n).natural([f"m{n}"], 0))).outcomes.codes
            request = carrier.CountRequest(topic="mail")
            assert (await transport.call("Carrier.Count", request, carrier.CountResponse, 5.0)).count == n + 1


async def test_an_invalid_setting_is_named() -> None:
    with pytest.raises(DejaqError, match="no_such_key"):
        Broker(no_such_key=1)
    with pytest.raises(DejaqError, match="drain_ms"):
        Broker(drain_ms=-1)


async def test_the_environment_does_not_affect_a_broker_in_a_users_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEJAQ_LISTEN", "127.0.0.1:1")
    assert Broker().config.listen is None


async def test_a_broker_may_be_stopped_twice() -> None:
    storage = MemoryStorage()
    broker = Broker(storage=storage)
    await broker.start()
    await broker.stop()
    await broker.stop()
    assert storage.failure is not None


async def test_the_use_of_an_ended_session_is_unavailable() -> None:
    async with Broker(drain_ms=0) as broker:
        transport = broker.transport()
        channel = await transport.session()
        await channel.close()
        with pytest.raises(Unavailable):
            await channel.send(carrier.ClientFrame(request=1))
        assert await channel.receive() is None


async def test_an_unknown_call_is_a_version_error() -> None:
    async with Broker() as broker:
        with pytest.raises(DejaqError) as caught:
            await broker.transport().call("Overseer.Dance", overseer.InfoRequest(), overseer.InfoResponse, 1.0)
        assert caught.value.code is Code.VERSION_UNSUPPORTED
