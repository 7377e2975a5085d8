"""The broker's HTTP/1.1 endpoint: its pages, the handshake, and streams that the SDK would never send."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from dejaq.broker import Broker
from dejaq.errors import Code, Unavailable
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import errors_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1.websocket_pb2 import Call
from dejaq.protocol.websocket import connection
from dejaq.protocol.websocket.connection import WebSocketConnection
from dejaq.protocol.websocket.framing import CloseCode
from dejaq.protocol.websocket.messages import Kind, credit_payload, head
from dejaq.protocol.websocket.stream import CREDIT_BYTES
from dejaq.protocol.websocket.transport import WebSocketSession, WebSocketTransport
from dejaq.testing.waiting import patient
from tests.unit.broker.client import create_topic, until
from tests.unit.protocol.websocket.raw import RawSocket, frame

UPGRADE = """GET /v1 HTTP/1.1
Host: localhost
Upgrade: websocket
Connection: Upgrade
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==
Sec-WebSocket-Version: 13
Sec-WebSocket-Protocol: dejaq.v1"""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(listen="127.0.0.1:0", drain_ms=0) as broker:
        yield broker


@pytest.fixture
def address(broker: Broker) -> str:
    return broker.address


async def ask(address: str, request: str) -> tuple[int, str, str]:
    async with RawSocket.to(address) as raw:
        return await raw.ask(request)


def message(kind: Kind, stream: int, payload: bytes = b"") -> bytes:
    return frame(head(kind, stream) + payload)


def call(method: str, request: bytes = b"", *, timeout_ms: int = 5_000) -> bytes:
    payload: bytes = Call(method=method, timeout_ms=timeout_ms, request=request).SerializeToString()
    return payload


def error_in(received: bytes) -> errors_pb2.Error:
    assert received[0] == Kind.ERROR, received
    error: errors_pb2.Error = errors_pb2.Error.FromString(received[9:])
    return error


# Pages


async def test_health_readiness_and_metrics_are_pages(broker: Broker, address: str) -> None:
    status, _, body = await ask(address, "GET /healthz HTTP/1.1\nHost: localhost")
    assert (status, body) == (HTTPStatus.OK, "alive\n")
    assert (await ask(address, "GET /readyz HTTP/1.1\nHost: 127.0.0.1"))[0] == HTTPStatus.OK
    status, _, body = await ask(address, "GET /metrics?x=1 HTTP/1.1\nHost: [::1]:7400")
    assert status == HTTPStatus.OK
    assert "dejaq_sessions" in body
    await broker.central.doctor.start_draining()
    assert (await ask(address, "GET /readyz HTTP/1.1\nHost: 127.0.0.1"))[0] == HTTPStatus.SERVICE_UNAVAILABLE


async def test_the_head_of_a_page_comes_without_its_body(address: str) -> None:
    status, head_text, body = await ask(address, "HEAD /healthz HTTP/1.1\nHost: localhost")
    assert (status, body) == (HTTPStatus.OK, "")
    assert "Content-Length: 6" in head_text


@pytest.mark.parametrize(
    ("request_text", "status", "told"),
    [
        ("GET / HTTP/1.1\nHost: localhost", HTTPStatus.NOT_FOUND, "/healthz"),
        ("POST /metrics HTTP/1.1\nHost: localhost", HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD"),
        ("PUT /v1 HTTP/1.1\nHost: localhost", HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET"),
        ("GET /v1 HTTP/1.1\nHost: localhost", HTTPStatus.UPGRADE_REQUIRED, "dejaq://localhost"),
        (UPGRADE.replace("Version: 13", "Version: 8"), HTTPStatus.UPGRADE_REQUIRED, "Sec-WebSocket-Version: 13"),
        (UPGRADE.replace("dejaq.v1", "chat"), HTTPStatus.BAD_REQUEST, "dejaq.v1"),
        (UPGRADE.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"), HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key"),
        (UPGRADE + "\nOrigin: https://other.example", HTTPStatus.FORBIDDEN, "other sites"),
        (UPGRADE.replace("localhost", "rebound.example"), HTTPStatus.FORBIDDEN, "Host"),
        ("GET /metrics HTTP/1.1\nHost: rebound.example:7400", HTTPStatus.FORBIDDEN, "Host"),
        ("GET /metrics HTTP/1.1", HTTPStatus.FORBIDDEN, "Host"),
        ("GET / HTTP/3", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1"),
        ("nonsense", HTTPStatus.BAD_REQUEST, "cannot be read"),
        ("GET / HTTP/1.1\nX: " + "x" * 20_000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "16384"),
    ],
)
async def test_every_other_request_is_refused_with_its_reason(
    address: str, request_text: str, status: HTTPStatus, told: str
) -> None:
    answered, head_text, body = await ask(address, request_text)
    assert answered == status
    assert told in head_text + body


async def test_a_page_of_the_same_site_may_open_a_websocket(address: str) -> None:
    async with RawSocket.to(address) as raw:
        await raw.send((UPGRADE + "\nOrigin: http://localhost\n\n").replace("\n", "\r\n").encode())
        answer = await raw.head()
    assert answer.startswith("HTTP/1.1 101 ")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer


# Streams


async def test_frames_sent_with_the_handshake_are_answered(address: str) -> None:
    ping = carrier.ClientFrame(request=1, ping=carrier.Ping(client_us=7)).SerializeToString()
    async with RawSocket.to(address) as raw:
        early = (UPGRADE + "\n\n").replace("\n", "\r\n").encode()
        await raw.send(early + message(Kind.SESSION, 1) + message(Kind.MESSAGE, 1, ping))
        await raw.head()
        answer = await raw.message()
    assert answer[:9] == head(Kind.MESSAGE, 1)
    assert carrier.BrokerFrame.FromString(answer[9:]).pong.client_us == 7


async def test_bytes_that_are_no_client_frame_are_answered_and_the_session_stays_open(address: str) -> None:
    async with RawSocket.open(address) as raw:
        await raw.send(message(Kind.SESSION, 5) + message(Kind.MESSAGE, 5, b"\xff\xff\xff\xff"))
        answer = carrier.BrokerFrame.FromString((await raw.message())[9:])
        assert (answer.request, answer.error.code) == (0, Code.INVALID_ARGUMENT)
        hello = carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=1)).SerializeToString()
        await raw.send(message(Kind.MESSAGE, 5, hello))
        assert carrier.BrokerFrame.FromString((await raw.message())[9:]).HasField("welcome")


async def test_a_refused_call_ends_with_the_whole_error(address: str) -> None:
    async with RawSocket.open(address) as raw:
        request = overseer.TopicRequest(name="nowhere").SerializeToString()
        await raw.send(message(Kind.CALL, 1, call("Overseer.DescribeTopic", request)))
        error = error_in(await raw.message())
        assert error.code == Code.TOPIC_NOT_FOUND
        assert "nowhere" in error.message
        for number, payload, code in (
            (2, b"\xff\xff", Code.INVALID_ARGUMENT),
            (3, call("Overseer.DescribeTopic", b"\xff\xff"), Code.INVALID_ARGUMENT),
            (4, call("Carrier.Session"), Code.VERSION_UNSUPPORTED),
            (5, call("Nothing.AtAll"), Code.VERSION_UNSUPPORTED),
        ):
            await raw.send(message(Kind.CALL, number, payload))
            assert error_in(await raw.message()).code == code


async def test_a_call_that_takes_longer_than_its_time_is_ended_as_indefinite(broker: Broker, address: str) -> None:
    transport = WebSocketTransport(address)
    await create_topic(transport)
    waits = carrier.AwaitRequest(topic="mail", id="never", timeout_ms=20_000).SerializeToString()
    async with RawSocket.open(address) as raw:
        await raw.send(message(Kind.CALL, 1, call("Carrier.Await", waits, timeout_ms=50)))
        assert error_in(await raw.message()).code == Code.INDEFINITE
    await transport.close()


async def test_a_cancelled_call_ends_at_the_broker_and_others_continue(broker: Broker, address: str) -> None:
    transport = WebSocketTransport(address)
    await create_topic(transport)
    server = broker.central.server
    assert server is not None
    waits = carrier.AwaitRequest(topic="mail", id="never", timeout_ms=20_000).SerializeToString()
    async with RawSocket.open(address) as raw:
        await raw.send(message(Kind.CALL, 1, call("Carrier.Await", waits, timeout_ms=0)))
        await until(lambda: server.running_calls == 1)
        await raw.send(message(Kind.CANCEL, 1))
        await until(lambda: server.running_calls == 0)
        await raw.send(message(Kind.CALL, 2, call("Overseer.Ping")))
        assert (await raw.message())[:9] == head(Kind.RESULT, 2)
        await raw.send(message(Kind.CALL, 3, call("Carrier.Await", waits, timeout_ms=0)))
        await until(lambda: server.running_calls == 1)
    await until(lambda: server.running_calls == 0)
    await transport.close()


async def test_a_session_that_the_client_ends_is_ended_by_the_broker_too(broker: Broker, address: str) -> None:
    async with RawSocket.open(address) as raw:
        await raw.send(message(Kind.SESSION, 1))
        await until(lambda: len(broker.central.greeter) == 1)
        await raw.send(message(Kind.END, 1))
        assert await raw.message() == head(Kind.END, 1)
        await until(lambda: len(broker.central.greeter) == 0)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"short"), CloseCode.PROTOCOL_ERROR),
        (message(Kind.SESSION, 0), CloseCode.PROTOCOL_ERROR),
        (frame(bytes(9)), CloseCode.PROTOCOL_ERROR),
        (frame(b"\xff" + bytes(7) + b"\1"), CloseCode.PROTOCOL_ERROR),
        (message(Kind.MESSAGE, 1), CloseCode.PROTOCOL_ERROR),
        (message(Kind.SESSION, 2) + message(Kind.SESSION, 2), CloseCode.PROTOCOL_ERROR),
        (message(Kind.SESSION, 2) + message(Kind.SESSION, 1), CloseCode.PROTOCOL_ERROR),
        (message(Kind.SESSION, 1) + message(Kind.RESULT, 1), CloseCode.PROTOCOL_ERROR),
        (message(Kind.SESSION, 1) + message(Kind.CREDIT, 1, b"12"), CloseCode.PROTOCOL_ERROR),
        (message(Kind.SESSION, 1) + message(Kind.CREDIT, 1, credit_payload(2**32 - 1)) * 300, CloseCode.PROTOCOL_ERROR),
        (frame(b"text", 1), CloseCode.NOT_BINARY),
    ],
)
async def test_a_message_that_breaks_the_rules_closes_the_connection_with_a_code(
    broker: Broker, address: str, sent: bytes, code: CloseCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads the end at once: it came when the time for an answer was over, which nobody would have read."""
    monkeypatch.setattr(connection, "CLOSE_SECONDS", 600.0)
    async with RawSocket.open(address) as raw:
        await raw.send(sent)
        assert (await raw.closed_with())[0] == code
        assert await raw.rest() == b""
    await until(lambda: len(broker.central.greeter) == 0)


