"""The frames that wait to be sent to one client: a short queue and the one task that writes them.

A stream takes one write at a time, and a write that has begun must not be cancelled by the task that queued it. Over
WebSocket a frame that need not wait is written at once, without the queue and its task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from dejaq.crashpoints import crash_at
from dejaq.protocol.spliced import BrokerSent, Spliced

FRAMES_MAX = 16
_CRASH_POINTS = {"outcomes": "ack", "push": "push"}


@runtime_checkable
class FrameSender(Protocol):
    """Sends the frames of one session, one at a time."""

    async def __call__(self, frame: BrokerSent) -> None:
        """Send a frame; waits while the client is not reading."""

    def now(self, frame: BrokerSent) -> bool:
        """Send a frame if that needs no waiting, and say whether it was sent."""


class FrameQueue:
    """Takes frames while there is room and writes them in order until it is closed."""

    def __init__(self) -> None:
        self._frames: deque[BrokerSent] = deque()
        self._filled = asyncio.Event()
        self._moved = asyncio.Event()
        self._writing = False
        self._closed = False
        self._sender: FrameSender | None = None

    def put_now(self, frame: BrokerSent) -> bool:
        """Send a frame if that needs no waiting, and say whether it was sent; after the end frames are dropped."""
        if self._closed:
            return True
        if self._sender is None or self._frames or self._writing:
            return False
        point = _point_of(frame)
        crash_at(f"broker.before_{point}")
        sent = self._sender.now(frame)
        if sent:
            crash_at(f"broker.after_{point}")
        return sent

    async def put(self, frame: BrokerSent) -> None:
        """Send or queue a frame; waits while the client is not reading. After the end frames are dropped."""
        if self.put_now(frame):
            return
        while len(self._frames) >= FRAMES_MAX and not self._closed:
            self._moved.clear()
            await self._moved.wait()
        if not self._closed:
            self._frames.append(frame)
            self._filled.set()

    async def write(self, send: Callable[[BrokerSent], Awaitable[None]] | FrameSender) -> None:
        """Write what is queued until cancelled or until the client is gone, which raises."""
        if isinstance(send, FrameSender):
            self._sender = send
        try:
            while True:
                while not self._frames:
                    self._filled.clear()
                    await self._filled.wait()
                await self._write_one(self._frames.popleft(), send)
        finally:
            self.close()

    async def _write_one(self, frame: BrokerSent, send: Callable[[BrokerSent], Awaitable[None]]) -> None:
        self._writing = True
        point = _point_of(frame)
        crash_at(f"broker.before_{point}")
        await send(frame)
        crash_at(f"broker.after_{point}")
        self._writing = False
        self._moved.set()

    async def flushed(self) -> None:
        """Wait until everything queued is written."""
        while (self._frames or self._writing) and not self._closed:
            self._moved.clear()
            await self._moved.wait()

    def close(self) -> None:
        """Drop what is queued and what comes."""
        self._closed = True
        self._frames.clear()
        self._moved.set()


def _point_of(frame: BrokerSent) -> str:
    """The crash points around a frame."""
    event = "push" if isinstance(frame, Spliced) else frame.WhichOneof("event") or ""
    return _CRASH_POINTS.get(event, "other")
