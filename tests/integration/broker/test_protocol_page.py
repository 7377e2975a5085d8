"""The bytes on docs/protocol.md are those of a real exchange: a client can be written from the page."""

from __future__ import annotations

import re
from pathlib import Path

from dejaq.broker import Broker
from dejaq.protocol.websocket.framing import CloseCode
from dejaq.protocol.websocket.messages import MESSAGE_BYTES_MAX, Kind
from dejaq.protocol.websocket.stream import CREDIT_BYTES
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.protocol.websocket.raw import KEY, RawSocket, frame

PAGE = (Path(__file__).resolve().parents[3] / "docs/protocol.md").read_text(encoding="utf-8")


def recorded(title: str) -> list[tuple[str, bytes]]:
    """The sender and the bytes of each line in a block of the page."""
    block = re.search(rf"```{title}\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    lines = (line.partition(" ") for line in block[1].splitlines())
    return [(sender, bytes.fromhex(data)) for sender, _, data in lines]


async def test_the_broker_answers_the_recorded_bytes_with_the_recorded_bytes() -> None:
    exchange = recorded("recorded")
    assert {sender for sender, _ in exchange} == {"client", "broker"}
    async with (
        Broker(listen="127.0.0.1:0", clock=VirtualClock(), drain_ms=0) as broker,
        RawSocket.open(broker.address) as raw,
    ):
        for sender, message in exchange:
            if sender == "client":
                await raw.send(frame(message))
            else:
                assert (await raw.message()).hex(" ") == message.hex(" ")


def test_the_recorded_frames_are_those_of_the_first_and_last_message() -> None:
    messages, frames = recorded("recorded"), recorded("recorded frames")
    assert frames == [("client", frame(messages[0][1])), ("broker", frame(messages[-1][1], masked=False))]
    assert KEY.hex(" ") in PAGE


def test_the_page_names_every_kind_close_code_and_limit() -> None:
    for kind in Kind:
        assert f"| {int(kind)} | `{kind.name}` |" in PAGE
    for code in set(CloseCode) - {CloseCode.NO_STATUS, CloseCode.INTERNAL}:
        assert f"| {int(code)} |" in PAGE
    assert CREDIT_BYTES == 4 * 2**20
    assert MESSAGE_BYTES_MAX == 12 * 2**20 + 2**10
