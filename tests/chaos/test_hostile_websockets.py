"""R14: connections that send nothing, too much or nonsense, or read nothing, end with bounded memory. G8."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

import dejaq
from dejaq.broker.doctor import resident_bytes
from dejaq.broker.sessions.session import PINGS_PER_STEP
from dejaq.broker.websocket import connected_client, http
from dejaq.domain.bodies.body_block import varint
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1.websocket_pb2 import Call
from dejaq.protocol.websocket import connection
from dejaq.protocol.websocket.connection import HELD_BYTES_MAX
from dejaq.protocol.websocket.framing import CloseCode, Opcode
from dejaq.protocol.websocket.handshake import new_key, request_head
from dejaq.protocol.websocket.messages import MESSAGE_BYTES_MAX, Kind, head
from dejaq.testing.waiting import eventually, patient
from tests.pace import take_time
from tests.unit.protocol.websocket.raw import RawSocket, frame

MEMORY_BYTES = 150 * 1024 * 1024
LARGE_BYTES = 10 * 1024 * 1024


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    async with dejaq.Broker(tmp_path / "data", listen="127.0.0.1:0", connections_max=20, drain_ms=100) as made:
        yield made


@pytest.fixture
def address(broker: dejaq.Broker) -> str:
    return broker.address


@pytest.fixture
async def client(address: str) -> AsyncIterator[dejaq.Client]:
    async with dejaq.connect(f"dejaq://{address}", deadline=10) as made:
        await made.create_topic("mail", buckets=4)
        yield made


async def still_serves(client: dejaq.Client) -> None:
    async with client.producer("mail") as producer, client.consumer("mail") as consumer:
        sent = await producer.send(b"alive", id="alive")
        async with asyncio.timeout(patient(10)):
            lease = await anext(consumer)
        assert lease.id == sent
        await lease.delete()


def session(number: int, client_frame: carrier.ClientFrame) -> bytes:
    return frame(head(Kind.MESSAGE, number) + client_frame.SerializeToString())


async def test_r14_a_connection_that_never_finishes_its_request_is_ended(
    address: str, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    async with RawSocket.to(address) as silent, RawSocket.to(address) as slow:
        await slow.send(b"GET /v1 HTTP/1.1\r\n")
        assert await silent.rest() == b""
        assert await slow.rest() == b""
    await still_serves(client)


async def test_r14_connections_beyond_the_limit_are_refused_for_now(
    address: str, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the first connections must not be ended before the last one is open.
    monkeypatch.setattr(http, "REQUEST_SECONDS", 120.0)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(RawSocket.to(address)) for _ in range(300)]
        answers = await asyncio.gather(*(raw.ask("GET /healthz HTTP/1.1\nHost: localhost") for raw in opened[-5:]))
        assert [status for status, _, _ in answers] == [503] * 5
        await still_serves(client)


async def test_r14_a_client_that_vanished_without_a_word_is_noticed(
    broker: dejaq.Broker, address: str, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose other end answers no ping, as after a power failure there."""
    monkeypatch.setattr(connected_client, "PING_SECONDS", 0.1)
    before = len(broker.central.greeter)
    async with RawSocket.open(address) as raw:
        await raw.send(frame(head(Kind.SESSION, 1)))
        await eventually(lambda: len(broker.central.greeter) == before + 1, within=5, what="the session is open")
        await eventually(lambda: len(broker.central.greeter) == before, within=10, what="the session is over")
    await still_serves(client)


async def test_r14_a_client_that_is_silent_but_answers_pings_stays(
    broker: dejaq.Broker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected_client, "PING_SECONDS", 0.1)
    async with RawSocket.open(address) as raw:
        await raw.send(frame(head(Kind.SESSION, 1)))
        for _ in range(2 * (connection.PINGS + 1)):
            assert (await raw.next_frame())[0] == Opcode.PING
            await raw.send(frame(b"", Opcode.PONG))
        assert len(broker.central.greeter) == 1


async def test_r14_a_message_that_never_ends_is_given_up(
    address: str, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected_client, "PING_SECONDS", 0.05)
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.3)
    async with RawSocket.open(address) as raw:
        data = frame(bytes(1_000_000))
        sending = asyncio.ensure_future(trickle(raw, data))
        await raw.rest()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await still_serves(client)


async def trickle(raw: RawSocket, data: bytes) -> None:
    """Send bytes so slowly that they never end, and so often that the connection is never silent."""
    for byte in data:
        await raw.send(bytes((byte,)))
        await take_time(0.01)


