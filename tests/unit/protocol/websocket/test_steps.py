"""Messages that arrive together are delivered in steps of a bounded time, in order, and none is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from dejaq.protocol.websocket import connection
from dejaq.protocol.websocket.connection import WebSocketConnection
from dejaq.protocol.websocket.framing import CloseCode, FrameError, Opcode, Payload, close_payload, frame_head
from tests.unit.broker.client import until

STEP_SECONDS = 0.001
# How long the receiver works on each message.
WORK_SECONDS = 0.0005


def frames(payloads: list[bytes], opcode: Opcode = Opcode.BINARY) -> bytes:
    return b"".join(frame_head(opcode, len(one), masked=False) + one for one in payloads)


@pytest.fixture(autouse=True)
def one_message_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STEP_MESSAGES", 1)


class Receiver:
    """A connection whose transport is a test."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.lost: list[str] = []
        self.connection = WebSocketConnection(
            client=True, on_message=self._take, on_lost=self.lost.append, ping_seconds=60.0, step_seconds=STEP_SECONDS
        )
        self.connection.open = True

    def _take(self, payload: Payload) -> None:
        self.received.append(bytes(payload))
        if payload == b"bad":
            raise FrameError(CloseCode.PROTOCOL_ERROR, "not a message")
        until = time.perf_counter() + WORK_SECONDS
        while time.perf_counter() < until:
            pass

    def arrive(self, data: bytes) -> None:
        place = self.connection.get_buffer(len(data))
        place[: len(data)] = data
        self.connection.buffer_updated(len(data))


NUMBERS = [b"%d" % number for number in range(40)]


async def test_a_burst_is_delivered_in_several_turns_of_the_loop_and_in_order() -> None:
    receiver = Receiver()
    receiver.arrive(frames(NUMBERS))
    assert 0 < len(receiver.received) < 10
    turns = 0
    while len(receiver.received) < len(NUMBERS):
        before = len(receiver.received)
        await asyncio.sleep(0)
        assert len(receiver.received) - before < 10
        turns += 1
        assert turns < 1_000
    assert receiver.received == NUMBERS


async def test_what_arrives_meanwhile_follows_what_waits() -> None:
    receiver = Receiver()
    receiver.arrive(frames(NUMBERS[:20]))
    await asyncio.sleep(0)
    receiver.arrive(frames(NUMBERS[20:]))
    await until(lambda: len(receiver.received) == len(NUMBERS))
    assert receiver.received == NUMBERS


async def test_what_waits_is_delivered_before_the_end_of_the_connection() -> None:
    receiver = Receiver()
    receiver.arrive(frames(NUMBERS))
    receiver.connection.connection_lost(None)
    assert receiver.received == NUMBERS
    assert len(receiver.lost) == 1


async def test_a_close_frame_does_not_overtake_messages() -> None:
    receiver = Receiver()
    receiver.arrive(frames(NUMBERS) + frames([close_payload(CloseCode.NORMAL, "")], Opcode.CLOSE))
    assert receiver.connection.open
    await until(lambda: not receiver.connection.open)
    assert receiver.received == NUMBERS


async def test_a_bad_message_that_waited_ends_the_connection() -> None:
    receiver = Receiver()
    receiver.arrive(frames([*NUMBERS, b"bad", b"never"]))
    await until(lambda: not receiver.connection.open)
    assert receiver.received == [*NUMBERS, b"bad"]
    assert "not a message" in receiver.connection.reason


async def test_a_slow_machine_delivers_some_messages_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STEP_MESSAGES", 16)
    receiver = Receiver()
    receiver.arrive(frames(NUMBERS))
    assert receiver.received == NUMBERS[:16]
    await until(lambda: len(receiver.received) == len(NUMBERS))
    assert receiver.received == NUMBERS
