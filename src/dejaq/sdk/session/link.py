"""One open session with a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError

from dejaq.errors import DejaqError, Indefinite, Unavailable
from dejaq.protocol.spliced import ClientSent
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import DirectChannel, Payload, SessionChannel, Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier

log = logging.getLogger(__name__)

UNASKED = frozenset({"push", "recall", "draining"})


class _Pending:
    """A request without an answer: what to call with it, and the loop's time at which that waits no longer."""

    __slots__ = ("answered", "until")

    def __init__(self, answered: Answered, until: float) -> None:
        self.answered = answered
        self.until = until


# The answer to a request, or why there is none: TimeoutError, or Indefinite when the session broke before it came.
Answer = carrier.BrokerFrame | DejaqError | TimeoutError
Answered = Callable[[Answer], None]
_NEVER = float("inf")


class Link:
    """Sends requests and matches their answers until the session breaks or the broker drains.

    Frames that the broker sends without a request go to `on_event` immediately and in order. Over a channel that is
    direct, frames are sent and received without a task, and one timer serves all requests.
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
        # How many frames the broker has sent.
        self.frames = 0
        self._channel = channel
        self._direct = channel if isinstance(channel, DirectChannel) else None
        self._on_event = on_event
        self._pending: dict[int, _Pending] = {}
        self._alarm: asyncio.TimerHandle | None = None
        # Exists while somebody waits until nothing is pending.
        self._quiet: asyncio.Event | None = None
        self._sends: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        if self._direct is not None:
            self._direct.offer_to(self._take)
        self._reader = asyncio.create_task(self._read(), name="dejaq-link")

    @property
    def ended(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.over.is_set()

    @property
    def is_watched(self) -> bool:
        """Whether the connection under it finds out when the broker is silent."""
        return self._direct is not None

    def ask_now(self, frame: ClientSent, until: float, answered: Answered) -> bool:
        """Send a request if that needs no waiting, and say whether it was sent; `answered` is called once then."""
        if self._direct is None or self.ended or not self._direct.send_now(frame):
            return False
        self._pending[frame.request] = _Pending(answered, until)
        if self._alarm is None and until != _NEVER:
            self._alarm = self._loop.call_at(until, self._expire)
        return True

    def _expire(self) -> None:
        """End the wait of the requests whose time is over."""
        now = self._loop.time()
        late = [number for number, pending in self._pending.items() if pending.until <= now]
        requests = [self._pending.pop(number) for number in late]
        until = min((pending.until for pending in self._pending.values()), default=_NEVER)
        self._alarm = None if until == _NEVER else self._loop.call_at(until, self._expire)
        for pending in requests:
            pending.answered(TimeoutError())

    async def ask(self, frame: ClientSent) -> carrier.BrokerFrame:
        """Send a request and wait for its answer.

        Raises Unavailable when it was not sent, and Indefinite when the session broke before its answer came.
        """
        if self.ended:
            raise Unavailable(f"the session with {self.transport.address} has ended")
        answer: asyncio.Future[carrier.BrokerFrame] = self._loop.create_future()

        def answered(found: Answer) -> None:
            if answer.done():
                return
            if isinstance(found, BaseException):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        try:
            if not self.ask_now(frame, _NEVER, answered):
                self._pending[frame.request] = _Pending(answered, _NEVER)
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
        if self._direct is not None and not self.ended and self._direct.send_now(frame):
            return
        task = asyncio.create_task(self._send(frame))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _send(self, frame: carrier.ClientFrame) -> None:
        try:
            await self._channel.send(frame)
        except DejaqError:
            self._end()

    def _take(self, payload: Payload) -> bool:
        """Handle a frame as it arrives, when none waits before it; False leaves it to the task that reads."""
        try:
            frame = carrier.BrokerFrame.FromString(payload)
        except DecodeError:
            return False
        try:
            self._received(frame)
        except Exception:
            log.exception("a frame of the broker at %s was not handled; the session ends", self.transport.address)
            self._end()
        return True

    async def _read(self) -> None:
        try:
            while (frame := await self._channel.receive()) is not None:
                self._received(frame)
        except DejaqError as error:
            if error.answered and not error.retryable:
                self.reason = error
        except asyncio.CancelledError:
            # By `close`, which has ended the session, or at the end of the event loop, when nobody waits any more.
            self._pending.clear()
            raise
        finally:
            self._end()

    def _received(self, frame: carrier.BrokerFrame) -> None:
        self.frames += 1
        event = frame.WhichOneof("event")
        if event in UNASKED or (event == "log" and frame.request == 0):
            if event == "draining":
                self.better = frame.draining.better
                self.leaving.set()
            self._on_event(self, frame)
        elif event == "error" and frame.request == 0:
            self.reason = error_from_proto(frame.error)
        else:
            pending = self._pending.pop(frame.request, None)
            if pending is not None:
                pending.answered(frame)
            if self._quiet is not None and not self._pending:
                self._quiet.set()

    def _end(self) -> None:
        self.over.set()
        self.leaving.set()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        unanswered = list(self._pending.values())
        self._pending.clear()
        if self._quiet is not None:
            self._quiet.set()
        for pending in unanswered:
            pending.answered(Indefinite("the session ended before the answer"))

    async def finish(self, seconds: float) -> None:
        """Wait for the outstanding answers, at most so many seconds, and close."""
        try:
            if self._pending and not self.ended:
                self._quiet = asyncio.Event()
                async with asyncio.timeout(seconds):
                    await self._quiet.wait()
        except TimeoutError:
            pass
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


async def ask_once(link: Link, frame: carrier.ClientFrame) -> carrier.BrokerFrame:
    """Send one request in one session; raises the broker's error, without another try."""
    answer = await link.ask(frame)
    if answer.HasField("error"):
        raise error_from_proto(answer.error)
    return answer
