"""One open session with a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dejaq.errors import DejaqError, Indefinite, Unavailable
from dejaq.protocol.spliced import ClientSent
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import SessionChannel, Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier

UNASKED = frozenset({"push", "recall", "draining"})


class Link:
    """Sends requests and matches their answers until the session breaks or the broker drains.

    Frames that the broker sends without a request go to `on_event` immediately and in order.
    """

    def __init__(
        self,
        channel: SessionChannel,
        transport: Transport,
        on_event: Callable[[Link, carrier.BrokerFrame], None],
    ) -> None:
        self.transport = transport
        self.leaving = asyncio.Event()
        self.over = asyncio.Event()
        # The broker that this broker recommends, when it recommends one.
        self.better = ""
        # The broker's reason for ending the session, when it gave one.
        self.reason: DejaqError | None = None
        self._channel = channel
        self._on_event = on_event
        self._pending: dict[int, asyncio.Future[carrier.BrokerFrame]] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._reader = asyncio.create_task(self._read(), name="dejaq-link")

    @property
    def ended(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.over.is_set()

    async def ask(self, frame: ClientSent) -> carrier.BrokerFrame:
        """Send a request and wait for its answer.

        Raises Unavailable when it was not sent, and Indefinite when the session broke before its answer came.
        """
        if self.ended:
            raise Unavailable(f"the session with {self.transport.address} has ended")
        answer: asyncio.Future[carrier.BrokerFrame] = asyncio.get_running_loop().create_future()
        self._pending[frame.request] = answer
        try:
            await self._channel.send(frame)
            return await answer
        except DejaqError as error:
            self._end()
            raise Indefinite(
                f"the session with {self.transport.address} broke before the answer", details=str(error)
            ) from error
        finally:
            self._pending.pop(frame.request, None)
            if answer.done() and not answer.cancelled():
                answer.exception()

    def tell(self, frame: carrier.ClientFrame) -> None:
        """Send a frame that has no answer; when the session breaks meanwhile, the frame is lost."""
        task = asyncio.create_task(self._send(frame))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _send(self, frame: carrier.ClientFrame) -> None:
        try:
            await self._channel.send(frame)
        except DejaqError:
            self._end()

    async def _read(self) -> None:
        try:
            while (frame := await self._channel.receive()) is not None:
                self._received(frame)
        except DejaqError as error:
            if error.answered and not error.retryable:
                self.reason = error
        finally:
            self._end()

    def _received(self, frame: carrier.BrokerFrame) -> None:
        event = frame.WhichOneof("event")
        if event in UNASKED or (event == "log" and frame.request == 0):
            if event == "draining":
                self.better = frame.draining.better
                self.leaving.set()
            self._on_event(self, frame)
        elif event == "error" and frame.request == 0:
            self.reason = error_from_proto(frame.error)
        else:
            answer = self._pending.get(frame.request)
            if answer is not None and not answer.done():
                answer.set_result(frame)

    def _end(self) -> None:
        self.over.set()
        self.leaving.set()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(Indefinite("the session ended before the answer"))

    async def finish(self, seconds: float) -> None:
        """Wait for the outstanding answers, at most so many seconds, and close."""
        waiting = list(self._pending.values())
        try:
            if waiting and not self.ended:
                await asyncio.wait(waiting, timeout=seconds)
        finally:
            await self.close()

    async def close(self) -> None:
        """End the session; requests without an answer are indefinite."""
        if self._sends:
            await asyncio.wait(self._sends, timeout=1.0)
        self._end()
        self._reader.cancel()
        await self._channel.close()
        await asyncio.gather(self._reader, return_exceptions=True)
