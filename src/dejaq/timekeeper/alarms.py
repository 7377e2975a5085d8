"""Many alarms with one timer: the timer waits for the earliest of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from dejaq.timekeeper.clock import Clock

# Entries of alarms that were set again stay in the heap until they are this many times more than the alarms.
_STALE_FACTOR, _STALE_MIN = 4, 1_000
# From so many alarms on, those whose owners may be woken early ring at common times, which are so far apart.
MANY, COMMON_MS = 64, 100


class Alarms:
    """Alarms that share a timer."""

    def __init__(self, clock: Clock, *, phase_ms: int = 0) -> None:
        """Common times are `phase_ms` after multiples of `COMMON_MS`."""
        self._clock = clock
        self._phase_ms = phase_ms
        self._heap: list[tuple[int, int, SharedAlarm]] = []
        self._order = 0
        self._asleep_until_us = 0
        self._task: asyncio.Task[None] | None = None
        # How many alarms there are, set or not.
        self.count = 0
        # How often the timer was started.
        self.starts = 0

    def alarm(self, ring: Callable[[], None]) -> SharedAlarm:
        """A new alarm, which calls `ring` once when the clock reaches the time that was set last."""
        self.count += 1
        return SharedAlarm(self, ring)

    def common(self, at_ms: int, now_ms: int) -> int:
        """A time not after `at_ms`, and after `now_ms` if that is, at which other alarms ring too."""
        if self.count < MANY or at_ms - now_ms <= COMMON_MS:
            return at_ms
        return at_ms - (at_ms - self._phase_ms) % COMMON_MS

    def add(self, alarm: SharedAlarm, at_us: int) -> None:
        """Ring this alarm then, if it is still set to that time."""
        self._order += 1
        heappush(self._heap, (at_us, self._order, alarm))
        if len(self._heap) > _STALE_FACTOR * self.count + _STALE_MIN:
            self._heap = [entry for entry in self._heap if entry[2].target_us == entry[0]]
            heapify(self._heap)
        if self._task is None or self._task.done():
            self._start(at_us)
        elif at_us < self._asleep_until_us:
            self._task.cancel()
            self._start(at_us)

    def _start(self, at_us: int) -> None:
        self.starts += 1
        self._asleep_until_us = at_us
        self._task = asyncio.get_running_loop().create_task(self._run(), name="alarms")

    async def _run(self) -> None:
        while self._heap:
            # An alarm that is set meanwhile is seen by this loop.
            self._asleep_until_us = 0
            at_us, _, alarm = self._heap[0]
            left_us = at_us - self._clock.now_us()
            if alarm.target_us != at_us:
                heappop(self._heap)
            elif left_us <= 0:
                heappop(self._heap)
                alarm.target_us = None
                alarm.ring()
            else:
                self._asleep_until_us = at_us
                await self._clock.sleep(left_us / 1_000_000)


class SharedAlarm:
    """One alarm of many."""

    def __init__(self, alarms: Alarms, ring: Callable[[], None]) -> None:
        self._alarms: Alarms | None = alarms
        self.ring = ring
        self.target_us: int | None = None

    def set(self, at_ms: int) -> None:
        """Ring at `at_ms` and at no other time."""
        if self._alarms is not None and self.target_us != at_ms * 1_000:
            self.target_us = at_ms * 1_000
            self._alarms.add(self, self.target_us)

    def unset(self) -> None:
        """Do not ring."""
        self.target_us = None

    def close(self) -> None:
        """Stop permanently."""
        self.unset()
        if self._alarms is not None:
            self._alarms.count -= 1
            self._alarms = None
