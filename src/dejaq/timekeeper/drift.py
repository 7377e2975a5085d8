"""The deviation of the wall clock from the monotonic clock: a jump changes the time of every message."""

from __future__ import annotations

from dejaq.timekeeper.clock import Clock


class DriftMeter:
    """Compares wall time with monotonic time since it was made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin_ms = self.gap_ms()
        self._last_ms = self._origin_ms

    def gap_ms(self) -> float:
        """Wall time less monotonic time: it moves only when the wall clock is set."""
        return self._clock.now_us() / 1_000 - self._clock.monotonic() * 1_000

    def drift_ms(self) -> float:
        """How far the wall clock has moved against the monotonic one since the start; forward is positive."""
        return self.gap_ms() - self._origin_ms

    def jump_ms(self) -> float:
        """How far it has moved since the last call."""
        gap = self.gap_ms()
        jump, self._last_ms = gap - self._last_ms, gap
        return jump
