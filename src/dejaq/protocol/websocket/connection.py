"""One WebSocket connection after its handshake, at either end: frames in and out, pings, back-pressure, closing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from time import perf_counter
from typing import TypeVarTuple

from dejaq.protocol.websocket.framing import (
    CloseCode,
    FrameError,
    FrameReader,
    Opcode,
    Payload,
    close_payload,
    frame_head,
    parse_close,
)
from dejaq.protocol.websocket.messages import MESSAGE_BYTES_MAX

# Bytes that wait for the network, before senders wait too.
WRITE_BYTES_MAX = 1024 * 1024
# More than this is not kept until the end of a turn.
GATHERED_BYTES_MAX = 64 * 1024
# Bytes that were received and wait to be worked on, before nothing more is read from the connection.
HELD_BYTES_MAX = 32 * 1024 * 1024
# So many messages are delivered in one turn of the event loop, however long that takes.
STEP_MESSAGES = 16
# A connection is pinged when nothing came for two intervals, again half an interval later, and closed after half an
# interval more. So the pings of a client whose intervals are shorter are all that a quiet connection needs.
QUIET_INTERVALS = 2
PINGS = 2
# Connections are examined at common times, so many per interval, so that the pings of many arrive together: to wake a
# process costs more than to answer a ping. An examination may be earlier by the time between two of them.
COMMON_TIMES = 90
# By how much longer the intervals are while neither side has anything to ask of the other, and of a connection without
# streams: 10,000 of them would keep a broker busy with pings.
REST_FACTOR, IDLE_FACTOR = 6, 10
# What a broker writes so soon after something came is an answer, and needs none.
ANSWER_SECONDS = 0.05
# How long a message may take from its first byte to its last, and how long a connection may not be read.
STALL_SECONDS = 60.0
# How long the other side may take to answer a close frame.
CLOSE_SECONDS = 1.0


Given = TypeVarTuple("Given")


class WebSocketConnection(asyncio.BufferedProtocol):
    """Delivers whole binary messages to `on_message`, which may raise FrameError, and then `on_lost` once."""

    def __init__(
        self,
        *,
        client: bool,
        on_message: Callable[[Payload], None],
        on_lost: Callable[[str], None],
        ping_seconds: float,
        idle: Callable[[], bool] = lambda: False,
        step_seconds: float | None = None,
    ) -> None:
        """While it is `idle`, no stream uses it.

        In one turn of the event loop messages are delivered for `step_seconds` only, and the others in the next turns;
        but at least `STEP_MESSAGES`, because the machine may have done something else meanwhile.
        """
        self._step_seconds = step_seconds
        self._step_until: float | None = None
        self._step_messages = 0
        # Messages and close frames that wait for the next turn.
        self._late: deque[tuple[Opcode, Payload]] = deque()
        self._client = client
        self._on_message = on_message
        self._on_lost = on_lost
        self._ping_seconds = ping_seconds
        self._idle = idle
        # By how much longer the interval until the next look is.
        self._factor = 1
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(masked=not client, message_bytes_max=MESSAGE_BYTES_MAX, deliver=self._deliver)
        self._bare_pong = frame_head(Opcode.PONG, 0, masked=client)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._held = 0
        self._paused_at: float | None = None
        self._written = 0
        # The frames of one turn of the event loop are written together at its end: a system call costs as much as ten
        # small frames. None before the first frame of a turn.
        self._gathered: list[bytes] | None = None
        self._gathered_bytes = 0
        # For the pings: when something came last, and what had left the write buffer at the last look.
        self._heard_at = self._loop.time()
        # When a message was written last that needs an answer.
        self._asked_at = self._heard_at
        self._left_then = 0
        # Pings since then that were not answered.
        self._silent = 0
        self._message_began: float | None = None
        self._closing = False
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.reason = ""
        self.open = False

    def attach(self, transport: asyncio.Transport, early: bytes = b"") -> None:
        """Take over a transport whose handshake is done; `early` is what came behind the handshake."""
        self._transport = transport
        self.open = True
        transport.set_write_buffer_limits(WRITE_BYTES_MAX)
        transport.set_protocol(self)
        self._heard_at = self._asked_at = self._loop.time()
        self._look_soon(self._heard_at)
        if early:
            self._read(self._reader.read, early)

    # Sending

    @property
    def writable(self) -> bool:
        """Whether a message would be sent soon."""
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        """Wait until the other side has read, or the connection is gone."""
        await self._writable.wait()

    def write(self, *parts: bytes | memoryview) -> None:
        """Send one message without waiting; after the end it is dropped."""
        now = self._loop.time()
        if self._client or now > self._heard_at + ANSWER_SECONDS:
            self._asked_at = now
            self.resume_pings()
        self._write_frame(Opcode.BINARY, *parts)

    def _write_frame(self, opcode: Opcode, *parts: bytes | memoryview) -> None:
        if not self.open or self._transport is None:
            return
        size = sum(map(len, parts))
        frame = b"".join((frame_head(opcode, size, masked=self._client), *parts))
        self._written += len(frame)
        if self._gathered is None:
            self._gathered = []
            self._loop.call_soon(self._flush)
        self._gathered.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes > GATHERED_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        frames, self._gathered, self._gathered_bytes = self._gathered, None, 0
        if frames and self._transport is not None:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def pause_writing(self) -> None:
        """Called by the transport when the other side reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the transport when the other side has read."""
        self._writable.set()

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the transport: where the next bytes are to be written."""
        return self._reader.place()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the transport: so many bytes were written there."""
        self._heard_at = self._loop.time()
        # Most of what idle connections receive.
        if (opcode := self._reader.bare_control(nbytes)) is None:
            self._read(self._reader.received, nbytes)
        elif opcode is Opcode.PING:
            self._answer_ping()

    def _read(self, read: Callable[[*Given], None], *given: *Given) -> None:
        try:
            read(*given)
        except FrameError as error:
            # What follows cannot be read any more.
            self._reader.closed = True
            self.close(error.code, error.reason)
            self._say_end()

    def _deliver(self, opcode: Opcode, payload: Payload) -> None:
        if self._step_seconds is not None and opcode is not Opcode.PING and opcode is not Opcode.PONG:
            if self._step_until is None:
                self._step_until, self._step_messages = perf_counter() + self._step_seconds, 0
                self._loop.call_soon(self._next_step)
            elif self._late or self._step_is_over():
                self._late.append((opcode, payload))
                self.hold(len(payload))
                return
        self._step_messages += 1
        self._handle(opcode, payload)

    def _step_is_over(self) -> bool:
        return (
            self._step_until is not None and self._step_messages >= STEP_MESSAGES and perf_counter() > self._step_until
        )

    def _next_step(self) -> None:
        """Deliver what waits for this turn of the event loop."""
        self._step_until = None
        if self._late:
            self._read(self._deliver_late)

    def _deliver_late(self) -> None:
        late, self._late = self._late, deque()
        for place, (opcode, payload) in enumerate(late):
            if self._step_is_over():
                self._late.extend(islice(late, place, None))
                return
            self.release(len(payload))
            self._deliver(opcode, payload)

    def _handle(self, opcode: Opcode, payload: Payload) -> None:
        if opcode is Opcode.BINARY:
            if not self._closing:
                self._on_message(payload)
        elif opcode is Opcode.PING:
            self._write_frame(Opcode.PONG, bytes(payload))
        elif opcode is Opcode.CLOSE:
            self._closed_by_other(*parse_close(payload))
        elif opcode is Opcode.TEXT:
            raise FrameError(CloseCode.NOT_BINARY, "messages are binary")

    def _answer_ping(self) -> None:
        """Answer a ping without a payload."""
        if self._gathered is None and self.open and self._transport is not None:
            self._written += len(self._bare_pong)
            self._transport.write(self._bare_pong)
        else:
            self._write_frame(Opcode.PONG)

    def hold(self, size: int) -> None:
        """Count received bytes that wait; nothing more is read while there are too many."""
        self._held += size
        if self._held > HELD_BYTES_MAX and self._paused_at is None and self._transport is not None:
            self._paused_at = self._loop.time()
            self._transport.pause_reading()

    def release(self, size: int) -> None:
        """Count received bytes that have been worked on."""
        self._held -= size
        if self._paused_at is not None and self._held <= HELD_BYTES_MAX:
            self._paused_at = None
            self._heard_at = self._loop.time()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # Pings

    def resume_pings(self) -> None:
        """Called when somebody waits for the other side again."""
        if self._factor > 1 and self._timer is not None and self.open:
            self._timer.cancel()
            self._heard_at = self._asked_at = self._loop.time()
            self._look_soon(self._heard_at)

    def _look_soon(self, now: float) -> None:
        """Look at the connection when it was quiet for too long; half an interval after a ping."""
        self._factor = self._factor_at(now)
        interval = self._interval()
        at = now + interval / 2 if self._silent else self._heard_at + QUIET_INTERVALS * interval
        self._timer = self._loop.call_at(at - at % (interval / COMMON_TIMES), self._look)

    def _factor_at(self, now: float) -> int:
        if self._silent:
            return 1
        if self._idle():
            return IDLE_FACTOR
        # Until the other side was heard, what was sent last may not have arrived.
        rests = self.writable and self._heard_at > self._asked_at and now > self._asked_at + self._ping_seconds
        return REST_FACTOR if rests else 1

    def _interval(self) -> float:
        return self._ping_seconds * self._factor

    def _look(self) -> None:
        now = self._loop.time()
        if self._stalls(now):
            self.abort("a message took too long to arrive, or to be worked on")
            return
        left = self._written - (self._transport.get_write_buffer_size() if self._transport is not None else 0)
        # A slow reader is alive while what is sent to it gets fewer.
        if self._paused_at is not None or (left != self._left_then and not self.writable):
            self._heard_at = now
        self._factor = self._factor_at(now)
        interval = self._interval()
        if now + interval / COMMON_TIMES < self._heard_at + QUIET_INTERVALS * interval:
            self._silent = 0
        else:
            self._silent += 1
            if self._silent > PINGS:
                self.abort("the other side was silent for too long")
                return
            self._write_frame(Opcode.PING)
            left = self._written
        self._left_then = left
        self._look_soon(now)

    def _stalls(self, now: float) -> bool:
        if not self._reader.within_message:
            self._message_began = None
        elif self._message_began is None:
            self._message_began = now
        return any(
            began is not None and now - began > STALL_SECONDS for began in (self._message_began, self._paused_at)
        )

    # The end

    def close(self, code: CloseCode, reason: str) -> None:
        """Send why the connection ends, then end it; messages that still come are ignored."""
        if self._closing:
            return
        self._write_frame(Opcode.CLOSE, close_payload(code, reason))
        self._begin_close(f"closed with code {int(code)}: {reason}")
        if self._paused_at is not None and self._transport is not None and not self._transport.is_closing():
            # The answer to the close frame is behind what was not read.
            self._transport.resume_reading()
        self._loop.call_later(CLOSE_SECONDS, self._cut)

    def _say_end(self) -> None:
        """End the direction to the other side, so that it can go at once: its answer to the close frame is not read."""
        self._flush()
        if self._transport is not None and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def _begin_close(self, reason: str) -> None:
        self._closing = True
        self.open = False
        self.reason = self.reason or reason
        self._writable.set()

    def _closed_by_other(self, code: int, reason: str) -> None:
        self._reader.closed = True
        if not self._closing:
            answer = CloseCode.NORMAL if code == CloseCode.NO_STATUS else code
            self._write_frame(Opcode.CLOSE, close_payload(answer, ""))
            self._begin_close(f"closed by the other side with code {code}: {reason}")
            self._loop.call_later(CLOSE_SECONDS, self._cut)
        self._flush()
        if self._transport is not None:
            self._transport.close()

    async def shut(self, code: CloseCode, reason: str) -> None:
        """Close, and wait until the connection is gone, shortly."""
        self.close(code, reason)
        await asyncio.wait((self._gone,), timeout=2 * CLOSE_SECONDS)

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self._begin_close(reason)
        self._cut()

    def _cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        """Called by the transport when the other side sends nothing more; the connection ends."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport at the end."""
        self._step_seconds = self._step_until = None
        self._read(self._deliver_late)
        self._begin_close(str(exc) if exc is not None else "the connection was closed")
        self._reader.closed = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._gone.set_result(None)
        self._on_lost(self.reason)
