"""The HTTP/1.1 heads around a WebSocket: what a client asks, and what a server answers. RFC 6455, section 4."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

SUBPROTOCOL = "dejaq.v1"
PATH = "/v1"
HEAD_BYTES_MAX = 16 * 1024
# Why a caller was refused, in the answer 401.
REASON_HEADER = "Dejaq-Error"
END = b"\r\n\r\n"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEADERS_MAX = 100


class BadHttpHead(Exception):
    """A head that cannot be read."""


@dataclass(frozen=True, slots=True)
class HttpHead:
    """The first line of a request or response in its three parts, and its headers with names in lower case."""

    first: tuple[str, str, str]
    headers: Mapping[str, str]

    def has_token(self, name: str, token: str) -> bool:
        """Whether a header is a list that contains `token`, in any case."""
        return token in (part.strip().lower() for part in self.headers.get(name, "").split(","))


def parse_head(data: bytes) -> HttpHead:
    """Read a head without its empty last line; raises BadHttpHead."""
    try:
        lines = data.decode("latin-1").split("\r\n")
        one, two, three = lines[0].split(" ", 2)
    except ValueError:
        raise BadHttpHead("the first line has not three parts") from None
    if len(lines) > _HEADERS_MAX:
        raise BadHttpHead("there are too many headers")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, mark, value = line.partition(":")
        if not mark or not name or name != name.strip() or "\n" in line or "\r" in line:
            raise BadHttpHead("a header cannot be read")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return HttpHead((one, two, three), headers)


def new_key() -> str:
    """The key of one request."""
    return base64.b64encode(secrets.token_bytes(16)).decode()


def valid_key(key: str) -> bool:
    """Whether a client's key has the form that the standard asks for."""
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def accept_of(key: str) -> str:
    """What a server answers to a key, as proof that it speaks WebSocket."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


def request_head(host: str, key: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The request of a client."""
    lines = (
        f"GET {PATH} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    )
    return "\r\n".join(lines).encode() + END


def upgrade_head(key: str) -> bytes:
    """The answer that accepts a client."""
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_of(key)}",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
    )
    return "\r\n".join(lines).encode() + END


def response(
    status: HTTPStatus,
    body: bytes,
    *,
    kind: str = "text/plain; charset=utf-8",
    headers: Mapping[str, str] | None = None,
    with_body: bool = True,
) -> bytes:
    """A whole response, after which the connection is closed."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return "\r\n".join(lines).encode() + END + (body if with_body else b"")
