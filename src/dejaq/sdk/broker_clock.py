"""The broker's clock as seen from here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dejaq.timekeeper.clock import Clock

SAMPLES_KEPT = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One exchange: how far the broker's clock is ahead of ours, give or take, and how long it took."""

    offset_us: int
    uncertainty_us: int
    round_trip_us: int

    def agrees_with(self, other: Sample) -> bool:
        """Whether one offset can explain both."""
        return abs(self.offset_us - other.offset_us) <= self.uncertainty_us + other.uncertainty_us


class BrokerClock:
    """Own time plus an offset that is known within an uncertainty; both are 0 on one and the same clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._shared = False
        self.offset_us = 0
        self.uncertainty_us = 0
        self.latency_us = 0

    @property
    def shared(self) -> bool:
        """Whether the broker reads the very clock we read."""
        return self._shared

    def meet(self, identity: str) -> None:
        """Begin anew with the broker whose clock is `identity`."""
        self._samples.clear()
        self._shared = identity == self._clock.identity
        self.offset_us = self.uncertainty_us = 0

    def observe(self, *, sent_us: int, broker_us: int, round_trip_us: int) -> None:
        """Take in one exchange, sent at `sent_us` of our clock and stamped `broker_us` by the broker."""
        half = round_trip_us // 2
        sample = Sample(offset_us=broker_us - (sent_us + half), uncertainty_us=half + 1, round_trip_us=round_trip_us)
        if self._samples and not sample.agrees_with(min(self._samples, key=_uncertainty)):
            # One of the two clocks was set: what was measured before no longer holds.
            self._samples.clear()
        self._samples.append(sample)
        best = min(self._samples, key=_uncertainty)
        self.latency_us = best.round_trip_us
        if not self._shared:
            self.offset_us, self.uncertainty_us = best.offset_us, best.uncertainty_us

    def now_us(self) -> int:
        """The best estimate of the broker's UTC microseconds."""
        return self._clock.now_us() + self.offset_us

    def now_ms(self) -> int:
        """The best estimate of the broker's UTC milliseconds, rounded down."""
        return self.now_us() // 1_000

    def surely_ms(self) -> int:
        """A time that the broker's clock has certainly reached: what is due by it may be handed over."""
        return (self.now_us() - self.uncertainty_us) // 1_000

    @property
    def sure(self) -> SureClock:
        """A clock that has only reached what the broker's clock has certainly reached."""
        return SureClock(self, self._clock)


class SureClock:
    """The earliest the broker's clock can be: an alarm by it never rings too soon."""

    def __init__(self, broker_clock: BrokerClock, clock: Clock) -> None:
        self._broker_clock = broker_clock
        self._clock = clock

    @property
    def identity(self) -> str:
        """Of the clock behind it."""
        return self._clock.identity

    def now_us(self) -> int:
        """UTC microseconds."""
        return self._broker_clock.now_us() - self._broker_clock.uncertainty_us

    def now_ms(self) -> int:
        """UTC milliseconds, rounded down."""
        return self.now_us() // 1_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._clock.sleep(seconds)


def _uncertainty(sample: Sample) -> int:
    return sample.uncertainty_us