async def test_more_than_the_credit_of_a_stream_closes_the_connection(broker: Broker, address: str) -> None:
    transport = WebSocketTransport(address)
    await create_topic(transport)
    waits = carrier.UploadFrame(part=b"x" * 1_000_000).SerializeToString()
    async with RawSocket.open(address) as raw:
        # A call with one request reads no further messages, so its credit does not come back.
        request = carrier.AwaitRequest(topic="mail", id="never", timeout_ms=20_000).SerializeToString()
        await raw.send(message(Kind.CALL, 1, call("Carrier.Await", request, timeout_ms=30_000)))
        for _ in range(CREDIT_BYTES // len(waits) + 2):
            raw.writer.write(message(Kind.MESSAGE, 1, waits))
        assert (await raw.closed_with())[0] == CloseCode.POLICY
    await transport.close()


async def test_a_close_is_answered_and_a_ping_too(address: str) -> None:
    async with RawSocket.open(address) as raw:
        await raw.send(frame(b"hi", 9))
        assert await raw.next_frame() == (10, b"hi")
        await raw.send(frame(b"\x03\xe8bye", 8))
        assert await raw.next_frame() == (8, b"\x03\xe8")
        assert await raw.rest() == b""


async def test_a_broker_that_stops_says_so(broker: Broker, address: str) -> None:
    async with RawSocket.open(address) as raw:
        await raw.send(message(Kind.SESSION, 1))
        await until(lambda: len(broker.central.greeter) == 1)
        stopping = asyncio.ensure_future(broker.stop())
        assert carrier.BrokerFrame.FromString((await raw.message())[9:]).HasField("draining")
        assert carrier.BrokerFrame.FromString((await raw.message())[9:]).error.code == Code.DRAINING
        assert await raw.message() == head(Kind.END, 1)
        assert (await raw.closed_with())[0] == CloseCode.GOING_AWAY
        await raw.send(frame(CloseCode.GOING_AWAY.to_bytes(2, "big"), 8))
        await stopping


async def test_small_messages_are_sent_at_once_at_both_ends(
    broker: Broker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nagle's algorithm would hold an answer back for 40 ms whenever another was sent shortly before."""
    attached: list[asyncio.Transport] = []
    attach = WebSocketConnection.attach

    def recorded(self: WebSocketConnection, transport: asyncio.Transport, early: bytes = b"") -> None:
        attached.append(transport)
        attach(self, transport, early)

    monkeypatch.setattr(WebSocketConnection, "attach", recorded)
    transport = WebSocketTransport(address)
    await create_topic(transport)
    sockets = [one.get_extra_info("socket") for one in attached]
    assert [made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for made in sockets] == [1, 1]
    await transport.close()


async def test_a_stream_of_a_connection_that_is_lost_has_ended(broker: Broker, address: str) -> None:
    """A session that began on a connection that was just lost waited without end for its first frame."""
    transport = WebSocketTransport(address)
    opened = await transport._open()
    opened.socket.abort("cut by the test")
    session = WebSocketSession(opened, "")
    with pytest.raises(Unavailable):
        await asyncio.wait_for(session.receive(), patient(5))
    await session.close()
    await transport.close()
