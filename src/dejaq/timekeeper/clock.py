"""The only source of time. It is passed in everywhere, so that tests run on a virtual one."""

from __future__ import annotations

import asyncio
import heapq
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """UTC wall time and a monotonic time, and a way to wait for them."""

    @property
    def identity(self) -> str:
        """Equal for two parties that read one and the same clock, so that no offset lies between them."""

    def now_us(self) -> int:
        """UTC microseconds."""

    def now_ms(self) -> int:
        """UTC milliseconds, rounded down: a message is due when this reaches its ts."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait on this clock."""


class SystemClock:
    """The operating system's clocks."""

    def __init__(self) -> None:
        boot = Path("/proc/sys/kernel/random/boot_id")
        # Processes of one booted kernel read one clock; without the file nobody shares ours.
        self.identity = boot.read_text().strip() if boot.exists() else f"unshared-{id(self)}-{time.time_ns()}"

    def now_us(self) -> int:
        """UTC microseconds."""
        return time.time_ns() // 1_000

    def now_ms(self) -> int:
        """UTC milliseconds, rounded down."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class VirtualClock:
    """A clock that moves only by a call, which wakes the tasks whose time has come."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.identity = f"virtual-{id(self)}"
        self._us = start_ms * 1_000
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = 0

    def now_us(self) -> int:
        """UTC microseconds."""
        return self._us

    def now_ms(self) -> int:
        """UTC milliseconds."""
        return self._us // 1_000

    def monotonic(self) -> float:
        """Seconds since the epoch of this clock."""
        return self._us / 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the clock that far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._order += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._us + int(seconds * 1_000_000), self._order, future))
        await future

    async def advance(self, milliseconds: float) -> None:
        """Move the clock, waking sleepers in order and letting each run at its own time."""
        # Who was started but has not run yet may be about to sleep.
        await _settle()
        target = self._us + int(milliseconds * 1_000)
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._us = max(self._us, due)
            if not future.done():
                future.set_result(None)
            await _settle()
        self._us = target
        await _settle()

    async def jump(self, milliseconds: float) -> None:
        """Move the clock in one step, as if the process had been suspended: what is due wakes once, at the end."""
        await _settle()
        self._us += int(milliseconds * 1_000)
        while self._sleepers and self._sleepers[0][0] <= self._us:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
        await _settle()


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
