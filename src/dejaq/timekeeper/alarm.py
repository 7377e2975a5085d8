"""One timer that can be moved: a part that waits for the earliest of many times needs only one of these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dejaq.timekeeper.clock import Clock

T = TypeVar("T")


class Alarm:
    """Calls `ring` once when the clock reaches the time that was set last."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._target_us: int | None = None
        self._asleep_until_us = 0
        self._task: asyncio.Task[None] | None = None

    def set(self, at_ms: int) -> None:
        """Ring at `at_ms` and at no other time."""
        self._target_us = at_ms * 1_000
        if self._task is not None and not self._task.done():
            # A sleeper that wakes before the new time looks again; one that would wake after it must go.
            if self._asleep_until_us <= self._target_us:
                return
            self._task.cancel()
        self._asleep_until_us = self._target_us
        self._task = asyncio.get_running_loop().create_task(self._sleep())

    def unset(self) -> None:
        """Do not ring."""
        self._target_us = None

    def close(self) -> None:
        """Stop permanently."""
        self._target_us = None
        if self._task is not None:
            self._task.cancel()

    async def _sleep(self) -> None:
        while self._target_us is not None:
            left_us = self._target_us - self._clock.now_us()
            if left_us <= 0:
                self._target_us = None
                self._ring()
                return
            self._asleep_until_us = self._target_us
            await self._clock.sleep(left_us / 1_000_000)


async def within(clock: Clock, seconds: float, future: asyncio.Future[T]) -> T | None:
    """The future's result, or None when the clock passes `seconds` first; the future is not cancelled."""
    sleep = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((future, sleep), return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleep.cancel()
    return future.result() if future.done() and not future.cancelled() else None
