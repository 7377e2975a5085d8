"""The answer to a gRPC client at the HTTP/1.1 port: every call ends with an error that names the right address.

It knows no socket, and no more of HTTP/2 (RFC 9113) than this needs: the calls are never read, only counted.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from enum import IntEnum
from urllib.parse import quote

from dejaq.errors import DejaqError
from dejaq.protocol.grpc_status import ERROR_METADATA, grpc_status
from dejaq.protocol.status import error_to_proto

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# The first bytes of the preface; no request of HTTP/1.1 begins with them.
PREFACE_BEGIN = PREFACE[:14]
_HEAD_BYTES = 9
_PAYLOAD_BYTES_MAX = 16 * 1024
_CALLS_MAX = 100
_ACK = 0x1
_END_STREAM, _END_HEADERS = 0x1, 0x4
# The entry `:status: 200` of HPACK's static table (RFC 7541).
_STATUS_200 = b"\x88"


class _FrameKind(IntEnum):
    HEADERS = 1
    SETTINGS = 4
    PING = 6


class NotHttp2(Exception):
    """The client sends something else than HTTP/2, or too much of it."""


class Http2Refusal:
    """Reads what a client sends, and says what to send back."""

    def __init__(self, error: DejaqError) -> None:
        self._answer = _trailers(error)
        self._received = b""
        self._begun = False
        self._calls = 0

    def received(self, data: bytes) -> bytes:
        """The answer to these bytes; raises NotHttp2 when the connection should end."""
        self._received += data
        answers = []
        if not self._begun:
            if len(self._received) < len(PREFACE):
                return b""
            if not self._received.startswith(PREFACE):
                raise NotHttp2
            self._begun = True
            self._received = self._received[len(PREFACE) :]
            answers.append(_frame(_FrameKind.SETTINGS))
        while len(self._received) >= _HEAD_BYTES:
            size = int.from_bytes(self._received[:3], "big")
            if size > _PAYLOAD_BYTES_MAX:
                raise NotHttp2
            end = _HEAD_BYTES + size
            if len(self._received) < end:
                break
            answers.append(self._answer_to(self._received[:end]))
            self._received = self._received[end:]
        return b"".join(answers)

    def _answer_to(self, frame: bytes) -> bytes:
        kind, flags, stream, payload = frame[3], frame[4], frame[5:_HEAD_BYTES], frame[_HEAD_BYTES:]
        if kind == _FrameKind.HEADERS:
            self._calls += 1
            if self._calls > _CALLS_MAX:
                raise NotHttp2
            number = int.from_bytes(stream, "big") & 0x7FFFFFFF
            return _frame(_FrameKind.HEADERS, _END_STREAM | _END_HEADERS, number, self._answer)
        if kind == _FrameKind.SETTINGS and not flags & _ACK:
            return _frame(_FrameKind.SETTINGS, _ACK)
        if kind == _FrameKind.PING and not flags & _ACK:
            return _frame(_FrameKind.PING, _ACK, payload=payload)
        return b""


def _trailers(error: DejaqError) -> bytes:
    """The headers that end a call of gRPC with an error."""
    fields = {
        "content-type": "application/grpc",
        "grpc-status": str(grpc_status(error).value[0]),
        "grpc-message": quote(error.message, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~\""),
        ERROR_METADATA: b64encode(error_to_proto(error).SerializeToString()).decode(),
    }
    # Each is a literal field with its name, and is not added to the table of the connection.
    return _STATUS_200 + b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    return _length(len(text)) + text.encode("ascii")


def _length(size: int) -> bytes:
    """An integer of HPACK with a prefix of seven bits."""
    if size < 127:
        return bytes((size,))
    rest, encoded = size - 127, bytearray((127,))
    while rest >= 128:
        encoded.append(0x80 | rest & 0x7F)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _frame(kind: _FrameKind, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + payload
