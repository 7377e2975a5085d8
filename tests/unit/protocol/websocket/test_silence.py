"""A connection is pinged seldom while it is heard, and ends soon after the other side fell silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from dejaq.protocol.websocket.connection import (
    ANSWER_SECONDS,
    COMMON_TIMES,
    PINGS,
    QUIET_INTERVALS,
    REST_FACTOR,
    WebSocketConnection,
)
from dejaq.protocol.websocket.framing import Opcode, frame_head
from dejaq.testing.waiting import eventually

INTERVAL = 0.04


class RecordingTransport:
    """Records the pings that were written, and whether the connection was aborted."""

    def __init__(self) -> None:
        self.pings = 0
        self.aborted = False
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data
        self.pings += data.count(frame_head(Opcode.PING, 0, masked=True))

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: object) -> None:
        pass


@pytest.fixture
def transport() -> RecordingTransport:
    return RecordingTransport()


def attached(transport: RecordingTransport) -> WebSocketConnection:
    connection = WebSocketConnection(
        client=True, on_message=lambda _: None, on_lost=lambda _: None, ping_seconds=INTERVAL
    )
    connection.attach(cast(asyncio.Transport, transport))
    return connection


def hear(connection: WebSocketConnection) -> None:
    pong = frame_head(Opcode.PONG, 0, masked=False)
    connection.get_buffer(len(pong))[: len(pong)] = pong
    connection.buffer_updated(len(pong))


async def test_a_silent_connection_is_pinged_twice_and_ended(transport: RecordingTransport) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    connection = attached(transport)
    await eventually(lambda: transport.aborted, within=10, poll=0.001)
    assert transport.pings == PINGS
    assert connection.reason == "the other side was silent for too long"
    assert loop.time() - began >= (QUIET_INTERVALS + 1 - 3 / COMMON_TIMES) * INTERVAL


async def test_an_answer_to_a_ping_begins_another_rest(transport: RecordingTransport) -> None:
    connection = attached(transport)
    for number in range(1, 5):
        await eventually(lambda number=number: transport.pings >= number, within=10, poll=0.001)  # type: ignore[misc]
        hear(connection)
    assert not transport.aborted
    connection.abort("the test is over")


async def test_a_client_that_was_suspended_pings_before_it_ends_the_connection(transport: RecordingTransport) -> None:
    connection = attached(transport)
    connection._heard_at -= 1_000 * INTERVAL
    connection._look()
    assert not transport.aborted
    hear(connection)
    connection._look()
    assert not transport.aborted
    await asyncio.sleep(0)
    assert transport.pings == 1
    connection.abort("the test is over")


def receive(connection: WebSocketConnection, data: bytes) -> None:
    connection.get_buffer(len(data))[: len(data)] = data
    connection.buffer_updated(len(data))


async def test_pings_are_answered_in_every_form_and_in_order(transport: RecordingTransport) -> None:
    """A ping without a payload, which is most of what idle connections receive, is answered at once."""
    got: list[bytes] = []
    broker = WebSocketConnection(
        client=False, on_message=lambda message: got.append(bytes(message)), on_lost=lambda _: None, ping_seconds=60
    )
    broker.attach(cast(asyncio.Transport, transport))
    mask = b"\1\2\3\4"
    bare = bytes((0x80 | Opcode.PING, 0x80)) + mask
    receive(broker, bare)
    assert transport.written == b"\x8a\x00"
    # Behind an answer that has not left, in pieces, within a message of several frames, and with a payload.
    broker.write(b"first")
    receive(broker, bare)
    await asyncio.sleep(0)
    assert transport.written == b"\x8a\x00" + b"\x82\x05first" + b"\x8a\x00"
    transport.written = b""
    receive(broker, bare[:4])
    receive(broker, bare[4:])
    receive(broker, bytes((Opcode.BINARY, 0x81)) + b"\0\0\0\0a")
    receive(broker, bare)
    receive(broker, bytes((0x80 | Opcode.CONTINUATION, 0x81)) + b"\0\0\0\0b")
    receive(broker, bytes((0x80 | Opcode.PING, 0x82)) + b"\0\0\0\0hi")
    await asyncio.sleep(0)
    assert transport.written == b"\x8a\x00" * 2 + b"\x8a\x02hi"
    assert got == [b"ab"]
    # A client must mask also these frames.
    receive(broker, b"\x89\x00")
    assert not broker.open
    broker.abort("the test is over")


async def test_connections_are_examined_at_common_times(transport: RecordingTransport) -> None:
    """10,000 idle connections woke the broker for each of their pings."""
    loop, handles = asyncio.get_running_loop(), list[float]()
    for _ in range(20):
        connection = WebSocketConnection(
            client=True, on_message=lambda _: None, on_lost=lambda _: None, ping_seconds=4.5
        )
        connection.attach(cast(asyncio.Transport, transport))
        assert connection._timer is not None
        handles.append(connection._timer.when())
        connection.connection_lost(None)
    common = 4.5 / COMMON_TIMES
    assert all(abs(at / common - round(at / common)) < 1e-6 for at in handles)
    assert all(9.0 - common <= at - loop.time() <= 9.0 for at in handles[-1:])


class HandClock:
    """The time of an event loop, as a test sets it, and the timers that are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        self.at = 0.0
        self.look: Callable[[], None] | None = None
        monkeypatch.setattr(loop, "time", lambda: self.now)
        monkeypatch.setattr(loop, "call_at", self._call_at)

    def _call_at(self, when: float, look: Callable[[], None]) -> Timer:
        self.at, self.look = when, look
        return Timer(when)

    def pass_until_look(self) -> float:
        """Let the time pass until the connection is examined; returns the seconds."""
        passed, self.now = self.at - self.now, self.at
        assert self.look is not None
        self.look()
        return passed


