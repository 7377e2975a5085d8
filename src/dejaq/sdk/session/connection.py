"""A session that is opened again after it breaks, if necessary with another broker.

Deadlines and back-off times of the network use the event loop's time; the times of messages and leases, and the pings
that compare clocks, use the `Clock`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dejaq.errors import (
    Code,
    DejaqError,
    Indefinite,
    LimitExceeded,
    NoBroker,
    OutOfState,
    Unauthenticated,
    Unavailable,
    VersionUnsupported,
    error_of,
)
from dejaq.protocol.columns import outcomes_from_proto
from dejaq.protocol.spliced import ClientSent
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.version import PROTOCOL_MINIMUM
from dejaq.sdk.session.backoff import RetryDelays
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.session.link import Answer, Link, ask_once
from dejaq.sdk.session.pings import Pings
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

log = logging.getLogger(__name__)

OPEN_SECONDS = 5.0
# A shorter session did not really work: wait before the next one.
STABLE_SECONDS = 1.0
WIND_DOWN_SECONDS = 2.0
FIRST_PINGS = 4


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """The broker's answer. `unsure`: an earlier try of the same request may have succeeded already."""

    codes: dict[int, Code]
    unsure: bool
    frame: carrier.BrokerFrame | None = None


# What is called with the answer to a request, or with the error that `request` would raise.
Done = Callable[[BrokerAnswer | Exception], None]


