"""Real time as part of a workload: how long a consumer works on a message, how fast a producer sends, what is late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

MEASUREMENTS_MAX = 3
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