class Timer:
    """A timer that is never due by itself."""

    def __init__(self, when: float) -> None:
        self._when = when

    def cancel(self) -> None:
        pass

    def when(self) -> float:
        return self._when


@pytest.fixture
async def hand(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    return HandClock(monkeypatch)


def pinged(transport: RecordingTransport, connection: WebSocketConnection) -> int:
    """The pings that were written so far."""
    connection._flush()
    return transport.pings


async def test_a_connection_rests_when_nobody_waits_for_the_other_side(
    transport: RecordingTransport, hand: HandClock
) -> None:
    """Idle sessions were pinged as often as busy ones: 1,100 pings per second of 10,000."""
    connection = attached(transport)
    hear(connection)
    short, long = QUIET_INTERVALS * INTERVAL, REST_FACTOR * QUIET_INTERVALS * INTERVAL
    hand.now += 0.1 * INTERVAL
    hear(connection)
    hand.pass_until_look()
    assert pinged(transport, connection) == 0
    assert hand.at - hand.now == pytest.approx(long - short, abs=INTERVAL)
    hand.pass_until_look()
    assert pinged(transport, connection) == 1
    # Without an answer it ends as soon as any other.
    assert hand.at - hand.now == pytest.approx(INTERVAL / 2, abs=INTERVAL / COMMON_TIMES * 2)
    hand.pass_until_look()
    hand.pass_until_look()
    assert transport.aborted


async def test_a_request_ends_the_rest_until_it_is_answered(transport: RecordingTransport, hand: HandClock) -> None:
    connection = attached(transport)
    hand.now += 0.1 * INTERVAL
    hear(connection)
    hand.pass_until_look()
    hand.now += 2 * ANSWER_SECONDS
    connection.write(b"a request")
    short = QUIET_INTERVALS * INTERVAL
    assert hand.at - hand.now == pytest.approx(short, abs=2 * INTERVAL / COMMON_TIMES)
    # It is pinged because nothing came, and ended because nothing comes.
    for expected in (1, 2):
        hand.pass_until_look()
        assert pinged(transport, connection) == expected
    hand.pass_until_look()
    assert transport.aborted


async def test_a_request_right_behind_an_answer_ends_the_rest(transport: RecordingTransport, hand: HandClock) -> None:
    """A client that sends one message after the other would find a broker that hangs a minute later."""
    connection = attached(transport)
    hand.now += 0.1 * INTERVAL
    hear(connection)
    hand.pass_until_look()
    hand.now += 0.5 * INTERVAL
    hear(connection)
    connection.write(b"the next request")
    for expected in (1, 2):
        hand.pass_until_look()
        assert pinged(transport, connection) == expected
    hand.pass_until_look()
    assert transport.aborted


async def test_the_answer_of_a_broker_does_not_end_the_rest(transport: RecordingTransport, hand: HandClock) -> None:
    """A broker answers the seldom pings of an idle session, and waits for nothing."""
    broker = WebSocketConnection(client=False, on_message=lambda _: None, on_lost=lambda _: None, ping_seconds=INTERVAL)
    broker.attach(cast(asyncio.Transport, transport))
    pong = frame_head(Opcode.PONG, 0, masked=False)[:1] + b"\x80\1\2\3\4"
    hand.now += 0.1 * INTERVAL
    receive(broker, pong)
    hand.pass_until_look()
    at = hand.at
    hand.now += 0.5 * INTERVAL
    receive(broker, pong)
    broker.write(b"the answer to a ping")
    assert hand.at == at
    hand.now += 2 * ANSWER_SECONDS
    broker.write(b"a push")
    assert hand.at - hand.now == pytest.approx(QUIET_INTERVALS * INTERVAL, abs=2 * INTERVAL / COMMON_TIMES)
    broker.abort("the test is over")
