"""A way to a broker for code without an event loop, such as a Spark task: one thread, one call at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from google.protobuf.message import Message

from dejaq.errors import NoBroker, Unavailable
from dejaq.protocol.transport import Response, SessionChannel, Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier

Result = TypeVar("Result")

# How often a broker that does not answer is tried again.
_RETRY_SECONDS = 0.1
# How long a closed connection may take to end.
_CLOSE_SECONDS = 5.0


class BlockingTransport:
    """A transport whose connection is served by a thread of its own."""

    def __init__(self, transport: Transport) -> None:
        self.address = transport.address
        self._transport = transport
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"dejaq-{self.address}", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
        """Run `work` in the thread and wait for its result; raises TimeoutError and cancels it after `seconds`."""
        if self._loop.is_closed():
            work.close()
            raise Unavailable(f"the connection to {self.address} is closed")
        future = asyncio.run_coroutine_threadsafe(_within(work, seconds), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Unavailable(f"the connection to {self.address} is closed") from None
        finally:
            future.cancel()

    def call(self, method: str, request: Message, response: type[Response], timeout: float) -> Response:
        """A unary call, `method` as in `Overseer.Info`; waits for the broker up to `timeout` seconds."""
        until = time.monotonic() + timeout
        while True:
            left = max(until - time.monotonic(), 0.001)
            try:
                return self.run(self._transport.call(method, request, response, left))
            except NoBroker:
                if time.monotonic() + _RETRY_SECONDS > until:
                    raise
                time.sleep(_RETRY_SECONDS)

    def stream(
        self, method: str, request: Message, response: type[Response], *, silent_s: float = 60.0
    ) -> Iterator[Response]:
        """A server-streaming call, once a unary one has found the broker: a stream does not wait for it.

        It ends with an error when nothing comes for `silent_s` seconds, as from a broker that is frozen.
        """
        responses = self._transport.stream(method, request, response)

        async def portion() -> Response | None:
            return await anext(responses, None)

        async def leave() -> None:
            # Ends the call at the broker; a protocol has no such method, the generators of all transports do.
            await responses.aclose()  # type: ignore[attr-defined]

        try:
            while True:
                try:
                    found = self.run(portion(), silent_s)
                except TimeoutError:
                    raise Unavailable(f"{self.address} sent nothing for {silent_s:g} s") from None
                if found is None:
                    return
                yield found
        finally:
            if not self._loop.is_closed():
                self.run(leave(), _CLOSE_SECONDS)

    def session(self) -> BlockingSession:
        """Open a session."""
        return BlockingSession(self, self.run(self._transport.session()))

    def close(self) -> None:
        """Let go of the connection."""
        if self._loop.is_closed():
            return
        try:
            self.run(self._end(), _CLOSE_SECONDS)
        except TimeoutError:
            # Its thread ends with the process.
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        await self._transport.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _within(work: Coroutine[Any, Any, Result], seconds: float | None) -> Result:
    async with asyncio.timeout(seconds):
        return await work


class BlockingSession:
    """The client's end of one `Carrier.Session`."""

    def __init__(self, transport: BlockingTransport, session: SessionChannel) -> None:
        self._transport = transport
        self._session = session

    def send(self, frame: carrier.ClientFrame) -> None:
        """Send a frame; waits while the broker is not reading."""
        self._transport.run(self._session.send(frame))

    def receive(self, timeout: float) -> carrier.BrokerFrame:
        """The next frame; raises Unavailable when the session is over, or nothing comes for `timeout` seconds."""
        address = self._transport.address
        try:
            frame = self._transport.run(self._session.receive(), timeout)
        except TimeoutError:
            raise Unavailable(f"the session with {address} broke", details=f"silent for {timeout:g} s") from None
        if frame is None:
            raise Unavailable(f"the broker at {address} ended the session")
        return frame

    def close(self) -> None:
        """End the session."""
        self._transport.run(self._session.close(), _CLOSE_SECONDS)
