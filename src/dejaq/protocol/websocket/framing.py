"""WebSocket frames (RFC 6455) as bytes: no socket, no clock.

A reader holds at most one message, and gives it memory only as its bytes arrive. It gives the place for the next bytes
itself, so that a large message is received where it stays.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from enum import IntEnum

# A message, or a part of one. It belongs to the receiver.
Payload = bytes | bytearray | memoryview

RECEIVE_BYTES = 64 * 1024
# A frame up to this size is gathered with others; a larger frame is received in a buffer of its own.
_SMALL_BYTES = 4 * 1024
# Removing the mask of so many bytes takes less than a millisecond.
_STEP_BYTES = 256 * 1024
_CONTROL_BYTES_MAX = 125
_NO_MASK = b"\0\0\0\0"


class Opcode(IntEnum):
    """What a frame is."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


# The control frames without a payload that change nothing, by their first byte.
BARE = {0x80 | Opcode.PING: Opcode.PING, 0x80 | Opcode.PONG: Opcode.PONG}


class CloseCode(IntEnum):
    """Why a connection was closed; docs/protocol.md lists when a broker uses each."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NOT_BINARY = 1003
    NO_STATUS = 1005
    POLICY = 1008
    TOO_LARGE = 1009
    INTERNAL = 1011


class FrameError(Exception):
    """The other side broke the protocol; the connection is closed with `code`."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def frame_head(opcode: Opcode, size: int, *, masked: bool) -> bytes:
    """The bytes before a payload. Clients must mask: theirs have the key 0, which leaves the payload as it is."""
    mask_bit = 0x80 if masked else 0
    if size <= _CONTROL_BYTES_MAX:
        head = bytes((0x80 | opcode, mask_bit | size))
    elif size < 0x10000:
        head = struct.pack("!BBH", 0x80 | opcode, mask_bit | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, mask_bit | 127, size)
    return head + _NO_MASK if masked else head


def close_payload(code: int, reason: str) -> bytes:
    """The payload of a close frame; the reason is cut to what fits."""
    text = reason.encode()[: _CONTROL_BYTES_MAX - 2].decode(errors="ignore")
    return struct.pack("!H", code) + text.encode()


def parse_close(payload: Payload) -> tuple[int, str]:
    """The code and the reason of a close frame."""
    if not payload:
        return CloseCode.NO_STATUS, ""
    if len(payload) == 1:
        raise FrameError(CloseCode.PROTOCOL_ERROR, "the payload of a close frame has one byte")
    return int.from_bytes(payload[:2], "big"), bytes(payload[2:]).decode(errors="replace")


def unmask(payload: Payload, key: bytes) -> bytes:
    """The payload without its mask."""
    size = len(payload)
    mask = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")


