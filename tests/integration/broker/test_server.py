"""The broker over its endpoints: their addresses, gRPC's health service, and input that the SDK would never send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dejaq import limits
from dejaq.broker import Broker
from dejaq.errors import Code, DejaqError
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.grpc_status import error_from_grpc
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.testing.waiting import patient
from tests.unit.broker.client import Batches, RawClient, create_topic, until

ANY: Any = None


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(listen="127.0.0.1:0", grpc="127.0.0.1:0", drain_ms=0) as broker:
        yield broker


def transport_to(broker: Broker, endpoint: str) -> Transport:
    if endpoint == "grpc":
        return GrpcTransport(broker.grpc_address)
    return WebSocketTransport(broker.address)


@pytest.fixture(params=["grpc", "websocket"])
async def transport(broker: Broker, request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    transport = transport_to(broker, request.param)
    await create_topic(transport, buckets=4)
    yield transport
    await transport.close()


@pytest.fixture
async def channel(broker: Broker) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(broker.grpc_address) as channel:
        yield channel


def raw_session(channel: grpc.aio.Channel) -> Any:
    """A session that sends and receives raw bytes."""
    method: Any = channel.stream_stream(
        "/dejaq.v1.Carrier/Session", request_serializer=None, response_deserializer=None
    )
    return method()


@pytest.mark.parametrize("endpoint", ["grpc", "websocket"])
async def test_a_message_goes_from_producer_to_consumer_on_the_embedded_store(tmp_path: Path, endpoint: str) -> None:
    async with Broker(data=tmp_path / "data", listen="127.0.0.1:0", grpc="127.0.0.1:0", drain_ms=0) as broker:
        transport = transport_to(broker, endpoint)
        await create_topic(transport, buckets=4)
        consumer = await (await (await RawClient(transport).open()).consume()).subscribe(rows=2_000, prefetch_ms=500)
        producer = await (await RawClient(transport).open()).produce()
        due = broker.central.clock.now_ms() + 50
        batches = Batches()
        assert not (await producer.ask(create=batches.generated([due] * 1_000, bucket=2))).outcomes.codes
        assert not (await producer.ask(create=batches.natural(["a", "b"], due))).outcomes.codes
        await until(lambda: len(consumer.received()) == 1_002)
        for push in consumer.pushes:
            assert not (await consumer.settle(carrier.DELETE, push.lease)).outcomes.codes
        request = carrier.CountRequest(topic="mail")
        assert (await transport.call("Carrier.Count", request, carrier.CountResponse, 5.0)).count == 0
        await transport.close()


async def test_a_description_of_the_settings_only_counts_nothing(transport: Transport) -> None:
    await create_topic(transport, buckets=4)
    producer = await (await RawClient(transport).open()).produce()
    assert not (await producer.ask(create=Batches().natural(["a", "b"], 0))).outcomes.codes
    described: dict[bool, overseer.TopicResponse] = {}
    for only in (False, True):
        request = overseer.TopicRequest(name="mail", settings_only=only)
        described[only] = await transport.call("Overseer.DescribeTopic", request, overseer.TopicResponse, 5.0)
    assert (described[False].topic.available, described[False].topic.producers) == (2, 1)
    assert (described[True].topic.available, described[True].topic.producers) == (0, 0)
    assert described[True].topic.settings == described[False].topic.settings
    assert described[True].topic.created_ms == described[False].topic.created_ms


async def test_a_taken_port_is_a_clear_error_at_once_and_the_first_broker_continues(
    broker: Broker, transport: Transport
) -> None:
    with pytest.raises(DejaqError) as caught:
        await Broker(listen=broker.address).start()
    assert caught.value.code is Code.PORT_TAKEN
    assert broker.address in caught.value.message
    assert (
        await transport.call("Overseer.Ping", overseer.PingRequest(client_us=5), overseer.PingResponse, 5.0)
    ).client_us == 5


async def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(DejaqError) as caught:
        await Broker(listen="192.0.2.1:7400", insecure=True).start()
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert "192.0.2.1:7400" in caught.value.message


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        carrier.ClientFrame(request=9, cancel=carrier.CancelBatch(ids=["abcd"]))
        .SerializeToString()
        .replace(b"abcd", b"\xff\xfe\xfd\xfc"),
    ],
)
async def test_bytes_that_are_no_frame_are_answered_and_the_session_stays_open(
    channel: grpc.aio.Channel, garbage: bytes
) -> None:
    call = raw_session(channel)
    await call.write(garbage)
    frame = carrier.BrokerFrame.FromString(await call.read())
    assert (frame.request, frame.error.code) == (0, Code.INVALID_ARGUMENT)
    await call.write(carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=1)).SerializeToString())
    assert carrier.BrokerFrame.FromString(await call.read()).HasField("welcome")
    call.cancel()


async def test_a_frame_beyond_the_limit_ends_that_session_and_no_other(broker: Broker, transport: Transport) -> None:
    other = await (await RawClient(transport).open()).produce()
    options = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(broker.grpc_address, options=options) as channel:
        call = raw_session(channel)
        await call.write(bytes(limits.FRAME_BYTES_MAX + 1))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not (await other.ask(create=Batches().natural(["a"], 0))).outcomes.codes


async def test_a_refused_call_carries_the_whole_error(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(
        "/dejaq.v1.Overseer/DescribeTopic",
        request_serializer=overseer.TopicRequest.SerializeToString,
        response_deserializer=overseer.TopicResponse.FromString,
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(overseer.TopicRequest(name="nowhere"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    error = error_from_grpc(caught.value.code(), caught.value.details() or "", caught.value.trailing_metadata())
    assert error.code is Code.TOPIC_NOT_FOUND
    assert "nowhere" in error.message


async def test_a_call_with_garbage_or_an_unknown_name_disturbs_no_other_call(
    channel: grpc.aio.Channel, transport: Transport
) -> None:
    for method in ("/dejaq.v1.Overseer/Info", "/dejaq.v1.Carrier/Get", "/dejaq.v1.Carrier/Nothing", "/x/y"):
        call: Any = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\xff\xff\xff")
    info = await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, 5.0)
    assert [topic.name for topic in info.topics] == ["mail"]


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    stub: Any = health_pb2_grpc.HealthStub
    return (await stub(channel).Check(health_pb2.HealthCheckRequest(service=service))).status  # type: ignore[no-any-return]


async def test_health_follows_the_doctor(broker: Broker, channel: grpc.aio.Channel) -> None:
    for service in ("", "dejaq.v1.Carrier", "dejaq.v1.Overseer"):
        assert await health(channel, service) == health_pb2.HealthCheckResponse.SERVING
    await broker.central.doctor.start_draining()
    for service in ("", "dejaq.v1.Carrier", "dejaq.v1.Overseer"):
        assert await health(channel, service) == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub
    call = stub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await call.read()).list_services_response.service}
    assert {"dejaq.v1.Carrier", "dejaq.v1.Overseer", "grpc.health.v1.Health"} <= names
    call.cancel()


async def test_connections_beyond_the_limit_are_refused(broker: Broker) -> None:
    async with Broker(grpc="127.0.0.1:0", connections_max=1, drain_ms=0) as small:
        first, second = GrpcTransport(small.grpc_address), GrpcTransport(small.grpc_address)
        one = await RawClient(first).open()
        await one.hello()
        # gRPC shares a connection between channels with equal options, except for channels that ask for their own.
        async with grpc.aio.insecure_channel(
            small.grpc_address, options=(("grpc.use_local_subchannel_pool", 1),)
        ) as own:
            call = raw_session(own)
            frame = carrier.BrokerFrame.FromString(await call.read())
            assert frame.error.code == Code.LIMIT_EXCEEDED
            assert await call.read() is grpc.aio.EOF
        assert (await one.ask(ping=carrier.Ping(client_us=2))).pong.client_us == 2
        await first.close()
        await second.close()


async def test_a_client_that_never_reads_delays_only_itself(broker: Broker, transport: Transport) -> None:
    """R14: a slow consumer."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(broker.grpc_address, options=own) as channel:
        deaf = raw_session(channel)
        steps: list[dict[str, Any]] = [
            {"hello": carrier.Hello(protocol=1)},
            {"consumer": carrier.ConsumerHandshake(topic="mail", name="deaf")},
        ]
        for number, step in enumerate(steps, start=1):
            await deaf.write(carrier.ClientFrame(request=number, **step).SerializeToString())
            await deaf.read()
        flow = carrier.Subscribe(credit_rows=1_000, credit_bytes=1 << 40, lease_ms=60_000)
        await deaf.write(carrier.ClientFrame(request=3, subscribe=flow).SerializeToString())
        producer = await (await RawClient(transport).open()).produce()
        batches = Batches()
        for n in range(8):
            ids = [f"m{n}-{i}" for i in range(4)]
            batch = batches.natural(ids, 0, bodies=[bytes(limits.BODY_BYTES_MAX)] * 4)
            assert not (await producer.ask(create=batch)).outcomes.codes
        assert not (await producer.ask(cancel=carrier.CancelBatch(ids=["nobody"]))).error.code
        roster = broker.central.rosters.of(broker.central.catalog.live("mail"))
        await until(lambda: [consumer.inflight.rows > 0 for consumer in roster] == [True])
        deaf.cancel()
    await until(lambda: len(roster) == 0)


async def test_a_client_that_vanishes_frees_its_session(broker: Broker, transport: Transport) -> None:
    client = await (await (await RawClient(transport).open()).consume()).subscribe()
    assert len(broker.central.greeter) == 1
    await client.close()
    await until(lambda: len(broker.central.greeter) == 0)


async def test_stopping_ends_the_stream_with_a_reason(transport: Transport, broker: Broker) -> None:
    client = await (await RawClient(transport).open()).produce()
    await asyncio.wait_for(broker.stop(), patient(10))
    await until(lambda: client.ended)
    assert client.errors[-1].error.code == Code.DRAINING
