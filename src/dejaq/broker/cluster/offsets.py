"""How far this broker's clock is from the clocks of the other brokers, and whether this clock is the wrong one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import copysign

KEPT = 8
JITTER_MS = 5.0


@dataclass(frozen=True, slots=True)
class OffsetSample:
    """One measurement: the other clock less this one, and the round-trip time of the call."""

    offset_ms: float
    round_trip_ms: float

    def agrees(self, other: OffsetSample) -> bool:
        """Whether one offset explains both."""
        doubt = (self.round_trip_ms + other.round_trip_ms) / 2 + JITTER_MS
        return abs(self.offset_ms - other.offset_ms) <= doubt

    @property
    def surely_ms(self) -> float:
        """The least difference of the clocks: the answer may have been written at any moment of the round trip."""
        return copysign(max(abs(self.offset_ms) - self.round_trip_ms / 2, 0.0), self.offset_ms)


class Offsets:
    """The last samples of each other broker; the sample with the shortest round trip is the most exact."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[OffsetSample]] = {}

    def add(self, broker: str, sample: OffsetSample) -> None:
        """Add a measurement; earlier ones that contradict it were made before a clock jumped, and are dropped."""
        kept = self._samples.setdefault(broker, deque(maxlen=KEPT))
        for old in [old for old in kept if not old.agrees(sample)]:
            kept.remove(old)
        kept.append(sample)

    def keep(self, brokers: Mapping[str, object]) -> None:
        """Forget every other broker."""
        for broker in self._samples.keys() - brokers.keys():
            del self._samples[broker]

    def best(self, broker: str) -> OffsetSample | None:
        """The sample with the shortest round trip."""
        samples = self._samples.get(broker)
        return min(samples, key=lambda sample: sample.round_trip_ms) if samples else None

    def deviation_ms(self, tokens: Mapping[str, int], *, own_token: int) -> float:
        """How far this clock is ahead of the reference clock.

        Of three and more clocks the reference is the median, of two the clock of the older broker: so one wrong clock
        does not stop the others.
        """
        clocks = {broker: sample.surely_ms for broker in tokens if (sample := self.best(broker)) is not None}
        if not clocks:
            return 0.0
        if len(clocks) == 1:
            ((broker, offset),) = clocks.items()
            return -offset if tokens[broker] < own_token else 0.0
        ordered = sorted([0.0, *clocks.values()])
        return -ordered[(len(ordered) - 1) // 2]
