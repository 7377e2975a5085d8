"""The HTTP heads around a WebSocket."""

from __future__ import annotations

import pytest

from dejaq.protocol.websocket.handshake import BadHttpHead, accept_of, new_key, parse_head, valid_key


def test_the_answer_to_a_key_is_that_of_the_standard() -> None:
    """The example in section 1.3 of RFC 6455."""
    assert accept_of("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    ("key", "valid"),
    [("dGhlIHNhbXBsZSBub25jZQ==", True), ("", False), ("abc", False), ("YWJj", False), ("ä" * 24, False)],
)
def test_a_key_is_sixteen_bytes(key: str, valid: bool) -> None:
    assert valid_key(key) is valid
    assert valid_key(new_key())


def test_a_head_has_its_first_line_and_headers_in_any_case() -> None:
    head = parse_head(b"GET /v1 HTTP/1.1\r\nHost: a:1\r\nConnection: keep-alive, Upgrade\r\nX:1\r\nx: 2")
    assert head.first == ("GET", "/v1", "HTTP/1.1")
    assert head.headers == {"host": "a:1", "connection": "keep-alive, Upgrade", "x": "1, 2"}
    assert head.has_token("connection", "upgrade")
    assert not head.has_token("connection", "close")
    assert not head.has_token("upgrade", "websocket")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /v1",
        b"GET / HTTP/1.1\r\nno header",
        b"GET / HTTP/1.1\r\n: x",
        b"GET / HTTP/1.1\r\n folded: x",
        b"GET / HTTP/1.1\r\nname : x",
        b"GET / HTTP/1.1\r\na: b\nc: d",
        b"GET / HTTP/1.1" + b"\r\na: b" * 200,
    ],
)
def test_a_head_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(BadHttpHead):
        parse_head(data)
