"""WebSocket frames as bytes, in any pieces, and every frame that breaks the rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.protocol.websocket.framing import (
    CloseCode,
    FrameError,
    FrameReader,
    Opcode,
    Payload,
    close_payload,
    frame_head,
    parse_close,
    unmask,
)
from tests.unit.protocol.websocket.raw import frame

BYTES_MAX = 300_000


class Read:
    """A reader of a client's frames and what it has delivered."""

    def __init__(self, *, masked: bool = True) -> None:
        self.delivered: list[tuple[Opcode, bytes]] = []
        self.reader = FrameReader(masked=masked, message_bytes_max=BYTES_MAX, deliver=self._deliver)

    def _deliver(self, opcode: Opcode, payload: Payload) -> None:
        self.delivered.append((opcode, bytes(payload)))

    def feed(self, data: bytes, piece: int = 2**30) -> Read:
        """Receive the bytes as a transport does, in pieces of at most this size."""
        at = 0
        while at < len(data):
            place = self.reader.place()
            size = min(piece, len(place), len(data) - at)
            place[:size] = data[at : at + size]
            self.reader.received(size)
            at += size
        return self


def refused(data: bytes, *, masked: bool = True) -> FrameError:
    with pytest.raises(FrameError) as caught:
        Read(masked=masked).feed(data)
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 125, 126, 4_096, 4_097, 65_535, 65_536, 70_000, BYTES_MAX])
@pytest.mark.parametrize("piece", [7, 4_096, 2**20])
def test_a_message_of_any_size_arrives_whole_in_any_pieces(size: int, piece: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    data = frame(payload[:size]) + frame(b"next")
    assert Read().feed(data, piece).delivered == [(Opcode.BINARY, payload[:size]), (Opcode.BINARY, b"next")]


@given(st.lists(st.binary(max_size=6_000), max_size=5), st.integers(1, 3_000))
def test_what_one_side_writes_the_other_side_reads(messages: list[bytes], piece: int) -> None:
    for masked in (True, False):
        data = b"".join(frame_head(Opcode.BINARY, len(m), masked=masked) + m for m in messages)
        assert [payload for _, payload in Read(masked=masked).feed(data, piece).delivered] == messages


def test_a_message_in_several_frames_is_one_with_control_frames_between() -> None:
    data = frame(b"a" * 5_000, end=False) + frame(b"?", Opcode.PING) + frame(b"b", Opcode.CONTINUATION, end=False)
    read = Read().feed(data + frame(b"c", Opcode.CONTINUATION), 1_000)
    assert read.delivered == [(Opcode.PING, b"?"), (Opcode.BINARY, b"a" * 5_000 + b"bc")]


@pytest.mark.parametrize("key", [b"\0\0\0\0", b"\1\2\3\4", b"\xff\0\xff\0"])
def test_a_mask_is_its_own_reverse(key: bytes) -> None:
    payload = bytes(range(251))
    assert unmask(unmask(payload, key), key) == payload


@pytest.mark.parametrize(
    "data",
    [
        frame(b"x", masked=False),
        frame(b"x", 3),
        frame(b"x", 11),
        frame(b"x", first=0x40),
        frame(b"x", Opcode.PING, end=False),
        frame(b"x" * 126, Opcode.PING),
        frame(b"x", Opcode.CONTINUATION),
        frame(b"x", end=False) + frame(b"y"),
    ],
)
def test_a_frame_that_breaks_the_rules_is_a_protocol_error(data: bytes) -> None:
    assert refused(data).code is CloseCode.PROTOCOL_ERROR


def test_a_server_must_not_mask() -> None:
    assert refused(frame(b"x"), masked=False).code is CloseCode.PROTOCOL_ERROR


def test_a_message_above_the_limit_is_refused_by_its_head_before_it_takes_memory() -> None:
    head = frame(b"x" * 70_000)[:10]
    for size in (BYTES_MAX + 1, 2**40, 2**64 - 1):
        announced = head[:2] + size.to_bytes(8, "big") + b"1234"
        assert refused(announced).code is CloseCode.TOO_LARGE


def test_the_fragments_of_a_message_share_the_limit() -> None:
    part = frame(b"x" * (BYTES_MAX // 2), end=False)
    more = frame(b"x" * (BYTES_MAX // 2), Opcode.CONTINUATION, end=False)
    read = Read().feed(part + more)
    with pytest.raises(FrameError) as caught:
        read.feed(frame(b"x", Opcode.CONTINUATION))
    assert caught.value.code is CloseCode.TOO_LARGE


def test_a_reader_that_is_closed_ignores_what_comes() -> None:
    read = Read()
    read.feed(frame(b"x" * 10_000)[:5_000])
    read.reader.closed = True
    assert read.feed(b"\xff" * 100_000).delivered == []


def test_a_close_frame_has_a_code_and_a_reason_that_is_cut_to_fit() -> None:
    assert parse_close(close_payload(1008, "because")) == (1008, "because")
    assert len(close_payload(1008, "ü" * 200)) <= 125
    assert parse_close(close_payload(1008, "ü" * 200))[1] == "ü" * 61
    assert parse_close(b"") == (CloseCode.NO_STATUS, "")
    with pytest.raises(FrameError):
        parse_close(b"x")