@pytest.mark.parametrize("announced", [MESSAGE_BYTES_MAX + 1, 2**40, 2**63])
async def test_r14_a_message_beyond_the_limit_ends_only_that_connection(
    address: str, client: dejaq.Client, announced: int
) -> None:
    """It is refused by its head, before its bytes come."""
    async with RawSocket.open(address) as raw:
        await raw.send(frame(bytes(70_000))[:2] + announced.to_bytes(8, "big") + b"1234")
        code, reason = await raw.closed_with()
        assert (code, str(MESSAGE_BYTES_MAX) in reason) == (CloseCode.TOO_LARGE, True)
    await still_serves(client)


async def test_r14_a_connection_with_too_many_unanswered_bytes_is_not_read(
    broker: dejaq.Broker, address: str, client: dejaq.Client
) -> None:
    """The requests of all its calls count together, so the number of calls does not matter."""
    server = broker.central.server
    assert server is not None
    # A field that the broker does not know makes the request large.
    request = carrier.AwaitRequest(topic="mail", id="never", timeout_ms=30_000).SerializeToString()
    request += b"\xfa\x7f" + varint(LARGE_BYTES) + bytes(LARGE_BYTES)
    call = Call(method="Carrier.Await", timeout_ms=30_000, request=request).SerializeToString()
    most = HELD_BYTES_MAX // LARGE_BYTES + 1
    async with RawSocket.open(address) as raw:
        sending = asyncio.ensure_future(send_calls(raw, call, 4 * most))
        await eventually(lambda: server.running_calls == most, within=10, what="the broker works on some calls")
        await still_serves(client)
        assert server.running_calls == most
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def send_calls(raw: RawSocket, call: bytes, count: int) -> None:
    for number in range(1, count + 1):
        await raw.send(frame(head(Kind.CALL, number) + call))


async def test_r14_a_client_that_reads_nothing_delays_only_itself(address: str, client: dejaq.Client) -> None:
    """G8: deliveries to it stop when the network's buffers and ours are full."""
    await client.create_topic("large", buckets=4)
    async with client.producer("large") as producer:
        for _ in range(10):
            assert (await producer.send_batch([b"x" * 100_000] * 60, delay=0)).ok
    before = resident_bytes()
    async with RawSocket.to(address, limit=1) as raw:
        raw.writer.write(request_head(address, new_key()))
        steps = [
            carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=1)),
            carrier.ClientFrame(request=2, consumer=carrier.ConsumerHandshake(topic="large", name="deaf")),
            carrier.ClientFrame(
                request=3, subscribe=carrier.Subscribe(credit_rows=1_000, credit_bytes=2**40, lease_ms=30_000)
            ),
        ]
        raw.writer.write(frame(head(Kind.SESSION, 1)) + b"".join(session(1, step) for step in steps))
        await eventually(
            lambda: client.count("large", status="processing", consumer="deaf"),
            within=10,
            what="the client is sent a frame",
        )
        await still_serves(client)
        assert resident_bytes() - before < MEMORY_BYTES


async def test_r14_random_bytes_end_the_connection_and_nothing_else(address: str, client: dejaq.Client) -> None:
    chance = Random(14)
    for _ in range(50):
        async with RawSocket.open(address) as raw:
            await raw.send(chance.randbytes(chance.randrange(2, 3_000)))
            raw.writer.write_eof()
            await raw.rest()
    await still_serves(client)


async def test_r14_a_flood_of_pings_leaves_the_event_loop_to_others(
    broker: dejaq.Broker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G8: pings are answered without a task of their own, but not thousands of them in one step of the event loop."""
    ping = carrier.ClientFrame(request=1, ping=carrier.Ping(client_us=1)).SerializeToString()
    count, turn = 3_000, 0
    seen: list[int] = []
    monkeypatch.setattr(broker.central.pinger, "report", lambda *_: seen.append(turn))
    async with RawSocket.open(address) as raw:
        await raw.send(frame(head(Kind.SESSION, 1)) + frame(head(Kind.MESSAGE, 1) + ping) * count)

        async def answered() -> None:
            nonlocal turn
            while len(seen) < count:
                await asyncio.sleep(0)
                turn += 1

        await asyncio.wait_for(answered(), patient(30))
    assert max(Counter(seen).values()) <= 2 * PINGS_PER_STEP
