"""The clocks of another machine, whose wall clock is wrong."""

from __future__ import annotations

from dejaq.timekeeper.clock import VirtualClock


class SkewedClock:
    """Reads `skew_ms` more than `clock` and advances with it; its monotonic clock stopped for `slept_s`."""

    identity = "another machine"

    def __init__(self, clock: VirtualClock, skew_ms: int) -> None:
        self._clock = clock
        self.skew_ms = skew_ms
        self.slept_s = 0.0

    def now_us(self) -> int:
        return self._clock.now_us() + self.skew_ms * 1_000

    def now_ms(self) -> int:
        return self.now_us() // 1_000

    def monotonic(self) -> float:
        return self._clock.monotonic() - self.slept_s

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
