"""The time of a broker and its clients in a test: it stands still until the test moves it.

Moving the time by days takes seconds. The clock jumps to shortly before the next time at which something is due (a
message, an occurrence of a schedule, the end of a lease), passes that time in small steps, and jumps again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from dejaq.domain.topic import TopicKind
from dejaq.sdk.times import to_datetime
from dejaq.timekeeper.clock import VirtualClock

if TYPE_CHECKING:
    from dejaq.broker import Broker
    from dejaq.sdk.client import Client

# Small steps begin this long before something is due, because consumers and schedules are served ahead of time.
AHEAD_MS = 1_100
# Jumps grow up to this while nothing is due, so that hidden waits, such as back-offs, end at about their time too.
JUMP_MS_MIN, JUMP_MS_MAX = 1_000, 24 * 3_600_000


class VirtualTime:
    """Reads and moves the time of a test."""

    def __init__(self, clock: VirtualClock, client: Client) -> None:
        self.clock = clock
        self._client = client

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return to_datetime(self.clock.now_ms())

    @property
    def now_ms(self) -> int:
        """The time, in UTC milliseconds."""
        return self.clock.now_ms()

    async def advance(self, duration: float | timedelta) -> None:
        """Move the time by so many seconds; every message that becomes due meanwhile is delivered at its own time.

        Work in other threads may need a moment of real time after that: wait for it with
        `dejaq.testing.waiting.eventually`.
        """
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        target = self.now_ms + round(seconds * 1_000)
        jump = JUMP_MS_MIN
        while (now := self.now_ms) < target:
            due = await self._next_due(now)
            if due is not None and due - now <= AHEAD_MS:
                await self.clock.advance(min(due + 1, target) - now)
                jump = JUMP_MS_MIN
                continue
            stop = min(target, now + jump, target if due is None else due - AHEAD_MS)
            await self.clock.jump(stop - now)
            jump = min(2 * jump, JUMP_MS_MAX)

    async def _next_due(self, now: int) -> int | None:
        """When the next message, schedule or lease needs small steps; None when there is none."""
        times: list[int] = []
        for topic in await self._client.topics():
            if topic.settings.kind is TopicKind.CRON:
                upcoming = [one.next async for one in self._client.cron(topic.name).all() if not one.paused]
                times += [round(at.timestamp() * 1_000) for at in upcoming if at is not None]
            if topic.waiting:
                times.append(await self._first(topic.name, now, "waiting"))
            if topic.processing:
                # Halfway to its end, so that the holder of the lease can extend it.
                times.append(now + max(AHEAD_MS + 1, (await self._first(topic.name, now, "processing") - now) // 2))
        return min((at for at in times if at > now), default=None)

    async def _first(self, topic: str, now: int, status: str) -> int:
        """The earliest time of a message with this status."""
        async for page in self._client.browse(topic, start=now + 1, status=status, page_size=1):
            return page[0].ts
        return 0


@dataclass(frozen=True, slots=True)
class VirtualBroker:
    """A broker in memory, a client of it, and their time."""

    broker: Broker
    client: Client
    time: VirtualTime


@asynccontextmanager
async def virtual_broker(start_ms: int | None = None) -> AsyncIterator[VirtualBroker]:
    """A broker and a client with a time of their own."""
    import dejaq

    clock = VirtualClock() if start_ms is None else VirtualClock(start_ms)
    # While the time stands still, a drain would never end.
    async with dejaq.Broker(clock=clock, drain_ms=0) as broker, dejaq.connect(broker, clock=clock) as client:
        yield VirtualBroker(broker, client, VirtualTime(clock, client))
