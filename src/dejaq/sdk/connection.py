"""A session that is opened again, with another broker if need be, whenever it breaks.

Patience with the network (deadlines, back-off) is counted by the event loop's time; the times of messages and
leases, and the pings that compare clocks, by the `Clock`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dejaq.errors import (
    Code,
    DejaqError,
    Indefinite,
    LimitExceeded,
    NoBroker,
    OutOfState,
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
from dejaq.sdk.backoff import Backoff
from dejaq.sdk.broker_clock import BrokerClock
from dejaq.sdk.link import Link
from dejaq.sdk.seeds import Seeds
from dejaq.sdk.settings import ClientSettings

OPEN_SECONDS = 5.0
PING_SECONDS = 3.0
PONG_SECONDS = 10.0
# A session that lived shorter than this did not really work: wait before the next one.
STABLE_SECONDS = 1.0
WIND_DOWN_SECONDS = 2.0
FIRST_PINGS = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What the broker answered. `unsure`: an earlier try of the same request may have been done already."""

    codes: dict[int, Code]
    unsure: bool


class _SentOn(Exception):
    """The broker recommends another."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class Connection:
    """Keeps one session open in one role, and repeats requests over its successors until they are answered.

    `enter` makes a fresh session what it is to be (producer or consumer). `on_event` takes what the broker sends
    unasked; `on_lost` is told of an outage that outlasts the deadline, and of a refusal that ends the connection.
    """

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        *,
        enter: Callable[[Link, Transport], Awaitable[None]],
        on_event: Callable[[Link, carrier.BrokerFrame], None],
        on_lost: Callable[[DejaqError], None] = lambda _: None,
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
        self._numbers = itertools.count(1)
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._closed: DejaqError | None = None
        self._drifting = False
        # The loop's time before which the broker wants no further change.
        self._throttled_until = 0.0
        # Why the last try to open a session failed.
        self._trouble = ""
        # What both sides speak.
        self.protocol = PROTOCOL_MINIMUM
        self._tasks: set[asyncio.Task[None]] = set()

    # Life

    async def open(self) -> None:
        """Open the first session; raises NoBroker after the deadline, or the broker's refusal."""
        try:
            async with asyncio.timeout(self.settings.deadline):
                link = await self._establish(patient=False)
        except TimeoutError:
            raise NoBroker(
                f"no broker answered at {self._seeds.addresses} within {self.settings.deadline:g} s",
                details=self._trouble,
            ) from None
        self._spawn(self._supervise(link))

    async def close(self) -> None:
        """End the session for good."""
        self._closed = OutOfState("it is closed")
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
            self._link, self.lost = link, None
            self._up.set()
            since = loop.time()
            pinging = asyncio.ensure_future(self._ping_forever(link))
            try:
                await link.leaving.wait()
            finally:
                pinging.cancel()
            self._up.clear()
            self._link = None
            self._spawn(link.finish(WIND_DOWN_SECONDS))
            if link.reason is not None and not link.reason.retryable:
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
                # Followed once: where it leads, the client stays.
                sent_on = True
                self._seeds.prefer(advice.address)
                continue
            except TimeoutError:
                error = Unavailable(f"{transport.address} did not answer within {OPEN_SECONDS:g} s")
            except DejaqError as refused:
                error = refused
                if not (error.retryable or (patient and isinstance(error, LimitExceeded))):
                    raise
            self._trouble = str(error)
            self._seeds.demote(transport)
            if self.lost is None and loop.time() > until:
                self._lose(NoBroker(f"no broker answered at {self._seeds.addresses}", details=str(error)))
            if tries % self._seeds.count == 0:
                await asyncio.sleep(backoff.seconds(error.throttled_ms))
        raise AssertionError("the tries have no end")

    async def _open(self, transport: Transport, *, stay: bool) -> Link:
        link = Link(await transport.session(), transport, self._on_event)
        try:
            hello = self.frame()
            hello.hello.CopyFrom(self.settings.hello(role=self._role, topic=self._topic))
            clock = self.settings.clock
            sent_us, sent = clock.now_us(), clock.monotonic()
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
            self._observe(sent_us, sent, welcome.broker_us)
            if not self.broker_clock.shared:
                for _ in range(FIRST_PINGS):
                    await self._ping(link)
            await self._enter(link, transport)
        except BaseException:
            await link.close()
            raise
        return link

    def _backoff(self) -> Backoff:
        return Backoff(self._seeds.random, deadline=self.settings.deadline)

    def _lose(self, error: DejaqError) -> None:
        self.lost = error
        self._on_lost(error)

    # Pings

    async def _ping_forever(self, link: Link) -> None:
        while True:
            await self.settings.clock.sleep(PING_SECONDS)
            pinging = asyncio.ensure_future(self._ping(link))
            try:
                await asyncio.wait({pinging}, timeout=PONG_SECONDS)
                if not pinging.done():
                    # A loop that was blocked by user code gets a moment to read what has come meanwhile.
                    await asyncio.wait({pinging}, timeout=PONG_SECONDS / 10)
            finally:
                pinging.cancel()
            if not pinging.done() or pinging.cancelled() or pinging.exception() is not None:
                await link.close()
                return

    async def _ping(self, link: Link) -> None:
        clock = self.settings.clock
        frame = self.frame()
        sent_us, sent = clock.now_us(), clock.monotonic()
        frame.ping.client_us = sent_us
        frame.ping.latency_ms = self.broker_clock.latency_us / 1_000
        frame.ping.clock_offset_ms = self.broker_clock.offset_us / 1_000
        pong = (await ask_once(link, frame)).pong
        self._observe(sent_us, sent, pong.broker_us)

    def _observe(self, sent_us: int, sent: float, broker_us: int) -> None:
        round_trip_us = int((self.settings.clock.monotonic() - sent) * 1_000_000)
        self.broker_clock.observe(sent_us=sent_us, broker_us=broker_us, round_trip_us=round_trip_us)
        offset_ms = self.broker_clock.offset_us / 1_000
        drifting = abs(offset_ms) > self.settings.drift_ms_max
        if drifting and not self._drifting and self.settings.on_drift is not None:
            # Not called from here: what it raises is the loop's to tell, and no fault of the session.
            asyncio.get_running_loop().call_soon(self.settings.on_drift, offset_ms)
        self._drifting = drifting

    # Requests

    def frame(self) -> carrier.ClientFrame:
        """An empty frame with a request number of its own."""
        return carrier.ClientFrame(request=next(self._numbers))

    def until(self) -> float:
        """The loop's time at which a request that begins now gives up."""
        return asyncio.get_running_loop().time() + self.settings.deadline

    async def request(self, frame: ClientSent, until: float) -> Answer:
        """Send a request that may be repeated, as often as it takes, until it is answered.

        Raises the broker's refusal; NoBroker when it never left before `until`; Indefinite when it may have been done.
        """
        loop = asyncio.get_running_loop()
        backoff = self._backoff()
        unsure = False
        refusal: DejaqError | None = None
        while True:
            wait = 0.0
            asked = False
            try:
                async with asyncio.timeout_at(until):
                    if (ahead := self._throttled_until - loop.time()) > 0:
                        refusal = error_of(Code.OVERLOADED, throttled_ms=round(ahead * 1_000))
                        await asyncio.sleep(ahead)
                    link = await self._ready()
                    asked = True
                    answer = await link.ask(frame)
                if not answer.HasField("error"):
                    if answer.outcomes.throttled_ms:
                        self._throttled_until = loop.time() + answer.outcomes.throttled_ms / 1_000
                    return Answer(outcomes_from_proto(answer.outcomes, count=0).codes, unsure)
                error = error_from_proto(answer.error)
                if not error.retryable:
                    raise error
                unsure = unsure or error.indefinite
                refusal = error if error.throttled_ms else None
                wait = backoff.seconds(error.throttled_ms)
            except TimeoutError:
                raise self._late(unsure or asked, refusal) from None
            except Indefinite:
                unsure = True
            except Unavailable:
                wait = backoff.seconds()
            if loop.time() + wait >= until:
                raise self._late(unsure, refusal)
            await asyncio.sleep(wait)

    async def _ready(self) -> Link:
        while self._link is None or self._link.leaving.is_set():
            if self._closed is not None:
                raise self._closed
            self._up.clear()
            await self._up.wait()
        return self._link

    def _late(self, unsure: bool, refusal: DejaqError | None = None) -> DejaqError:
        seconds = self.settings.deadline
        if refusal is not None and not unsure:
            return refusal
        if unsure:
            return Indefinite(f"no answer within {seconds:g} s; it may have been done or not")
        return NoBroker(
            f"no broker answered at {self._seeds.addresses} within {seconds:g} s; nothing was sent",
            details=self._trouble,
        )


async def ask_once(link: Link, frame: carrier.ClientFrame) -> carrier.BrokerFrame:
    """One request on one session; raises the broker's error, without another try."""
    answer = await link.ask(frame)
    if answer.HasField("error"):
        raise error_from_proto(answer.error)
    return answer