class _SentOn(Exception):
    """The broker recommends another broker."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class Connection:
    """Keeps one session open in one role, and repeats requests in later sessions until they are answered.

    `enter` prepares a new session for its role (producer or consumer). `on_event` gets the frames that the broker sends
    without a request. `on_lost` is called when an outage lasts longer than the deadline, and when a refusal ends the
    connection. While `busy` returns True, a session with the only known broker continues after the broker begins to
    drain, until the broker ends it.
    """

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        *,
        enter: Callable[[Link, Transport], Awaitable[None]],
        on_event: Callable[[Link, carrier.BrokerFrame], None],
        on_lost: Callable[[DejaqError], None] = lambda _: None,
        busy: Callable[[], bool] = lambda: False,
        role: str = "",
        topic: str = "",
    ) -> None:
        self._role = role
        self._topic = topic
        self.settings = settings
        self.broker_clock = BrokerClock(settings.clock)
        self.lost: DejaqError | None = None
        self._seeds = seeds
        self._enter = enter
        self._on_event = on_event
        self._on_lost = on_lost
        self._busy = busy
        # Exists while a session continues with a broker that drains; set when no work is in progress any more.
        self._idle: asyncio.Event | None = None
        self._numbers = itertools.count(1)
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._closed: DejaqError | None = None
        # The process in which it was opened.
        self._process = 0
        # The loop's time before which the broker accepts no further change.
        self._throttled_until = 0.0
        # Why the last try to open a session failed.
        self._trouble: DejaqError | None = None
        # The version of the protocol that both sides use.
        self.protocol = PROTOCOL_MINIMUM
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests that need more than one try; each ends by its own deadline.
        self._requests: set[asyncio.Task[None]] = set()
        self._pings = Pings(settings, self.broker_clock, seeds.credentials, self.frame)

    # Lifecycle

    async def open(self) -> None:
        """Open the first session; raises NoBroker after the deadline, or the broker's refusal."""
        if self._process:
            raise OutOfState(f"the {self._role} is open already")
        try:
            async with asyncio.timeout(self.settings.deadline):
                link = await self._establish(patient=False)
        except TimeoutError:
            raise self._unreachable("") from None
        self._process = os.getpid()
        self._use(link)
        self._spawn(self._supervise(link))

    async def wait_open(self) -> None:
        """Wait for a session; raises as `open` does."""
        try:
            async with asyncio.timeout(self.settings.deadline):
                await self._ready(unsure=False)
        except TimeoutError:
            raise self._unreachable("") from None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or ended permanently."""
        return self._closed is not None

    def _use(self, link: Link) -> None:
        self._link, self.lost, self._trouble = link, None, None
        self._up.set()

    def check_open(self) -> None:
        """Raise OUT_OF_STATE when the connection was never opened, or was opened in another process."""
        if self._process == os.getpid():
            return
        if not self._process:
            raise OutOfState(f"the {self._role} is not open: use `async with client.{self._role}(...)`")
        raise OutOfState(f"the {self._role} was opened in another process; connect and open one in each process")

    async def close(self) -> None:
        """End the session permanently."""
        self._closed = OutOfState(f"the {self._role} is closed")
        self._up.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            await self._link.close()

    @property
    def connected(self) -> bool:
        """Whether a session is open now."""
        return self._link is not None and not self._link.ended

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        backoff = self._backoff()
        while True:
            since = loop.time()
            pinging = asyncio.ensure_future(self._pings.run(link))
            try:
                await link.leaving.wait()
                await self._finish_work(link)
            finally:
                pinging.cancel()
            self._up.clear()
            self._link = None
            self._spawn(link.finish(WIND_DOWN_SECONDS))
            if link.reason is not None and not link.reason.retryable and not self._may_log_in(link.reason):
                self._give_up(link.reason)
                return
            self._seeds.demote(link.transport)
            if link.better and self.settings.follow:
                self._seeds.learn([link.better])
                self._seeds.prefer(link.better)
            if loop.time() - since < STABLE_SECONDS:
                await asyncio.sleep(backoff.seconds())
            else:
                backoff.reset()
            try:
                link = await self._establish(patient=True)
            except DejaqError as error:
                self._give_up(error)
                return
            self._use(link)

    def _may_log_in(self, reason: DejaqError) -> bool:
        """Whether newer credentials may help: the session ended because of the old ones."""
        source = self._seeds.credentials
        if not isinstance(reason, Unauthenticated) or source is None or not source.renewable:
            return False
        source.invalidate()
        return True

    async def _finish_work(self, link: Link) -> None:
        """Stay with a broker that drains until the work in progress is settled, when no other
        broker could settle it.
        """
        if link.ended or link.better or self._seeds.count > 1 or not self._busy():
            return
        self._idle = asyncio.Event()
        self._up.set()
        waiting = [asyncio.ensure_future(self._idle.wait()), asyncio.ensure_future(link.over.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._idle = None
            for task in waiting:
                task.cancel()

    def look(self) -> None:
        """Called after a settlement: a session that waits only for settlements may end now."""
        if self._idle is not None and not self._busy():
            self._idle.set()

    def _give_up(self, error: DejaqError) -> None:
        self._closed = error
        self._up.set()
        self._lose(error)

    # Sessions

    async def _establish(self, *, patient: bool) -> Link:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.settings.deadline
        backoff = self._backoff()
        sent_on = False
        for tries in itertools.count(1):
            transport = self._seeds.first()
            error: DejaqError
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    return await self._open(transport, stay=sent_on)
            except _SentOn as advice:
                # Only one recommendation is followed: the client stays with the recommended broker.
                sent_on = True
                self._seeds.prefer(advice.address)
                continue
            except TimeoutError:
                error = Unavailable(f"{transport.address} did not answer within {OPEN_SECONDS:g} s")
            except DejaqError as refused:
                error = refused
                if not (error.retryable or (patient and isinstance(error, LimitExceeded))):
                    raise
            if error.answered or self._trouble is None or not self._trouble.answered:
                # A broker's own error explains more than another broker's missing answer.
                self._trouble = error
            self._seeds.demote(transport)
            if self.lost is None and loop.time() > until:
                self._lose(self._unreachable(""))
            if tries % self._seeds.count == 0:
                await asyncio.sleep(backoff.seconds(error.throttled_ms))
        raise AssertionError("the tries have no end")

    async def _open(self, transport: Transport, *, stay: bool) -> Link:
        link = Link(await transport.session(), transport, self._on_event)
        await self._pings.begin()
        try:
            hello = self.frame()
            hello.hello.CopyFrom(self.settings.hello(role=self._role, topic=self._topic))
            sent = self.settings.clock.monotonic()
            welcome = (await ask_once(link, hello)).welcome
            if welcome.protocol < PROTOCOL_MINIMUM:
                raise VersionUnsupported(
                    f"the broker at {transport.address} speaks protocol {welcome.protocol}; "
                    f"this client needs {PROTOCOL_MINIMUM} or later: upgrade the broker"
                )
            if self.settings.follow:
                self._seeds.learn(welcome.brokers)
                if welcome.better and not stay:
                    raise _SentOn(welcome.better)
            self.protocol = welcome.protocol
            self.broker_clock.meet(welcome.clock)
            self._pings.observe(sent, welcome.broker_us)
            if not self.broker_clock.shared:
                for _ in range(FIRST_PINGS):
                    await self._pings.ping(link)
            await self._enter(link, transport)
        except BaseException as error:
            reason = link.reason
            await link.close()
            if reason is not None and isinstance(error, Indefinite | Unavailable):
                # The broker said why it did not begin the session.
                raise reason from None
            raise
        return link

    def _backoff(self) -> RetryDelays:
        return RetryDelays(self._seeds.random, deadline=self.settings.deadline)

    def _lose(self, error: DejaqError) -> None:
        self.lost = error
        self._on_lost(error)

    def freshen_clock(self) -> None:
        """Compare the clocks soon, if the last comparison is old."""
        if not self.broker_clock.shared:
            self._pings.hurry()

    # Requests

    def frame(self) -> carrier.ClientFrame:
        """An empty frame with a request number of its own."""
        return carrier.ClientFrame(request=next(self._numbers))

    def until(self) -> float:
        """The loop's time at which a request that begins now times out."""
        return asyncio.get_running_loop().time() + self.settings.deadline

    def begin(self, frame: ClientSent, until: float, done: Done) -> None:
        """Send a request as `request` does; `done` is called once, with its answer or with what `request` would raise.

        While a session is open, the frame leaves at once and no task is needed.
        """
        link = self._link
        if (
            link is not None
            and not link.leaving.is_set()
            and (not self._throttled_until or self._throttled_until <= asyncio.get_running_loop().time())
            and self._process == os.getpid()
        ):

            def answered(found: Answer) -> None:
                if isinstance(found, carrier.BrokerFrame) and not found.HasField("error"):
                    done(self._answer(found, unsure=False))
                else:
                    self._request_for(frame, until, done, found)

            if link.ask_now(frame, until, answered):
                return
        self._request_for(frame, until, done, None)

    def _request_for(self, frame: ClientSent, until: float, done: Done, first: Answer | None) -> None:
        """Go on with a request in a task of its own."""
        task = asyncio.ensure_future(self._request(frame, until, done, first))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _request(self, frame: ClientSent, until: float, done: Done, first: Answer | None) -> None:
        try:
            answer = await self.request(frame, until, first)
        except asyncio.CancelledError:
            done(Indefinite("the event loop ended before the answer; it may have been done or not"))
            raise
        except Exception as error:  # noqa: BLE001  the caller gets it
            done(error)
        else:
            done(answer)

    async def request(self, frame: ClientSent, until: float, first: Answer | None = None) -> BrokerAnswer:
        """Send a request that may be repeated, until it is answered; the outcomes. Raises as `ask` does."""
        answer, unsure = await self.ask(frame, until, first)
        return self._answer(answer, unsure=unsure)

    def _answer(self, frame: carrier.BrokerFrame, *, unsure: bool) -> BrokerAnswer:
        outcomes = frame.outcomes
        if outcomes.throttled_ms:
            self._throttled_until = asyncio.get_running_loop().time() + outcomes.throttled_ms / 1_000
        return BrokerAnswer(outcomes_from_proto(outcomes, count=0).codes if outcomes.rows else {}, unsure, frame)

    async def ask(
        self, frame: ClientSent, until: float, first: Answer | None = None
    ) -> tuple[carrier.BrokerFrame, bool]:
        """Send a request that may be repeated, until it is answered; the answer, and whether an earlier try may have
        succeeded. `first` is the answer to a first try, or why it had none.

        Raises the broker's refusal, also a retryable refusal that lasted until `until`; NoBroker when nothing was sent
        before then; and Indefinite when the request may have succeeded.
        """
        self.check_open()
        loop = asyncio.get_running_loop()
        backoff = self._backoff()
        unsure = False
        refusal: DejaqError | None = None
        while True:
            wait = 0.0
            asked = first is not None
            try:
                if first is None:
                    async with asyncio.timeout_at(until):
                        if (ahead := self._throttled_until - loop.time()) > 0:
                            refusal = error_of(Code.OVERLOADED, throttled_ms=round(ahead * 1_000))
                            await asyncio.sleep(ahead)
                        link = await self._ready(unsure=unsure)
                        asked = True
                        answer = await link.ask(frame)
                else:
                    found, first = first, None
                    if isinstance(found, BaseException):
                        raise found
                    answer = found
                if not answer.HasField("error"):
                    return answer, unsure
                error = error_from_proto(answer.error)
                if not error.retryable:
                    error.unsure = unsure
                    raise error
                unsure = unsure or error.indefinite
                refusal = None if error.indefinite else error
                wait = backoff.seconds(error.throttled_ms)
            except TimeoutError:
                raise self._late(unsure or asked, refusal) from None
            except Indefinite:
                if self._leaves_open(self._closed):
                    raise
                unsure = True
            except Unavailable:
                wait = backoff.seconds()
            if loop.time() + wait >= until:
                raise self._late(unsure, refusal)
            await asyncio.sleep(wait)

    async def _ready(self, *, unsure: bool) -> Link:
        while self._link is None or (self._link.leaving.is_set() and (self._idle is None or self._link.ended)):
            if unsure and self._leaves_open(self._closed):
                reason = str(self._closed)
                raise Indefinite("the session ended before the answer; it may have been done", details=reason)
            if self._closed is not None:
                # Every request raises the same error, so it must not keep the traceback of earlier requests.
                raise self._closed.with_traceback(None)
            self._up.clear()
            await self._up.wait()
        return self._link

    @staticmethod
    def _leaves_open(reason: DejaqError | None) -> bool:
        """Whether the outcome is unknown of a request whose session ended permanently for this reason.

        When the topic was deleted, its messages and all changes to them are gone too, so nothing is uncertain.
        """
        return reason is not None and reason.code not in (Code.TOPIC_DELETING, Code.TOPIC_NOT_FOUND)

    def _late(self, unsure: bool, refusal: DejaqError | None = None) -> DejaqError:
        seconds = self.settings.deadline
        if unsure:
            known = refusal or self._trouble
            return Indefinite(
                f"no answer within {seconds:g} s; it may have been done or not", details=str(known) if known else ""
            )
        return refusal or self._unreachable("; nothing was sent")

    def _unreachable(self, remark: str) -> DejaqError:
        """The reason why no session could be opened within the deadline: a broker's error, or that none answered."""
        if self._trouble is not None and self._trouble.answered:
            return self._trouble.with_traceback(None)
        return NoBroker(
            f"no broker answered at {self._seeds.addresses} within {self.settings.deadline:g} s{remark}",
            details=str(self._trouble) if self._trouble is not None else "",
        )
