"""The gap between the wall clock and the monotonic clock."""

from __future__ import annotations

import pytest

from dejaq.timekeeper.clock import SystemClock
from dejaq.timekeeper.drift import DriftMeter


class PausedClock(SystemClock):
    """A clock of a process that the machine pauses for 20 ms within some readings of the wall clock."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.seconds = 1_000.0
        self.pauses = pauses

    def now_us(self) -> int:
        now = round(self.seconds * 1_000_000)
        if self.pauses:
            self.pauses -= 1
            self.seconds += 0.02
        return now

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize("pauses", [0, 1, 3])
def test_a_pause_between_two_readings_is_no_change_of_the_clock(pauses: int) -> None:
    clock = PausedClock(0)
    meter = DriftMeter(clock)
    clock.pauses = pauses
    assert meter.drift_ms() == pytest.approx(0, abs=0.001)


def test_a_machine_that_pauses_at_every_reading_gets_an_answer() -> None:
    clock = PausedClock(0)
    meter = DriftMeter(clock)
    clock.pauses = 1_000
    assert abs(meter.drift_ms()) == pytest.approx(10, abs=0.001)
