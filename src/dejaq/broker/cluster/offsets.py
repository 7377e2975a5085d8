"""How far this broker's clock is from those of the others, and whether it is the one that strays."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import copysign

KEPT = 8
JITTER_MS = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: the other clock less ours, and how long the way there and back took."""

    offset_ms: float
    round_trip_ms: float

    def agrees(self, other: Sample) -> bool:
        """Whether one offset explains both."""
        doubt = (self.round_trip_ms + other.round_trip_ms) / 2 + JITTER_MS
        return abs(self.offset_ms - other.offset_ms) <= doubt

    @property
    def surely_ms(self) -> float:
        """The least that the clocks differ by: the answer may have been given at any moment of the way."""
        return copysign(max(abs(self.offset_ms) - self.round_trip_ms / 2, 0.0), self.offset_ms)


class Offsets:
    """The last samples of each other broker; the quickest of them is the most exact."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}

    def add(self, broker: str, sample: Sample) -> None:
        """Take a measurement; earlier ones that contradict it are of clocks that have jumped since."""
        kept = self._samples.setdefault(broker, deque(maxlen=KEPT))
        for old in [old for old in kept if not old.agrees(sample)]:
            kept.remove(old)
        kept.append(sample)

    def keep(self, brokers: Mapping[str, object]) -> None:
        """Forget everybody but these."""
        for broker in self._samples.keys() - brokers.keys():
            del self._samples[broker]

    def best(self, broker: str) -> Sample | None:
        """The most exact of the last samples."""
        samples = self._samples.get(broker)
        return min(samples, key=lambda sample: sample.round_trip_ms) if samples else None

    def deviation_ms(self, tokens: Mapping[str, int], *, own_token: int) -> float:
        """How far ahead our clock is of the one that counts.

        Of three and more that is the middle one, of two the one of the older broker: so one clock that strays does not
        stop the others.
        """
        clocks = {broker: sample.surely_ms for broker in tokens if (sample := self.best(broker)) is not None}
        if not clocks:
            return 0.0
        if len(clocks) == 1:
            ((broker, offset),) = clocks.items()
            return -offset if tokens[broker] < own_token else 0.0
        ordered = sorted([0.0, *clocks.values()])
        return -ordered[(len(ordered) - 1) // 2]
