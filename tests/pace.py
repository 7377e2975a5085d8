"""Real time as part of a workload: how long a consumer works on a message, how fast a producer sends, what is late."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

MEASUREMENTS_MAX = 3
TICK_SECONDS = 0.01
Figure = TypeVar("Figure")


async def take_time(seconds: float) -> None:
    """Let real time pass. A test that waits for a result waits on a condition instead of this."""
    await asyncio.sleep(seconds)


async def measured(attempt: Callable[[], Awaitable[Figure]], good: Callable[[Figure], bool]) -> list[Figure]:
    """Measure until a figure is good, a few times at most; the last figure decides.

    A pause of the machine spoils one measurement, and a defect spoils all of them.
    """
    figures: list[Figure] = []
    while len(figures) < MEASUREMENTS_MAX and not (figures and good(figures[-1])):
        figures.append(await attempt())
    return figures


class ResponsiveTime:
    """Counts the time in which the event loop of this test answered: what is late by little of it waited for the
    machine, and not for a broker or a client that runs on this loop.

    Each tick adds at most twice the interval at which the loop is asked, however long the machine paused.
    """

    def __init__(self) -> None:
        # At each tick, the wall clock and the time that was counted.
        self._walls = [time.time()]
        self._counted = [0.0]
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._ticking is not None
        self._ticking.cancel()
        await asyncio.wait((self._ticking,))

    async def _tick(self) -> None:
        while True:
            await take_time(TICK_SECONDS)
            now = time.time()
            self._counted.append(self._counted[-1] + min(now - self._walls[-1], 2 * TICK_SECONDS))
            self._walls.append(now)

    def between(self, start: float, end: float) -> float:
        """The seconds that were counted between two times of the wall clock, of which the last may be now."""
        return self._at(end) - self._at(start)

    def _at(self, wall: float) -> float:
        place = bisect_right(self._walls, wall) - 1
        return self._counted[place] + min(wall - self._walls[place], 2 * TICK_SECONDS) if place >= 0 else 0.0
