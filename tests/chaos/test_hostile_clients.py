"""R14: clients that are slow, vanish, never finish or ask for too much are refused or delayed, others served. G8."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import dejaq
from dejaq import limits
from dejaq.broker.context import begin_call
from dejaq.broker.doctor import resident_bytes
from dejaq.domain.ids import ProducerSession
from dejaq.protocol.channel import GrpcTransport
from dejaq.protocol.spliced import BrokerSent, whole
from dejaq.protocol.transport import SessionChannel, Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.testing.waiting import eventually, patient
from tests.chaos.sizes import size

BUCKETS = 8
SESSION = ProducerSession(1_700_000_000_000, 9).pack()


@pytest.fixture(autouse=True, params=range(size("R14", ci=1, full=20)))
def again(request: pytest.FixtureRequest) -> None:
    """Runs every test of this module several times."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    async with dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0", grpc="127.0.0.1:0", drain_ms=100) as made:
        yield made


@pytest.fixture(params=["grpc", "websocket"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """The endpoint that the clients of a test use."""
    return str(request.param)


def transport_to(broker: dejaq.Broker, endpoint: str) -> Transport:
    if endpoint == "grpc":
        return GrpcTransport(broker.grpc_address)
    return WebSocketTransport(broker.address)


@pytest.fixture
async def client(broker: dejaq.Broker, endpoint: str) -> AsyncIterator[dejaq.Client]:
    scheme = "dejaq+grpc" if endpoint == "grpc" else "dejaq"
    async with dejaq.connect(f"{scheme}://{transport_to(broker, endpoint).address}", deadline=10) as made:
        await made.create_topic("mail", buckets=BUCKETS)
        await made.create_topic("other", buckets=BUCKETS)
        yield made


class Raw:
    """A client that uses the protocol directly, and badly."""

    def __init__(self, session: SessionChannel) -> None:
        self._session = session
        self._number = 0

    @classmethod
    @asynccontextmanager
    async def on(cls, broker: dejaq.Broker, endpoint: str = "websocket") -> AsyncIterator[Raw]:
        transport = transport_to(broker, endpoint)
        session = await transport.session()
        raw = cls(session)
        try:
            yield raw
        finally:
            await session.close()
            await transport.close()

    async def send(self, frame: carrier.ClientFrame) -> int:
        self._number += 1
        frame.request = self._number
        await self._session.send(frame)
        return self._number

    async def ask(self, frame: carrier.ClientFrame) -> carrier.BrokerFrame:
        number = await self.send(frame)
        while True:
            answer = await asyncio.wait_for(self._session.receive(), patient(10))
            assert answer is not None, "the session was ended"
            if answer.request == number or answer.HasField("error"):
                return answer

    async def enter(self, role: carrier.ClientFrame) -> None:
        await self.ask(carrier.ClientFrame(hello=carrier.Hello(protocol=1, sdk="raw", client="raw")))
        assert (await self.ask(role)).HasField("outcomes")

    async def produce(self, topic: str) -> None:
        await self.enter(carrier.ClientFrame(producer=carrier.ProducerHandshake(topic=topic, group="raw")))

    async def consume(self, topic: str, name: str, *, lease_ms: int, rows: int) -> None:
        await self.enter(carrier.ClientFrame(consumer=carrier.ConsumerHandshake(topic=topic, name=name)))
        subscribe = carrier.Subscribe(credit_rows=rows, credit_bytes=2**30, lease_ms=lease_ms)
        await self.send(carrier.ClientFrame(subscribe=subscribe))


async def deliveries(client: dejaq.Client, topic: str, count: int, *, name: str = "good") -> list[str]:
    """The messages that a well-behaved consumer gets and deletes, until it has had `count` of them."""
    seen: list[str] = []
    async with asyncio.timeout(patient(30)), client.consumer(topic, name=name, lease=5, max_messages=count) as consumer:
        async for batch in consumer.batches(100):
            seen += batch.ids
            assert (await batch.delete()).ok
    return seen


async def still_serves(client: dejaq.Client) -> None:
    """Whether a message passes through another topic from producer to consumer."""
    async with client.producer("other") as producer:
        sent = await producer.send(b"alive")
    assert await deliveries(client, "other", 1) == [sent]


async def test_r14_messages_that_wait_for_a_slow_consumer_go_to_one_with_credit(client: dejaq.Client) -> None:
    """G8: a consumer that settles nothing is sent only its credit; other due messages in its buckets go to others."""
    async with client.producer("mail") as producer:
        ids = [f"m-{number}" for number in range(500)]
        assert (await producer.send_batch([b"x"] * 500, delay=0, ids=ids)).ok
    async with client.consumer("mail", name="slow", lease=30, max_in_flight=10) as slow:
        held = {lease.id: lease for lease in [await anext(slow) for _ in range(10)]}
        async with asyncio.timeout(patient(10)):
            assert set(await deliveries(client, "mail", 490, name="good")) == set(ids) - held.keys()
        assert await client.count("mail", status="processing", consumer="slow") == 10
        for lease in held.values():
            await lease.delete()
    assert await client.count("mail") == 0


async def test_r14_a_client_that_does_not_read_delays_only_itself(
    broker: dejaq.Broker, client: dejaq.Client, endpoint: str
) -> None:
    """G8: the broker stops pushing to a client that reads nothing; its memory does not grow, and others are served."""
    async with client.producer("mail") as producer:
        for _ in range(8):
            assert (await producer.send_batch([b"x" * 100_000] * 60, delay=0)).ok
    before = resident_bytes()
    async with Raw.on(broker, endpoint) as deaf:
        await deaf.consume("mail", "deaf", lease_ms=30_000, rows=1_000)
        await eventually(
            lambda: client.count("mail", status="processing", consumer="deaf"),
            within=10,
            what="the client is sent a frame",
        )
        await still_serves(client)
        assert resident_bytes() - before < 150 * 1024 * 1024


async def test_r14_messages_of_a_vanished_consumer_are_delivered_again(
    broker: dejaq.Broker, client: dejaq.Client, endpoint: str
) -> None:
    """G3, G4, G8: a client that vanishes keeps its leases until they end; others get all other messages."""
    async with client.producer("mail") as producer:
        results = await producer.send_batch([b"x"] * 50, delay=0)
    async with Raw.on(broker, endpoint) as gone:
        await gone.consume("mail", "gone", lease_ms=300, rows=20)
        await eventually(
            lambda: client.count("mail", status="processing", consumer="gone"),
            within=10,
            what="the client is sent a frame",
        )
    seen = await deliveries(client, "mail", 50)
    assert Counter(seen) == Counter(results.ids)


async def test_r14_a_poison_message_does_not_delay_others(client: dejaq.Client) -> None:
    """G4, G8: a message that is always released is always delivered again, counted, between the others."""
    async with client.producer("mail") as producer:
        await producer.send(b"poison", id="poison")
        good = await producer.send_batch([b"x"] * 200, delay=0)
    attempts: list[int] = []
    done: set[str] = set()
    async with asyncio.timeout(patient(30)), client.consumer("mail", name="worker", lease=5) as consumer:
        async for lease in consumer:
            if lease.id == "poison":
                attempts.append(lease.attempts)
                await lease.release(delay=0)
            else:
                done.add(lease.id)
                await lease.delete()
            if len(done) == 200 and len(attempts) >= 30:
                break
    assert done == set(good.ids)
    assert attempts == list(range(1, len(attempts) + 1))
    assert [message.id async for page in client.browse("mail") for message in page] == ["poison"]


async def test_r14_a_batch_beyond_the_limit_is_refused_as_a_whole(
    broker: dejaq.Broker, client: dejaq.Client, endpoint: str
) -> None:
    """G6, G8: a client that does not split batches is refused; nothing is created, and its session stays open."""
    async with client.producer("mail") as producer:
        results = await producer.send_batch([b"x"] * (limits.BATCH_COUNT_MAX * 2 + 1), delay=3_600)
    assert results.ok
    assert await client.count("mail") == limits.BATCH_COUNT_MAX * 2 + 1
    async with Raw.on(broker, endpoint) as raw:
        await raw.produce("mail")
        rows = limits.BATCH_COUNT_MAX + 1
        many = carrier.CreateBatch(session=SESSION, ts=[0] * rows, bodies=[b""] * rows)
        answer = await raw.ask(carrier.ClientFrame(create=many))
        assert answer.error.code == dejaq.Code.BATCH_TOO_LARGE
        heavy = carrier.CreateBatch(session=SESSION, ts=[0] * 10, bodies=[b"x" * 1_000_000] * 10)
        answer = await raw.ask(carrier.ClientFrame(create=heavy))
        assert answer.error.code == dejaq.Code.BATCH_TOO_LARGE
        fine = carrier.CreateBatch(session=SESSION, ts=[2**40], bodies=[b"x"])
        assert (await raw.ask(carrier.ClientFrame(create=fine))).HasField("outcomes")
    assert await client.count("mail") == limits.BATCH_COUNT_MAX * 2 + 2


async def test_r14_a_frame_beyond_the_limit_ends_only_that_session(broker: dejaq.Broker, client: dejaq.Client) -> None:
    """G8: a frame larger than any batch needs is refused before it is read, and others are served."""
    frame = carrier.ClientFrame(request=1, create=carrier.CreateBatch(bodies=[b"x" * (limits.FRAME_BYTES_MAX + 1)]))
    # The client has the same limit; the test removes it.
    async with grpc.aio.insecure_channel(
        broker.grpc_address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        call: Any = channel.stream_stream("/dejaq.v1.Carrier/Session")()
        await call.write(frame.SerializeToString())
        assert await asyncio.wait_for(call.code(), patient(10)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in await call.details()
    await still_serves(client)


async def test_r14_only_the_item_with_a_body_beyond_the_limit_is_refused(
    broker: dejaq.Broker, client: dejaq.Client, endpoint: str
) -> None:
    """G6, G8: the item has a refusal of its own, and the other items of the batch are created."""
    large = b"x" * (limits.BODY_BYTES_MAX + 1)
    async with client.producer("mail") as producer:
        with pytest.raises(dejaq.LimitExceeded) as refused:
            await producer.send(large)
        assert refused.value.code is dejaq.Code.BODY_TOO_LARGE
        results = await producer.send_batch([b"a", large, b"b"], delay=3_600, results=True)
        assert results.failed == {1: dejaq.Code.BODY_TOO_LARGE}
    async with Raw.on(broker, endpoint) as raw:
        await raw.produce("mail")
        batch = carrier.CreateBatch(session=SESSION, ts=[2**40] * 3, bodies=[b"a", large, b"b"])
        answer = await raw.ask(carrier.ClientFrame(create=batch))
        assert list(answer.outcomes.rows) == [1]
        assert list(answer.outcomes.codes) == [dejaq.Code.BODY_TOO_LARGE]
    assert await client.count("mail") == 4


async def test_r14_sessions_beyond_the_limit_are_refused_until_one_leaves(tmp_path: Path) -> None:
    """G8: the session above the limit is refused with a reason; others stay open, and one that leaves makes room."""
    async with (
        dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0", sessions_max=4, drain_ms=100) as broker,
        dejaq.connect(f"dejaq://{broker.address}", deadline=10) as client,
    ):
        await client.create_topic("mail", buckets=4)
        async with client.producer("mail") as producer:
            async with Raw.on(broker) as one, Raw.on(broker) as two, Raw.on(broker) as three:
                for raw in (one, two, three):
                    await raw.produce("mail")
                async with Raw.on(broker) as fourth:
                    answer = await fourth.ask(carrier.ClientFrame(hello=carrier.Hello(protocol=1)))
                    assert answer.error.code == dejaq.Code.LIMIT_EXCEEDED
                await producer.send(b"x", delay=3_600)
            await eventually(lambda: _sessions(client, 1), within=5, what="the sessions have ended")
            async with Raw.on(broker) as again:
                await again.produce("mail")


async def _sessions(client: dejaq.Client, count: int) -> bool:
    return len((await client.info()).clients) == count


async def test_r14_connections_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    """G8: the same for connections, each of which may carry several sessions."""
    async with dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0", connections_max=1, drain_ms=100) as broker:
        central = broker.central
        refusals: list[carrier.BrokerFrame] = []
        over = asyncio.Event()

        async def frames() -> AsyncIterator[carrier.ClientFrame]:
            yield carrier.ClientFrame(request=1, ping=carrier.Ping())
            await over.wait()

        async def send(frame: BrokerSent) -> None:
            refusals.append(whole(frame))

        first = asyncio.create_task(central.greeter.serve(begin_call("ipv4:127.0.0.1:1"), frames(), send))
        await eventually(lambda: refusals, within=5, what="the first connection is served")
        await central.greeter.serve(begin_call("ipv4:127.0.0.1:2"), frames(), send)
        assert [frame.WhichOneof("event") for frame in refusals] == ["pong", "error"]
        assert refusals[1].error.code == dejaq.Code.LIMIT_EXCEEDED
        over.set()
        await first
