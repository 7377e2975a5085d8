"""One client's session: the state machine of `Carrier.Session`, whatever carries its frames.

    CONNECTED ──hello──▶ IDLE ──producer──▶ PRODUCER   create, edit, cancel
                           └────consumer──▶ CONSUMER   settle, deletes, extends, recalled
                                            │    ▲
                                       subscribe unsubscribe
                                            ▼    │
                                         SUBSCRIBED    settle, deletes, extends, recalled, progress, busy, subscribe

A session that is IDLE and gets a command for a log works only on logs from then on: it is LOG.

Ping is answered in every state. Frames are handled concurrently, but their calls to the storage start in the order
in which the frames came. A client that sends faster than it is answered is not read from until it has caught up.

A frame that needs nothing but one change of the storage is handled when it arrives, without a task, unless an earlier
frame waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dejaq import limits
from dejaq.broker.delivery.consumer import ConnectedConsumer
from dejaq.broker.delivery.progress import ProgressReport
from dejaq.broker.doctor import cannot_serve
from dejaq.broker.log.session import LogSession
from dejaq.broker.metrics import ERRORS, FRAMES
from dejaq.broker.rights.session_rights import SessionRights
from dejaq.broker.sessions.admission import check_name
from dejaq.broker.sessions.changes import COMMANDS as CHANGES
from dejaq.broker.sessions.changes import SessionChanges
from dejaq.broker.sessions.incoming import OffersFrames, read_frame, read_parts, size_of
from dejaq.broker.sessions.outgoing import FrameQueue
from dejaq.broker.sessions.producer import ConnectedProducer
from dejaq.broker.sessions.state import FITS, SessionState
from dejaq.domain.batch import Outcomes
from dejaq.domain.context import CallContext, Endpoint
from dejaq.domain.ids import valid_id
from dejaq.domain.topic import Topic
from dejaq.errors import (
    Code,
    DejaqError,
    Indefinite,
    InternalError,
    InvalidArgument,
    OutOfState,
    Refused,
    StoreError,
    VersionUnsupported,
    error_of,
)
from dejaq.protocol.spliced import BrokerSent
from dejaq.protocol.status import error_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL, PROTOCOL_MINIMUM, package_version

if TYPE_CHECKING:
    from dejaq.broker.sessions.broker_context import BrokerContext

log = logging.getLogger(__name__)

# As they came over the network, or as objects in the same process.
Frames = AsyncIterable[bytes] | AsyncIterable[bytes | carrier.ClientFrame]
# How many pings of a session are answered before other clients have their turn.
PINGS_PER_STEP = 16
Send = Callable[[BrokerSent], Awaitable[None]]

FAREWELL_SECONDS = 1.0
_LABEL_CHARS_MAX = 256


# Commands that carry bodies, whose size counts.
_HEAVY = frozenset({"create", "edit", "log"})


class Session:
    """A client on one stream."""

    def __init__(self, *, number: int, context: CallContext, broker: BrokerContext) -> None:
        self.number = number
        self.context = context
        self.peer = context.peer
        self.state = SessionState.CONNECTED
        self.client = ""
        self.sdk = ""
        # What the client will become, as it announced; empty for a client that does not follow advice.
        self.role = ""
        # When it was asked to move to another broker, by the monotonic clock.
        self.asked_at: float | None = None
        self.producer: ConnectedProducer | None = None
        self.consumer: ConnectedConsumer | None = None
        self._broker = broker
        self.rights = SessionRights(broker.guard, context)
        self._log = LogSession(broker.logs, send=self.send, end=self.end)
        self._outgoing = FrameQueue()
        self._changes = SessionChanges(self, broker)
        self._under_way: set[asyncio.Future[Any]] = set()
        # Frames that were received and are not begun; and the one that `take` did not take, which is received next.
        self._queued = 0
        self._offered: carrier.ClientFrame | None = None
        self._bytes = 0
        self._less = asyncio.Event()
        self._recalls: dict[int, asyncio.Future[list[int]]] = {}
        self._last_recall = 0
        self._has_left = False
        self._over = asyncio.Event()
        self._reason: DejaqError | None = None

    @property
    def topic(self) -> Topic | None:
        """The topic it works on, once it is a producer or a consumer."""
        worker = self.producer or self.consumer or self._log
        return worker.topic

    @property
    def name(self) -> str:
        """The name that its client would have again if it reconnected: of a producer, its client and group."""
        if self.consumer is not None:
            return f"{self.consumer.topic.number}/{self.consumer.name}"
        return "" if self.producer is None else f"{self.producer.topic.number}/{self.client}/{self.producer.group}"

    @property
    def movable(self) -> bool:
        """Whether it may be asked to move to another broker: once, and if its client follows advice."""
        return self.topic is not None and bool(self.role) and self.asked_at is None and self.context.movable

    @property
    def endpoint(self) -> Endpoint:
        """The kind of address at which its client connected."""
        return self.context.endpoint

    def works_on(self, topic: Topic) -> bool:
        """Whether it is a producer or a consumer of this very topic."""
        return self.topic is not None and self.topic.number == topic.number

    async def serve(self, frames: Frames, send: Send) -> None:
        """Answer frames until the client or the broker ends the session."""
        if isinstance(frames, OffersFrames):
            frames.offer_to(self.take)
        broker: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._read(frames)),
            asyncio.ensure_future(self._outgoing.write(send)),
            asyncio.ensure_future(self._over.wait()),
        ]
        try:
            await asyncio.wait(broker, return_when=asyncio.FIRST_COMPLETED)
            # This comes first, so that its buckets are assigned to other consumers at once.
            self._leave()
            await self._say_farewell()
        finally:
            self._over.set()
            self._outgoing.close()
            self._leave()
            for part in broker:
                part.cancel()
            for fault in await asyncio.gather(*broker, return_exceptions=True):
                if isinstance(fault, Exception):
                    log.debug("session %d of %s failed: %r", self.number, self.peer, fault)

    def end(self, error: DejaqError) -> None:
        """End the session; the client gets the reason as an error that answers no request."""
        if not self._over.is_set():
            self._reason = error
            self._over.set()

    async def finished(self) -> None:
        """Wait until the session is over and all its requests are finished."""
        await self._over.wait()
        while self._under_way:
            await asyncio.wait(set(self._under_way))
        if self.consumer is not None and (farewell := self.consumer.unsubscribe()) is not None:
            await asyncio.wait((farewell,))

    async def drain(self) -> None:
        """Stop leasing and notify the client that the broker is about to stop."""
        if self.consumer is not None:
            self.consumer.unsubscribe()
        await self.send(carrier.BrokerFrame(draining=carrier.Draining()))

    async def move(self, address: str) -> None:
        """Ask the client to move to another broker; it is served here until it moves."""
        self.asked_at = self._broker.clock.monotonic()
        await self.send(carrier.BrokerFrame(draining=carrier.Draining(better=address)))

    async def send(self, frame: BrokerSent) -> None:
        """Send a frame; waits while the client is not reading."""
        await self._outgoing.put(frame)

    async def request_recall(self, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask the client to release rows that are not due yet; returns those released. The caller limits the wait."""
        if self._has_left:
            return []
        self._last_recall += 1
        number = self._last_recall
        answer = self._recalls[number] = asyncio.get_running_loop().create_future()
        try:
            await self.send(carrier.BrokerFrame(request=number, recall=carrier.Recall(lease=lease_id, rows=rows)))
            await asyncio.wait((answer,))
            return [] if answer.cancelled() else answer.result()
        finally:
            del self._recalls[number]

    async def _say_farewell(self) -> None:
        """Wait shortly for running requests, so that the client gets the answers of changes that are made."""
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=FAREWELL_SECONDS)
        if self._reason is not None:
            await asyncio.wait((asyncio.ensure_future(self._send_last(self._reason)),), timeout=FAREWELL_SECONDS)

    async def _send_last(self, reason: DejaqError) -> None:
        await self.send(carrier.BrokerFrame(error=error_to_proto(reason)))
        await self._outgoing.flushed()

    def _leave(self) -> None:
        """Release the name, buckets and measurements; calling it again does nothing."""
        self._has_left = True
        for waiting in self._recalls.values():
            waiting.cancel()
        self._log.close()
        if self.consumer is not None:
            self.consumer.unsubscribe()
            self._broker.rosters.of(self.consumer.topic).leave(self.consumer)
        self._broker.pinger.forget(self.number)

    async def _read(self, frames: Frames) -> None:
        pings = 0
        async for received in frames:
            frame, self._offered = self._offered, None
            if frame is None:
                frame = received if isinstance(received, carrier.ClientFrame) else read_frame(received)
            self._queued += 1
            command = frame.WhichOneof("command")
            if command == "ping":
                # It changes nothing and waits for nothing, so it needs no task: idle clients send little else.
                await self._answer(frame)
                pings += 1
                if not pings % PINGS_PER_STEP:
                    # A flood of them must not keep the event loop from other clients.
                    await asyncio.sleep(0)
                continue
            size = size_of(received) if command in _HEAVY else 0
            await self._wait_for_room(size)
            self._bytes += size
            # Tasks start in the order in which they are made, and with them the calls to the storage.
            task = self._broker.background.spawn(self._answer(frame), name=f"request of session {self.number}")
            self._under_way.add(task)
            task.add_done_callback(partial(self._answered, size=size))

    def _has_room(self, size: int) -> bool:
        return not self._under_way or (
            len(self._under_way) < limits.SESSION_INFLIGHT_MAX
            and self._bytes + size <= limits.SESSION_INFLIGHT_BYTES_MAX
        )

    async def _wait_for_room(self, size: int) -> None:
        while not self._has_room(size):
            self._less.clear()
            await self._less.wait()

    def _answered(self, work: asyncio.Future[Any], *, size: int) -> None:
        self._under_way.discard(work)
        self._bytes -= size
        self._less.set()

    def take(self, received: bytes) -> bool:
        """Begin a change at once, or answer a ping, where the frame asks for that and nothing before it waits."""
        size = len(received)
        if self._queued or self._over.is_set() or not self._has_room(size):
            return False
        frame, columns = read_parts(received)
        command = frame.WhichOneof("command")
        is_ping = command == "ping"
        if command is None or not frame.request or not (is_ping or self._changes.is_direct(command, frame)):
            self._offered = None if columns is not None else frame
            return False
        request = frame.request
        answer = carrier.BrokerFrame(request=request)
        try:
            self._admit(command, frame)
            if is_ping:
                self._on_ping(frame, answer)
                self._send_soon(answer)
                return True
            answers, complete = self._changes.begin(self.context, command, frame, columns)
        except Exception as error:  # noqa: BLE001  the client gets it
            self._fail(answer, self.context.of_frame(request), command, error)
            self._send_soon(answer)
            return True
        self._bytes += size
        self._under_way.add(answers)

        def done(found: asyncio.Future[list[Outcomes | Refused]]) -> None:
            self._answered(found, size=size)
            if found.cancelled():
                return
            try:
                complete(found.result(), answer)
            except Exception as error:  # noqa: BLE001  the client gets it
                self._fail(answer, self.context.of_frame(request), command, error)
            self._send_soon(answer)

        answers.add_done_callback(done)
        return True

    def _send_soon(self, frame: carrier.BrokerFrame) -> None:
        """Send a frame now, or when the client has read."""
        if not self._outgoing.put_now(frame):
            task = self._broker.background.spawn(self.send(frame), name=f"answer of session {self.number}")
            self._under_way.add(task)
            task.add_done_callback(partial(self._answered, size=0))

    async def _answer(self, frame: carrier.ClientFrame) -> None:
        self._queued -= 1
        answer = carrier.BrokerFrame(request=frame.request)
        context = self.context.of_frame(frame.request)
        try:
            await self._handle(context, frame, answer)
        except Exception as error:  # noqa: BLE001  the client gets it
            self._fail(answer, context, frame.WhichOneof("command"), error)
        if answer.WhichOneof("event") is not None:
            await self.send(answer)

    def _fail(self, answer: carrier.BrokerFrame, context: CallContext, command: str | None, error: Exception) -> None:
        """Answer a frame with the error of its command."""
        if isinstance(error, DejaqError):
            self._refuse(answer, self._for_client(error))
            return
        log.error(
            "%s of session %d failed (request %s)",
            command,
            self.number,
            context.request_id,
            exc_info=error,
            extra=context.log_fields(event="call_failed", method=command),
        )
        self._refuse(answer, InternalError(details=f"request {context.request_id}"))

    def _for_client(self, error: DejaqError) -> DejaqError:
        """The error as the client sees it; a fault of the storage makes the doctor examine the broker."""
        if isinstance(error, StoreError | Indefinite):
            self._broker.doctor.look()
        if isinstance(error, StoreError):
            return cannot_serve(error)
        return error

    def _refuse(self, answer: carrier.BrokerFrame, error: DejaqError) -> None:
        self._broker.metrics.add(ERRORS, 1, error.code.name)
        answer.error.CopyFrom(error_to_proto(error))

    async def _handle(self, context: CallContext, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        """Do one command and write its answer; nothing may be awaited before the call to the storage."""
        command = frame.WhichOneof("command")
        if command is None or frame.request == 0:
            raise InvalidArgument(
                "the frame cannot be read, or lacks a request number above 0 or a command that this broker knows"
            )
        self._admit(command, frame)
        if command == "log":
            self.state = SessionState.LOG
            await self._log.answer(context, frame, answer)
        elif command in CHANGES:
            await self._changes.answer(context, command, frame, answer)
        elif command == "renew":
            await self._broker.gate.renew(context, frame.renew.bearer)
            answer.outcomes.SetInParent()
        else:
            getattr(self, f"_on_{command}")(frame, answer)

    def _admit(self, command: str, frame: carrier.ClientFrame) -> None:
        """Raise an error for a command that does not fit the session, or that its caller may not give."""
        self._broker.metrics.add(FRAMES, 1, command)
        if self.state not in FITS[command]:
            raise OutOfState(f"{command!r} does not fit a session that is {self.state}")
        self.rights.admit(command, frame)

    def _on_hello(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        hello = frame.hello
        self._broker.doctor.check_clock()
        if hello.protocol < PROTOCOL_MINIMUM:
            raise VersionUnsupported(
                f"the client speaks protocol {hello.protocol}; this broker needs {PROTOCOL_MINIMUM} or later: "
                "upgrade the client"
            )
        self.client = hello.client[:_LABEL_CHARS_MAX]
        self.sdk = hello.sdk[:_LABEL_CHARS_MAX]
        self.role = hello.role[:_LABEL_CHARS_MAX]
        self.state = SessionState.IDLE
        clock, config = self._broker.clock, self._broker.config
        # A newer client reads the protocol version of this broker, and decides whether to continue.
        answer.welcome.protocol = min(PROTOCOL, hello.protocol)
        answer.welcome.broker = config.name
        answer.welcome.version = package_version()
        answer.welcome.cluster = config.cluster
        answer.welcome.clock = clock.identity
        answer.welcome.broker_us = clock.now_us()
        if self.context.movable:
            advice = self._broker.cluster.placement.advise(
                topic=hello.topic, role=hello.role, endpoint=self.context.endpoint
            )
            answer.welcome.brokers.extend(advice.brokers)
            answer.welcome.better = advice.better

    def _on_ping(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        ping = frame.ping
        # A client that reads the time from a wrong clock would deliver messages too early.
        self._broker.doctor.check_clock()
        self._broker.pinger.report(self.number, ping.latency_ms, ping.clock_offset_ms)
        answer.pong.client_us = ping.client_us
        answer.pong.broker_us = self._broker.clock.now_us()

    def _on_producer(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        self._broker.doctor.admit("producer")
        topic = self._broker.catalog.live(frame.producer.topic)
        check_name(frame.producer.group, limits.GROUP_CHARS_MAX, what="producer group")
        self.producer = ConnectedProducer(
            group=frame.producer.group,
            topic=topic,
            roster=self._broker.rosters.of(topic),
            storage=self._broker.storage,
            clock=self._broker.clock,
            metrics=self._broker.metrics,
        )
        self.state = SessionState.PRODUCER
        answer.outcomes.SetInParent()

    def _on_consumer(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        self._broker.doctor.admit("consumer")
        topic = self._broker.catalog.live(frame.consumer.topic)
        if topic.settings.expires:
            raise InvalidArgument(f"messages of {topic.name!r} expire when their time comes; they are read by id")
        check_name(frame.consumer.name, limits.CONSUMER_NAME_CHARS_MAX, what="consumer name")
        roster = self._broker.rosters.of(topic)
        self.consumer = ConnectedConsumer(
            context=self.context,
            name=frame.consumer.name,
            topic=topic,
            link=self,
            storage=self._broker.storage,
            clock=self._broker.clock,
            metrics=self._broker.metrics,
            background=self._broker.background,
            prefetch_ms_max=self._broker.config.prefetch_ms_max,
            notify_returned=roster.notify_returned,
            dead_letters=self._broker.dead_letters,
            storage_failed=self._broker.doctor.look,
            sharing_changed=roster.sharing_changed,
            confirm=self._broker.doctor.confirm,
            alarms=self._broker.alarms,
        )
        roster.enter(self.consumer)
        self.state = SessionState.CONSUMER
        answer.outcomes.SetInParent()

    def _on_subscribe(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        self._broker.doctor.admit("subscribe")
        if self.consumer is not None:
            self._broker.catalog.check(self.consumer.topic)
            self.consumer.subscribe(frame.subscribe)
            self.state = SessionState.SUBSCRIBED
            self._broker.rosters.of(self.consumer.topic).reassign(self.consumer.name)
        answer.outcomes.SetInParent()

    def _on_unsubscribe(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        if self.consumer is not None:
            self.consumer.unsubscribe()
            self.state = SessionState.CONSUMER
            self._broker.rosters.of(self.consumer.topic).reassign(self.consumer.name)
        answer.outcomes.SetInParent()

    def _on_busy(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        if self.consumer is not None:
            self.consumer.busy(frame.busy)
        answer.outcomes.SetInParent()

    def _on_progress(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        report = frame.progress
        if len(report.text) > limits.PROGRESS_CHARS_MAX or not valid_id(report.id):
            raise InvalidArgument(f"a progress report has an id and at most {limits.PROGRESS_CHARS_MAX} characters")
        if self.consumer is None or report.lease not in self.consumer.inflight:
            raise error_of(Code.LEASE_LOST, details=report.id)
        self._broker.reports.put(self.consumer.topic.number, report.id, ProgressReport(report.lease, report.text))
        answer.outcomes.SetInParent()

    def _on_recalled(self, frame: carrier.ClientFrame, answer: carrier.BrokerFrame) -> None:
        rows = list(frame.recalled.rows)
        waiting = self._recalls.get(frame.request)
        if waiting is not None and not waiting.done():
            waiting.set_result(rows)
        elif self.consumer is not None:
            # Too late for the owner, which got LEASED; the client has released the rows all the same.
            self._broker.background.spawn(
                self.consumer.recall_late(frame.recalled.lease, rows),
                name=f"late recall of session {self.number}",
            )
