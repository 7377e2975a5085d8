"""R15: any bytes on the WebSocket endpoint are read, or end that connection with a code; others are served. G8."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker import Broker
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1.websocket_pb2 import Call
from dejaq.protocol.websocket.framing import CloseCode, FrameError, FrameReader, Opcode, Payload
from dejaq.protocol.websocket.handshake import BadHttpHead, parse_head
from dejaq.protocol.websocket.messages import Kind, head, parse
from dejaq.protocol.websocket.transport import WebSocketTransport
from tests.fuzz.corpus import damaged, opening_frames, producer_frames
from tests.fuzz.executions import executions
from tests.unit.protocol.websocket.raw import RawSocket, frame

pytestmark = pytest.mark.chaos
BYTES_MAX = 10_000
SEEDS = st.integers(min_value=0, max_value=2**32)
CODES = {CloseCode.PROTOCOL_ERROR, CloseCode.TOO_LARGE, CloseCode.NOT_BINARY, CloseCode.POLICY}


def received(data: bytes, piece: int) -> list[tuple[Opcode, bytes]]:
    """What a server reads from these bytes, in pieces."""
    found: list[tuple[Opcode, bytes]] = []

    def deliver(opcode: Opcode, payload: Payload) -> None:
        found.append((opcode, bytes(payload)))

    reader = FrameReader(masked=True, message_bytes_max=BYTES_MAX, deliver=deliver)
    for at in range(0, len(data), piece):
        part = data[at : at + piece]
        while part:
            place = reader.place()
            size = min(len(place), len(part))
            place[:size] = part[:size]
            reader.received(size)
            part = part[size:]
    return found


@executions(2_000)
@given(data=st.binary(max_size=200), piece=st.integers(1, 50))
def test_r15_arbitrary_bytes_as_frames(data: bytes, piece: int) -> None:
    """They are messages, or an error with a close code; the pieces in which they come make no difference."""
    outcomes: list[object] = []
    for size in (piece, len(data) or 1):
        try:
            outcomes.append(("read", received(data, size)))
        except FrameError as error:
            assert error.code in CODES
            outcomes.append(("refused", [(error.code, error.reason)]))
    assert outcomes[0] == outcomes[1]


@executions(2_000)
@given(payloads=st.lists(st.binary(max_size=9_000), min_size=1, max_size=4), seed=SEEDS)
def test_r15_damaged_frames(payloads: list[bytes], seed: int) -> None:
    """A damaged frame is another message, an error with a close code, or a frame that never ends."""
    data = b"".join(frame(payload) for payload in payloads)
    try:
        for _, payload in received(damaged(data, seed), 1_000):
            assert len(payload) <= BYTES_MAX
    except FrameError as error:
        assert error.code in CODES


@executions(1_000)
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_r15_arbitrary_bytes_as_a_request(data: bytes) -> None:
    """A request is read or refused."""
    try:
        assert len(parse_head(data).first) == 3
    except BadHttpHead as error:
        assert str(error)


@executions(1_000)
@given(data=st.binary(max_size=40))
def test_r15_arbitrary_bytes_as_a_message(data: bytes) -> None:
    """A message has a known kind and the number of a stream, or is refused."""
    try:
        kind, stream, payload = parse(data)
    except FrameError as error:
        assert error.code is CloseCode.PROTOCOL_ERROR
    else:
        assert head(kind, stream) + payload == data


class Endpoint:
    """A broker that receives the bytes of a client, in one connection per input."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._broker = Broker(listen="127.0.0.1:0", drain_ms=0)
        runner.run(self._broker.start())
        self._address = self._broker.address
        self._transport = WebSocketTransport(self._address)

    def check(self, data: bytes) -> None:
        self._runner.run(self._check(data))

    async def _check(self, data: bytes) -> None:
        async with RawSocket.open(self._address) as raw:
            await raw.send(data)
            raw.writer.write_eof()
            await raw.rest()
        answer = await self._transport.call(
            "Overseer.Ping", overseer.PingRequest(client_us=3), overseer.PingResponse, 10.0
        )
        assert answer.client_us == 3

    def close(self) -> None:
        self._runner.run(self._transport.close())
        self._runner.run(self._broker.stop())


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with asyncio.Runner() as runner:
        made = Endpoint(runner)
        yield made
        made.close()


@executions(300)
@given(seed=SEEDS)
def test_r15_damaged_messages_of_a_real_client(endpoint: Endpoint, seed: int) -> None:
    """A damaged connection ends, or its messages are answered; the broker serves the next client."""
    chance = Random(seed)
    sent = [head(Kind.SESSION, 1)]
    for part in (*opening_frames()[:2], *chance.sample(producer_frames(), 2)):
        sent.append(head(Kind.MESSAGE, 1) + part)
    sent.append(head(Kind.CALL, 2) + Call(method="Overseer.Info", timeout_ms=100).SerializeToString())
    sent.append(head(chance.choice(list(Kind)), chance.randrange(4)) + chance.randbytes(4))
    spoilt = chance.randrange(len(sent))
    if chance.random() < 0.5:
        sent[spoilt] = damaged(sent[spoilt], seed)
        data = b"".join(map(frame, sent))
    else:
        data = damaged(b"".join(map(frame, sent)), seed)
    endpoint.check(data)
