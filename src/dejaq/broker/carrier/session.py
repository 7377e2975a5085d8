"""One client's session: the state machine of `Carrier.Session`, whatever carries its frames.

    CONNECTED ──hello──▶ IDLE ──producer──▶ PRODUCER   create, edit, cancel
                           └────consumer──▶ CONSUMER   settle, recalled
                                            │    ▲
                                       subscribe unsubscribe
                                            ▼    │
                                         SUBSCRIBED    settle, recalled, subscribe again

Ping is answered in every state. Frames are handled concurrently, but their calls to the storage start in the order
in which the frames came. A client that sends faster than it is answered is not read from until it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from dejaq import limits
from dejaq.broker.carrier.consumer import Consumer
from dejaq.broker.carrier.producer import Producer
from dejaq.broker.metrics import ERRORS, FRAMES
from dejaq.crashpoints import crash_at
from dejaq.domain.batch import Outcomes
from dejaq.domain.ids import valid_id
from dejaq.domain.topic import Topic
from dejaq.errors import (
    DejaqError,
    Indefinite,
    InternalError,
    InvalidArgument,
    OutOfState,
    StoreError,
    Unavailable,
    VersionUnsupported,
)
from dejaq.protocol.columns import write_outcomes
from dejaq.protocol.status import error_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL, PROTOCOL_MINIMUM, package_version
from dejaq.timekeeper.alarm import within

if TYPE_CHECKING:
    from dejaq.broker.parts import Parts

log = logging.getLogger(__name__)

Frames = AsyncIterator[carrier.ClientFrame]
Send = Callable[[carrier.BrokerFrame], Awaitable[None]]

RECALL_SECONDS = 0.2
_NAME_CHARS_MAX = 256


class SessionState(StrEnum):
    """Where a session stands; it decides which commands fit."""

    CONNECTED = "connected"
    IDLE = "idle"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    SUBSCRIBED = "subscribed"


_ANYWHERE = frozenset(SessionState)
_CONSUMING = frozenset({SessionState.CONSUMER, SessionState.SUBSCRIBED})
_FITS: dict[str, frozenset[SessionState]] = {
    "ping": _ANYWHERE,
    "hello": frozenset({SessionState.CONNECTED}),
    "producer": frozenset({SessionState.IDLE}),
    "consumer": frozenset({SessionState.IDLE}),
    "create": frozenset({SessionState.PRODUCER}),
    "edit": frozenset({SessionState.PRODUCER}),
    "cancel": frozenset({SessionState.PRODUCER}),
    "subscribe": _CONSUMING,
    "unsubscribe": frozenset({SessionState.SUBSCRIBED}),
    "settle": _CONSUMING,
    "recalled": _CONSUMING,
}


class Session:
    """A client on one stream."""

    def __init__(self, *, number: int, peer: str, parts: Parts) -> None:
        self.number = number
        self.peer = peer
        self.state = SessionState.CONNECTED
        self.client = ""
        self.sdk = ""
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None
        self._parts = parts
        self._send: Send | None = None
        self._writing = asyncio.Lock()
        self._slots = asyncio.Semaphore(limits.SESSION_INFLIGHT_MAX)
        self._under_way: set[asyncio.Task[None]] = set()
        self._recalls: dict[int, asyncio.Future[list[int]]] = {}
        self._last_recall = 0
        self._over = asyncio.Event()
        self._reason: DejaqError | None = None

    @property
    def topic(self) -> Topic | None:
        """The topic it works on, once it is a producer or a consumer."""
        worker = self.producer or self.consumer
        return worker.topic if worker is not None else None

    def works_on(self, topic: Topic) -> bool:
        """Whether it is a producer or a consumer of this very topic."""
        return self.topic is not None and self.topic.number == topic.number

    async def serve(self, frames: Frames, send: Send) -> None:
        """Answer frames until the client or the broker ends the session."""
        self._send = send
        reading = asyncio.ensure_future(self._read(frames))
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((reading, over), return_when=asyncio.FIRST_COMPLETED)
            if self._reason is not None:
                await self._send_reason(self._reason)
        finally:
            self._over.set()
            over.cancel()
            reading.cancel()
            self._leave()
            with suppress(asyncio.CancelledError):
                await asyncio.wait((reading,))
            if not reading.cancelled() and (error := reading.exception()) is not None:
                log.debug("session %d of %s broke: %s", self.number, self.peer, error)

    def end(self, error: DejaqError) -> None:
        """End the session; the client is told why by an error that answers no request."""
        if not self._over.is_set():
            self._reason = error
            self._over.set()

    async def finished(self) -> None:
        """Wait until nothing that it asked for is under way."""
        await self._over.wait()
        while self._under_way:
            await asyncio.wait(set(self._under_way))
        if self.consumer is not None and (farewell := self.consumer.unsubscribe()) is not None:
            await asyncio.wait((farewell,))

    def drain(self) -> None:
        """Stop giving leases and tell the client that the broker is about to stop."""
        if self.consumer is not None:
            self.consumer.unsubscribe()
        frame = carrier.BrokerFrame(draining=carrier.Draining())
        self._parts.background.spawn(self.send(frame), name=f"draining session {self.number}")

    def _leave(self) -> None:
        for waiting in self._recalls.values():
            waiting.cancel()
        if self.consumer is not None:
            self.consumer.unsubscribe()
            self._parts.rosters.of(self.consumer.topic).leave(self.consumer)
        self._parts.pinger.forget(self.number)

    async def _send_reason(self, error: DejaqError) -> None:
        # Answers that are ready go first, so that a client does not take a done request for a lost one.
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=1.0)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.send(carrier.BrokerFrame(error=error_to_proto(error))), timeout=1.0)

    async def send(self, frame: carrier.BrokerFrame) -> None:
        """Send a frame, one after the other; waits while the client is not reading."""
        if self._send is None:
            return
        async with self._writing:
            try:
                await self._send(frame)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the transport raises, the client is gone
                log.debug("session %d of %s cannot be written to: %r", self.number, self.peer, error)
                self._over.set()

    async def _read(self, frames: Frames) -> None:
        async for frame in frames:
            await self._slots.acquire()
            # Tasks start in the order in which they are made, and with them the calls to the storage.
            task = self._parts.background.spawn(self._answer(frame), name=f"request of session {self.number}")
            self._under_way.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._slots.release()

    async def _answer(self, frame: carrier.ClientFrame) -> None:
        answer = carrier.BrokerFrame(request=frame.request)
        try:
            result = await self._handle(frame, answer)
            if result is None:
                return
        except DejaqError as error:
            self._refuse(answer, self._told(error))
        except Exception:  # noqa: BLE001 - a fault in one request must not reach the others
            log.exception("session %d of %s: a request failed", self.number, self.peer)
            self._refuse(answer, InternalError())
        crash_at("broker.before_ack")
        await self.send(answer)
        crash_at("broker.after_ack")

    def _told(self, error: DejaqError) -> DejaqError:
        """The error as the client sees it: a failed store is for it a broker that cannot serve now."""
        if isinstance(error, StoreError):
            self._parts.doctor.look()
            return Unavailable("the broker's storage does not work now; nothing was changed", details=str(error))
        if isinstance(error, Indefinite):
            self._parts.doctor.look()
        return error

    def _refuse(self, answer: carrier.BrokerFrame, error: DejaqError) -> None:
        self._parts.metrics.add(ERRORS, 1, error.code.name)
        answer.error.CopyFrom(error_to_proto(error))

    async def _handle(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> bool | None:
        """Do one command and write its answer; None where the command has no answer."""
        command = frame.WhichOneof("command")
        if command is None or (frame.request == 0 and command != "recalled"):
            raise InvalidArgument("a frame needs a request number above 0 and one command known to this broker")
        self._parts.metrics.add(FRAMES, 1, command)
        if self.state not in _FITS[command]:
            raise OutOfState(f"{command!r} does not fit a session that is {self.state}")
        if command == "create":
            self._admit(creating=True)
            write_outcomes(answer.outcomes, await self._producing.create(frame.create))
        elif command == "settle":
            self._admit(creating=False)
            write_outcomes(answer.outcomes, await self._consuming.settle(frame.settle))
        elif command == "edit":
            self._admit(creating=False)
            write_outcomes(answer.outcomes, await self._producing.edit(frame.edit))
        elif command == "cancel":
            self._admit(creating=False)
            write_outcomes(answer.outcomes, await self._producing.cancel(frame.cancel))
        elif command == "recalled":
            self._recalled(frame.request, list(frame.recalled.rows))
            return None
        else:
            self._turn(command, frame, answer)
        return True
