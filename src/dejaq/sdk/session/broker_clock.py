"""The client's estimate of the broker's clock.

For a broker on another machine, the estimate is the monotonic time of this machine plus an offset, so that a change of
this machine's wall clock changes nothing. On the same machine, client and broker read one wall clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dejaq.timekeeper.clock import Clock

SAMPLES_KEPT = 16
# How far two clocks may drift apart: by the rates of two oscillators, and while time synchronization corrects one.
DRIFT_PPM = 200
# A clock that is not pinged regularly is compared again when the last comparison is older than this.
FRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One exchange: how far the broker's clock was ahead of our monotonic clock, the uncertainty of that, and its
    duration.
    """

    offset_us: int
    uncertainty_us: int
    round_trip_us: int
    taken_us: int

    def uncertainty_at(self, now_us: int) -> int:
        """The largest error of the offset at `now_us` of our monotonic clock."""
        age_us = max(0, now_us - self.taken_us)
        return self.uncertainty_us - (-age_us * DRIFT_PPM // 1_000_000)

    def agrees_with(self, other: ClockSample) -> bool:
        """Whether one offset can explain both samples, at the time of the later one."""
        now_us = max(self.taken_us, other.taken_us)
        between = abs(self.offset_us - other.offset_us)
        return between <= self.uncertainty_at(now_us) + other.uncertainty_at(now_us)


class BrokerClock:
    """Our own time plus an offset. Its uncertainty is known, and grows with the age of the last exchange."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[ClockSample] = deque(maxlen=SAMPLES_KEPT)
        # The sample with the least uncertainty. All samples age alike, so it stays the best until the next one.
        self._best: ClockSample | None = None
        self._shared = False
        self.latency_us = 0

    @property
    def shared(self) -> bool:
        """Whether client and broker read the same clock."""
        return self._shared

    @property
    def fresh(self) -> bool:
        """Whether the clocks were compared recently, or are the same clock."""
        if self._shared:
            return True
        return self.age_seconds < FRESH_SECONDS

    @property
    def age_seconds(self) -> float:
        """How long ago the clocks were compared last."""
        return (self._monotonic_us() - self._samples[-1].taken_us) / 1_000_000 if self._samples else float("inf")

    def meet(self, identity: str) -> None:
        """Start again with the broker whose clock is `identity`."""
        self._samples.clear()
        self._best = None
        self._shared = identity == self._clock.identity

    def observe(self, *, sent: float, broker_us: int) -> int:
        """Add an exchange that ends now, was sent at `sent` of our monotonic clock and stamped by the broker.

        Returns its duration in microseconds.
        """
        sent_us, now_us = round(sent * 1_000_000), self._monotonic_us()
        round_trip_us = now_us - sent_us
        half = round_trip_us // 2
        sample = ClockSample(
            offset_us=broker_us - (sent_us + half),
            uncertainty_us=half + 1,
            round_trip_us=round_trip_us,
            # The broker read its clock between the two times; the earlier time is the safe choice.
            taken_us=sent_us,
        )
        if self._best is not None and not sample.agrees_with(self._best):
            # The broker's clock was set: earlier samples are no longer valid.
            self._samples.clear()
        self._samples.append(sample)
        self._best = min(self._samples, key=lambda one: one.uncertainty_at(now_us))
        self.latency_us = self._best.round_trip_us
        if self._shared and abs(self._clock.now_us() - now_us - sample.offset_us) > round_trip_us + 1_000:
            # Copies of one virtual machine have the same identity but separate clocks.
            self._shared = False
        return round_trip_us

    def now_us(self) -> int:
        """The best estimate of the broker's UTC microseconds."""
        if self._shared or self._best is None:
            return self._clock.now_us()
        return self._monotonic_us() + self._best.offset_us

    def now_ms(self) -> int:
        """The best estimate of the broker's UTC milliseconds, rounded down."""
        return self.now_us() // 1_000

    @property
    def uncertainty_us(self) -> int:
        """The largest error of the estimate."""
        if self._shared or self._best is None:
            return 0
        return self._best.uncertainty_at(self._monotonic_us())

    @property
    def offset_us(self) -> int:
        """How far the broker's clock is ahead of our wall clock."""
        return self.now_us() - self._clock.now_us() if self._best is not None and not self._shared else 0

    def surely_us(self) -> int:
        """A time that the broker's clock has certainly reached."""
        if self._shared or self._best is None:
            return self._clock.now_us()
        now_us = self._monotonic_us()
        return now_us + self._best.offset_us - self._best.uncertainty_at(now_us)

    def surely_ms(self) -> int:
        """A time that the broker's clock has certainly reached: a message that is due by it may be handed over."""
        return self.surely_us() // 1_000

    @property
    def sure(self) -> SureClock:
        """A clock that shows only times that the broker's clock has certainly reached."""
        return SureClock(self, self._clock)

    def _monotonic_us(self) -> int:
        return round(self._clock.monotonic() * 1_000_000)


class SureClock:
    """The earliest possible time of the broker's clock: an alarm that uses it never rings too soon."""

    def __init__(self, broker_clock: BrokerClock, clock: Clock) -> None:
        self._broker_clock = broker_clock
        self._clock = clock

    @property
    def identity(self) -> str:
        """The identity of the underlying clock."""
        return self._clock.identity

    def now_us(self) -> int:
        """UTC microseconds."""
        return self._broker_clock.surely_us()

    def now_ms(self) -> int:
        """UTC milliseconds, rounded down."""
        return self.now_us() // 1_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        await self._clock.sleep(seconds)
