"""The deviation of the wall clock from the monotonic clock: a jump changes the time of every message."""

from __future__ import annotations

from dejaq.timekeeper.clock import Clock

# A pause of the process between two readings would look like a change of the clock, so they are read again.
READINGS_MAX = 5
PAUSE_SECONDS = 0.0002


class DriftMeter:
    """Compares wall time with monotonic time since it was made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin_ms = self.gap_ms()
        self._last_ms = self._origin_ms

    def gap_ms(self) -> float:
        """Wall time less monotonic time: it moves only when the wall clock is set."""
        for _ in range(READINGS_MAX):
            before, wall_us, after = self._clock.monotonic(), self._clock.now_us(), self._clock.monotonic()
            if after - before < PAUSE_SECONDS:
                break
        return wall_us / 1_000 - (before + after) * 500

    def drift_ms(self) -> float:
        """How far the wall clock has moved against the monotonic one since the start; forward is positive."""
        return self.gap_ms() - self._origin_ms

    def jump_ms(self) -> float:
        """How far it has moved since the last call."""
        gap = self.gap_ms()
        jump, self._last_ms = gap - self._last_ms, gap
        return jump