class FrameReader:
    """Reads the frames that one side sends, and delivers whole messages and control frames in order.

    `deliver` may close the reader; whatever follows is then ignored.
    """

    def __init__(self, *, masked: bool, message_bytes_max: int, deliver: Callable[[Opcode, Payload], None]) -> None:
        self._masked = masked
        self._bare_size, self._bare_second = (6, 0x80) if masked else (2, 0)
        self._bytes_max = message_bytes_max
        self._deliver = deliver
        self._place = _receive_buffer()
        # The begin of a frame that has not arrived as a whole.
        self._rest = b""
        # The payload of a large frame while it arrives, how much of it did, and its first byte and key.
        self._large: bytearray | None = None
        self._have = 0
        self._first = 0
        self._key = _NO_MASK
        # A message in several frames.
        self._fragments: bytearray | None = None
        self._opcode = Opcode.BINARY
        self.closed = False

    @property
    def within_message(self) -> bool:
        """Whether a message has begun to arrive and is not complete."""
        return bool(self._rest) or self._large is not None or self._fragments is not None

    def place(self) -> memoryview:
        """Where the next bytes are to be written."""
        if self._large is None or self.closed:
            return self._place
        return memoryview(self._large)[self._have : self._have + _STEP_BYTES]

    def bare_control(self, size: int) -> Opcode | None:
        """Read a ping or pong without a payload if nothing else was written there; None for anything else."""
        if size != self._bare_size or self.closed or self.within_message:
            return None
        place = self._place
        return BARE.get(place[0]) if place[1] == self._bare_second else None

    def received(self, size: int) -> None:
        """Read so many bytes that were written there; raises FrameError."""
        if self.closed:
            return
        if self._large is None:
            data = self._place[:size].tobytes()
            self.read(self._rest + data if self._rest else data)
            return
        if self._key != _NO_MASK:
            self._unmask_in_place(size)
        self._have += size
        if self._have == len(self._large):
            payload, self._large = self._large, None
            self._finish(self._first, payload)

    def _unmask_in_place(self, size: int) -> None:
        assert self._large is not None
        turn = self._have % 4
        key = self._key[turn:] + self._key[:turn]
        end = self._have + size
        self._large[self._have : end] = unmask(self._large[self._have : end], key)

    def read(self, data: bytes) -> None:
        """Read bytes that follow the last whole frame; raises FrameError."""
        self._rest = b""
        start, end = 0, len(data)
        while end - start >= 2 and not self.closed:
            second = data[start + 1]
            size, at = second & 0x7F, start + 2
            if size == 126:
                at += 2
                size = int.from_bytes(data[start + 2 : at], "big")
            elif size == 127:
                at += 8
                size = int.from_bytes(data[start + 2 : at], "big")
            key = _NO_MASK
            if second & 0x80:
                key = data[at : at + 4]
                at += 4
            if end < at:
                self._check(data[start], second, 0)
                break
            self._check(data[start], second, size)
            stop = at + size
            if stop > end:
                if size > _SMALL_BYTES:
                    self._begin_large(data, start, at, size, key)
                    return
                break
            payload = data[at:stop]
            self._finish(data[start], payload if key == _NO_MASK else unmask(payload, key))
            start = stop
        if start < end and not self.closed:
            self._rest = data[start:] if start else data

    def _begin_large(self, data: bytes, start: int, at: int, size: int, key: bytes) -> None:
        self._first, self._key = data[start], key
        # The system gives the pages of a large block when they are written to.
        self._large = bytearray(size)
        arrived = data[at:]
        self._have = len(arrived)
        self._large[: self._have] = arrived if key == _NO_MASK else unmask(arrived, key)

    def _check(self, first: int, second: int, size: int) -> None:
        """Refuse a frame by its head, before memory is used for it."""
        if first & 0x70:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a reserved bit is set, and no extension was agreed on")
        opcode = first & 0x0F
        if opcode in (Opcode.CLOSE, Opcode.PING, Opcode.PONG):
            if not first & 0x80 or second & 0x7F > _CONTROL_BYTES_MAX:
                raise FrameError(CloseCode.PROTOCOL_ERROR, "a control frame is fragmented or too long")
        elif opcode not in (Opcode.CONTINUATION, Opcode.TEXT, Opcode.BINARY):
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"the opcode {opcode} is not known")
        elif (opcode == Opcode.CONTINUATION) != (self._fragments is not None):
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a fragment is missing, or follows no other")
        if bool(second & 0x80) != self._masked:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "frames of a client must be masked, and no others")
        if size + len(self._fragments or b"") > self._bytes_max:
            raise FrameError(CloseCode.TOO_LARGE, f"a message has at most {self._bytes_max} bytes")

    def _finish(self, first: int, payload: Payload) -> None:
        """A frame has arrived as a whole."""
        opcode = Opcode(first & 0x0F)
        if opcode >= Opcode.CLOSE or (first & 0x80 and opcode is not Opcode.CONTINUATION):
            self._deliver(opcode, payload)
            return
        if self._fragments is None:
            self._fragments, self._opcode = bytearray(payload), opcode
        else:
            self._fragments += payload
        if first & 0x80:
            whole, self._fragments = self._fragments, None
            self._deliver(self._opcode, whole)


_local = threading.local()


def _receive_buffer() -> memoryview:
    """The buffer of this thread: what is received is taken from it at once, so all connections of a loop share it."""
    try:
        return _local.buffer  # type: ignore[no-any-return]
    except AttributeError:
        _local.buffer = memoryview(bytearray(RECEIVE_BYTES))
        return _local.buffer  # type: ignore[no-any-return]
