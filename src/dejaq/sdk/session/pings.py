"""The pings of a session: they compare its clock with the broker's, and show the broker newer credentials in time.

A session over WebSocket sends them seldom while it is idle, or when client and broker read the same clock: there the
connection finds out by itself, for all of its sessions together, when the broker is silent. Over every other channel
the pings find that out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dejaq.errors import DejaqError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.session.link import Link, ask_once
from dejaq.sdk.session.settings import ClientSettings
from dejaq.security.credentials import BearerSource

log = logging.getLogger(__name__)

PING_SECONDS = 3.0
# By how much longer the intervals of an idle session are: the clocks are compared again when a message comes.
IDLE_FACTOR = 40
PONG_SECONDS = 10.0
COMMON_SECONDS = 0.05


class Pings:
    """Pings one session after the other."""

    def __init__(
        self,
        settings: ClientSettings,
        broker_clock: BrokerClock,
        credentials: BearerSource | None,
        frame: Callable[[], carrier.ClientFrame],
    ) -> None:
        self._settings = settings
        self._broker_clock = broker_clock
        self._credentials = credentials
        self._frame = frame
        # The credentials that the session was shown last.
        self._bearer = ""
        self._drifting = False
        self._hurry = asyncio.Event()

    async def begin(self) -> None:
        """A new session begins with the credentials of now."""
        if self._credentials is not None:
            self._bearer = await self._credentials.current()

    async def run(self, link: Link) -> None:
        """Ping a session until it ends; end it when the broker does not answer."""
        intervals, frames = 0, link.frames
        while True:
            await self._rest()
            await self._renew_credentials(link)
            intervals += 1
            idle = self._broker_clock.shared or link.frames == frames
            if link.is_watched and idle and intervals < IDLE_FACTOR and not self._hurry.is_set():
                continue
            self._hurry.clear()
            if not await self._is_answered(link):
                await link.close()
                return
            intervals, frames = 0, link.frames

    async def _rest(self) -> None:
        """Wait for the next interval, or until the clock is needed."""
        clock = self._settings.clock
        # The sessions of all clients of a machine ping at common times, so that a broker wakes up less often.
        resting = asyncio.ensure_future(clock.sleep(PING_SECONDS - clock.monotonic() % COMMON_SECONDS))
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait({resting, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            resting.cancel()
            hurried.cancel()

    def hurry(self) -> None:
        """Ping soon, when the last comparison of the clocks is old: a message has come whose time matters now."""
        if self._broker_clock.age_seconds > 2 * PING_SECONDS:
            self._hurry.set()

    async def _is_answered(self, link: Link) -> bool:
        pinging = asyncio.ensure_future(self.ping(link))
        try:
            await asyncio.wait({pinging}, timeout=PONG_SECONDS)
            if not pinging.done():
                # After user code blocked the loop, the loop gets a moment to read the frames that arrived meanwhile.
                await asyncio.wait({pinging}, timeout=PONG_SECONDS / 10)
        finally:
            pinging.cancel()
        return pinging.done() and not pinging.cancelled() and pinging.exception() is None

    async def _renew_credentials(self, link: Link) -> None:
        """Show the broker newer credentials before those of the session expire."""
        source = self._credentials
        if source is None:
            return
        try:
            bearer = await source.current()
            if bearer != self._bearer:
                frame = self._frame()
                frame.renew.bearer = self._bearer = bearer
                await ask_once(link, frame)
        except DejaqError as error:
            log.warning("the credentials of a session were not renewed: %s", error)
            source.invalidate()
        except Exception:
            log.exception("the function for the token failed; the session ends when its token expires")

    async def ping(self, link: Link) -> None:
        """Compare the clocks once; raises a DejaqError when the session breaks."""
        clock = self._settings.clock
        frame = self._frame()
        frame.ping.client_us = clock.now_us()
        frame.ping.latency_ms = self._broker_clock.latency_us / 1_000
        frame.ping.clock_offset_ms = self._broker_clock.offset_us / 1_000
        sent = clock.monotonic()
        pong = (await ask_once(link, frame)).pong
        self.observe(sent, pong.broker_us)

    def observe(self, sent: float, broker_us: int) -> None:
        """Take the broker's time, in the answer to a frame that was sent at `sent` of our monotonic clock."""
        self._broker_clock.observe(sent=sent, broker_us=broker_us)
        offset_ms = self._broker_clock.offset_us / 1_000
        drifting = abs(offset_ms) > self._settings.drift_ms_max
        if drifting and not self._drifting and self._settings.on_drift is not None:
            # Called by the event loop, which reports its errors: they are not errors of the session.
            asyncio.get_running_loop().call_soon(self._settings.on_drift, offset_ms)
        self._drifting = drifting
