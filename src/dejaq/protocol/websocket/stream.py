"""One stream of a connection at one end: what has arrived, and what the other side lets us send.

Each side may send `CREDIT_BYTES` in a stream and then as much as the other side has worked on, so that a stream that
nobody reads delays no other. The message that uses up the credit may be larger than the rest of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from dejaq.errors import DejaqError, Unavailable
from dejaq.protocol.websocket.connection import WebSocketConnection
from dejaq.protocol.websocket.framing import CloseCode, FrameError, Payload
from dejaq.protocol.websocket.messages import Kind, credit_payload, head

CREDIT_BYTES = 4 * 1024 * 1024
# Credit is returned in pieces of this size.
_RETURN_BYTES = CREDIT_BYTES // 2
_CREDIT_BYTES_MAX = 2**40


class Stream:
    """A session or a call."""

    __slots__ = (
        "_arrived",
        "_connection",
        "_error",
        "_filled",
        "_no_more",
        "_order",
        "_ours",
        "_owed",
        "_owed_changed",
        "_take",
        "_theirs",
        "ended",
        "number",
    )

    def __init__(self, number: int, connection: WebSocketConnection) -> None:
        self.number = number
        # Whether nothing more can be sent, and comes.
        self.ended = False
        self._no_more = False
        self._connection = connection
        self._arrived: deque[Payload] = deque()
        self._filled: asyncio.Future[None] | None = None
        self._error: DejaqError | None = None
        # What we may send, and what the other side may send; what was read and is not returned yet.
        self._ours = CREDIT_BYTES
        self._theirs = CREDIT_BYTES
        self._owed = 0
        self._owed_changed: asyncio.Event | None = None
        self._order: asyncio.Lock | None = None
        self._take: Callable[[Payload], bool] | None = None

    # Sending

    async def send(self, *parts: bytes | memoryview) -> None:
        """Send a message in its turn; waits while the other side is not reading. Raises Unavailable after the end."""
        if self._order is not None or self._ours <= 0 or not self._connection.writable:
            if self._order is None:
                self._order = asyncio.Lock()
            async with self._order:
                await self._may_send()
        if self.ended or not self._connection.open:
            raise self._error or Unavailable("the stream has ended", details=self._connection.reason)
        self._ours -= sum(map(len, parts))
        self._connection.write(head(Kind.MESSAGE, self.number), *parts)

    def send_now(self, *parts: bytes | memoryview) -> bool:
        """Send a message if that needs no waiting, and say whether it was sent."""
        if (self._order is not None and self._order.locked()) or self._ours <= 0 or not self._connection.writable:
            return False
        if self.ended or not self._connection.open:
            return False
        self._ours -= sum(map(len, parts))
        self._connection.write(head(Kind.MESSAGE, self.number), *parts)
        return True

    async def _may_send(self) -> None:
        while not self.ended and self._connection.open:
            if not self._connection.writable:
                await self._connection.wait_writable()
            elif self._ours <= 0:
                if self._owed_changed is None:
                    self._owed_changed = asyncio.Event()
                self._owed_changed.clear()
                await self._owed_changed.wait()
            else:
                return

    def credit(self, size: int) -> None:
        """The other side has worked on so many bytes."""
        self._ours += size
        if self._ours > _CREDIT_BYTES_MAX:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"stream {self.number} was given more credit than there can be")
        if self._owed_changed is not None:
            self._owed_changed.set()

    # Receiving

    def arrive(self, payload: Payload) -> None:
        """Take a message from the other side; raises FrameError when it has no credit for it."""
        if self._no_more:
            return
        if self._theirs <= 0:
            raise FrameError(CloseCode.POLICY, f"stream {self.number} sent more than its credit")
        self._theirs -= len(payload)
        if self._take is not None and not self._arrived and self._take(payload):
            self._return(len(payload))
            return
        self._connection.hold(len(payload))
        self._arrived.append(payload)
        self._wake()

    def offer_to(self, take: Callable[[Payload], bool]) -> None:
        """Offer each message that follows no other one to `take`, when it arrives; those not taken are received."""
        self._take = take

    async def receive(self) -> Payload | None:
        """The next message; None after the end, or the error that ended the stream is raised."""
        while not self._arrived:
            if self._no_more:
                if self._error is not None:
                    raise self._error
                return None
            self._filled = asyncio.get_running_loop().create_future()
            try:
                await self._filled
            finally:
                self._filled = None
        payload = self._arrived.popleft()
        self._read(len(payload))
        return payload

    def _read(self, size: int) -> None:
        self._connection.release(size)
        self._return(size)

    def _return(self, size: int) -> None:
        self._owed += size
        if self._owed >= _RETURN_BYTES and not self._no_more:
            self._theirs += self._owed
            self._connection.write(head(Kind.CREDIT, self.number), credit_payload(self._owed))
            self._owed = 0

    def end_of_messages(self) -> None:
        """The other side sends nothing more; what has arrived can still be received."""
        self._no_more = True
        self._wake()

    def end(self, error: DejaqError | None = None) -> None:
        """Nothing more comes, and nothing more can be sent."""
        if self.ended:
            return
        self.ended = True
        self._error = error
        self.end_of_messages()
        if self._owed_changed is not None:
            self._owed_changed.set()

    def discard(self) -> None:
        """End it, and forget what has arrived and was not received."""
        for payload in self._arrived:
            self._connection.release(len(payload))
        self._arrived.clear()
        self.end()

    def _wake(self) -> None:
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)
