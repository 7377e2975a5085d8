"""A connection is pinged seldom while it is heard, and ends soon after the other side fell silent."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from dejaq.protocol.websocket.connection import PINGS, QUIET_INTERVALS, WebSocketConnection
from dejaq.protocol.websocket.framing import Opcode, frame_head
from dejaq.testing.waiting import eventually

INTERVAL = 0.04


class RecordingTransport:
    """Records the pings that were written, and whether the connection was aborted."""

    def __init__(self) -> None:
        self.pings = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.pings += data.count(frame_head(Opcode.PING, 0, masked=True))

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

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
    assert loop.time() - began >= (QUIET_INTERVALS + 1) * INTERVAL


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
