"""Sessions: their limit, what the broker knows about them, and how the broker ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from dejaq.broker import Broker
from dejaq.broker.inprocess import InProcessTransport
from dejaq.broker.sessions import greeter
from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Change
from dejaq.domain.context import CallContext
from dejaq.errors import Code, Refused, error_of
from dejaq.protocol.spliced import BrokerSent, whole
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.memory.store import MemoryStorage
from dejaq.testing.waiting import patient
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, create_topic, until
from tests.unit.broker.conftest import Connect


async def info(transport: InProcessTransport) -> overseer.InfoResponse:
    return await transport.call("Overseer.Info", overseer.InfoRequest(), overseer.InfoResponse, 5.0)


async def test_sessions_beyond_the_limit_are_refused_and_the_others_stay_open(clock: VirtualClock) -> None:
    """G8: the number of sessions is limited."""
    async with Broker(clock=clock, sessions_max=2, drain_ms=0) as broker:
        transport = broker.transport()
        first, second = [await RawClient(transport).open() for _ in range(2)]
        await first.hello()
        await second.hello()
        third = await RawClient(transport).open()
        await until(lambda: third.ended)
        assert third.errors[0].error.code == Code.LIMIT_EXCEEDED
        await first.close()
        await until(lambda: len(broker.central.greeter) == 1)
        assert (await (await RawClient(transport).open()).hello()).HasField("welcome")
        assert (await second.ask(ping=carrier.Ping(client_us=3))).pong.client_us == 3


async def test_connections_beyond_the_limit_are_refused_whatever_the_number_of_their_sessions(
    clock: VirtualClock,
) -> None:
    async with Broker(clock=clock, connections_max=1, drain_ms=0) as broker:
        transport = broker.transport()
        for _ in range(3):
            await (await RawClient(transport).open()).hello()
        sent: list[carrier.BrokerFrame] = []

        async def send(frame: BrokerSent) -> None:
            sent.append(whole(frame))

        await broker.central.greeter.serve(CallContext("a-request", "another peer"), aiter_of_nothing(), send)
        assert sent[0].error.code == Code.LIMIT_EXCEEDED


async def aiter_of_nothing() -> AsyncIterator[carrier.ClientFrame]:
    nothing: list[carrier.ClientFrame] = []
    for frame in nothing:
        yield frame


async def test_info_shows_clients_and_their_measurements(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock
) -> None:
    producer = await (await connect()).produce(group="billing")
    consumer = await (await (await connect()).consume("worker")).subscribe()
    await producer.ask(create=Batches().natural(["a", "b"], clock.now_ms()))
    await until(lambda: len(consumer.received()) == 2)
    await consumer.ask(ping=carrier.Ping(client_us=1, latency_ms=0.5, clock_offset_ms=-12.0))
    clients = {client.who: client for client in (await info(transport)).clients}
    assert clients["billing"].state == "producer"
    worker = clients["worker"]
    assert (worker.state, worker.topic, worker.inflight, list(worker.buckets)) == (
        "subscribed",
        "mail",
        2,
        [0, 1, 2, 3],
    )
    assert (worker.latency_ms, worker.clock_offset_ms, worker.sdk) == (0.5, -12.0, "raw")


async def test_a_measurement_that_is_no_number_is_ignored(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.ask(ping=carrier.Ping(client_us=1, latency_ms=float("nan"), clock_offset_ms=float("inf")))
    assert broker.central.pinger.worst().latency_ms == 0.0


async def test_a_stopping_broker_notifies_its_clients_and_waits_for_them(clock: VirtualClock) -> None:
    storage = MemoryStorage()
    broker = Broker(clock=clock, storage=storage, drain_ms=60_000)
    await broker.start()
    transport = broker.transport()
    await create_topic(transport, buckets=4)
    producer = await (await RawClient(transport).open()).produce()
    consumer = await (await (await RawClient(transport).open()).consume()).subscribe()
    await producer.ask(create=Batches().natural(["a"], clock.now_ms()))
    await until(lambda: consumer.received() == ["a"])
    stopping = asyncio.create_task(broker.stop())
    await until(lambda: consumer.draining and producer.draining)
    refused = await producer.ask(create=Batches(2).natural(["b"], clock.now_ms()))
    assert (refused.error.code, refused.error.retryable) == (Code.DRAINING, True)
    assert not (await consumer.settle(carrier.DELETE, consumer.pushes[0].lease)).outcomes.codes
    late = await RawClient(transport).open()
    await until(lambda: late.ended)
    assert late.errors[0].error.code == Code.DRAINING
    assert not stopping.done()
    await producer.close()
    await consumer.close()
    await stopping
    assert storage.failure is not None, "the store is closed"


async def test_sessions_of_clients_that_do_not_leave_are_ended_at_the_time_limit(clock: VirtualClock) -> None:
    broker = Broker(clock=clock, drain_ms=1)
    await broker.start()
    client = await RawClient(broker.transport()).open()
    await client.hello()
    await broker.stop()
    await until(lambda: client.ended)
    assert client.errors[-1].error.code == Code.DRAINING


async def test_a_client_that_never_ends_does_not_delay_the_deletion_of_its_topic(
    connect: Connect,
    transport: InProcessTransport,
    broker: Broker,
    storage: MemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker waits for a request on the topic for a limited time, and once for each session."""
    monkeypatch.setattr(greeter, "EVACUATE_SECONDS", 0.05)
    client = await (await connect()).produce()
    apply, arrived, never = storage.apply, asyncio.Event(), asyncio.Event()

    async def stuck(changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        arrived.set()
        await never.wait()
        return await apply(changes, now, context)

    monkeypatch.setattr(storage, "apply", stuck)
    create = await client.start(create=Batches().natural(["a"], 5))
    await arrived.wait()
    topic = broker.central.catalog.find("mail")
    await transport.call("Overseer.DeleteTopic", overseer.TopicRequest(name="mail"), overseer.TopicResponse, 5.0)
    await until(lambda: not broker.central.catalog.all())
    assert not create.done()
    monkeypatch.setattr(greeter, "EVACUATE_SECONDS", 3_600.0)
    await asyncio.wait_for(broker.central.greeter.evacuate(topic, error_of(Code.TOPIC_DELETING)), patient(5))
    never.set()
    await until(lambda: client.ended)
    assert await storage.topics() == []
