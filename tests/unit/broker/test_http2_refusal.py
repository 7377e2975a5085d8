"""What a gRPC client is answered at the port of WebSocket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker.websocket.http2_refusal import PREFACE, Http2Refusal, NotHttp2
from dejaq.errors import Code, error_of

ERROR = error_of(Code.VERSION_UNSUPPORTED, "use the other address, 100 % sure")
SETTINGS = bytes(3) + b"\x04\x00" + bytes(4)
SETTINGS_ACK = bytes(3) + b"\x04\x01" + bytes(4)
CALL = b"\x00\x00\x02\x01\x04\x00\x00\x00\x05ab"
PING = b"\x00\x00\x08\x06\x00" + bytes(4) + b"12345678"


def test_the_settings_of_a_client_are_confirmed_and_its_pings_answered() -> None:
    refusal = Http2Refusal(ERROR)
    assert refusal.received(PREFACE + SETTINGS) == SETTINGS + SETTINGS_ACK
    assert refusal.received(SETTINGS_ACK) == b""
    assert refusal.received(PING) == PING[:4] + b"\x01" + PING[5:]


def test_each_call_is_answered_on_its_own_stream_also_when_it_comes_in_pieces() -> None:
    refusal = Http2Refusal(ERROR)
    answer = b"".join(refusal.received(bytes((byte,))) for byte in PREFACE + CALL)
    assert answer.startswith(SETTINGS)
    frame = answer[len(SETTINGS) :]
    assert int.from_bytes(frame[:3], "big") == len(frame) - 9
    assert frame[3:9] == b"\x01\x05\x00\x00\x00\x05"
    assert b"100 %25 sure" in frame


def test_a_client_that_calls_again_and_again_is_disconnected() -> None:
    refusal = Http2Refusal(ERROR)
    refusal.received(PREFACE)
    refusal.received(CALL * 50)
    with pytest.raises(NotHttp2):
        refusal.received(CALL * 1_000)


@pytest.mark.parametrize("sent", [PREFACE[:14] + b"GET / please", PREFACE + b"\x00\xff\xff" + bytes(6)])
def test_what_is_not_http2_or_too_large_ends_the_connection(sent: bytes) -> None:
    with pytest.raises(NotHttp2):
        Http2Refusal(ERROR).received(sent)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_no_bytes_make_it_fail_or_answer_more_than_they_ask(sent: list[bytes]) -> None:
    refusal = Http2Refusal(ERROR)
    begun = len(refusal.received(PREFACE))
    try:
        answered = begun + sum(len(refusal.received(data)) for data in sent)
    except NotHttp2:
        return
    assert answered <= begun + 50 * (sum(map(len, sent)) + 1)
