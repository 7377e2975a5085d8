"""What one WebSocket message of DejaQ is: a kind, the number of a stream, and a payload.

    | kind, 1 byte | stream, 8 bytes, most significant first | payload |

A connection carries many streams at once. Each is one session or one call, begun by the client under a number above all
it used before. docs/protocol.md is the specification.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from dejaq import limits
from dejaq.protocol.websocket.framing import CloseCode, FrameError, Payload

_HEAD = struct.Struct("!BQ")
_BYTES = struct.Struct("!I")
HEAD_BYTES = _HEAD.size
# The largest frame or request with what is around it.
MESSAGE_BYTES_MAX = limits.FRAME_BYTES_MAX + 1024


class Kind(IntEnum):
    """The kinds of messages."""

    SESSION = 1
    CALL = 2
    MESSAGE = 3
    RESULT = 4
    END = 5
    ERROR = 6
    CANCEL = 7
    CREDIT = 8


def head(kind: Kind, stream: int) -> bytes:
    """The head of a message."""
    return _HEAD.pack(kind, stream)


def parse(message: Payload) -> tuple[Kind, int, Payload]:
    """Kind, stream and payload; the payload of a large message is a view of it. Raises FrameError."""
    if len(message) < HEAD_BYTES:
        raise FrameError(CloseCode.PROTOCOL_ERROR, f"a message has at least {HEAD_BYTES} bytes")
    number, stream = _HEAD.unpack_from(message)
    try:
        kind = Kind(number)
    except ValueError:
        raise FrameError(CloseCode.PROTOCOL_ERROR, f"the message kind {number} is not known") from None
    if stream == 0:
        raise FrameError(CloseCode.PROTOCOL_ERROR, "streams are numbered from 1")
    rest = memoryview(message)[HEAD_BYTES:] if isinstance(message, bytearray) else message[HEAD_BYTES:]
    return kind, stream, rest


def credit_payload(size: int) -> bytes:
    """The payload that lets the other side send so many more bytes in a stream."""
    return _BYTES.pack(size)


def parse_credit(payload: Payload) -> int:
    """The bytes that a CREDIT message gives; raises FrameError."""
    if len(payload) != _BYTES.size:
        raise FrameError(CloseCode.PROTOCOL_ERROR, f"the payload of CREDIT has {_BYTES.size} bytes")
    return int(_BYTES.unpack(payload)[0])
