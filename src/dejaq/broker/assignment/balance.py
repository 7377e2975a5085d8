"""Computes the share of each consumer from its measured pace: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The most that a share grows or shrinks from where it started.
FACTOR_MAX = 16
# How far a share goes towards what it should be in one step, and back to its start when there is no need.
STEP = 0.5
RELAX = 0.125
# Of what one that lags settles, how much it is given while others have room.
SPARE = 0.9


@dataclass(frozen=True, slots=True)
class PaceReading:
    """One consumer now: the weight it started with and has, messages settled a second, and whether it lags behind."""

    name: str
    start: int
    weight: float
    rate: float
    lagging: bool
    busy: bool = False


def weigh(readings: Sequence[PaceReading]) -> dict[str, float]:
    """The next weights: a consumer that lags gets as much as it settles, the others get the rest.

    When no consumer lags, all weights return slowly to the weights they started with.
    """
    held_back = [reading for reading in readings if reading.lagging or reading.busy]
    rates = sum(reading.rate for reading in readings)
    if not held_back or not rates:
        return {r.name: r.weight + (r.start - r.weight) * RELAX for r in readings}
    total = sum(reading.start for reading in readings)
    free = [reading for reading in readings if not (reading.lagging or reading.busy)]
    targets = {r.name: total * r.rate / rates * (SPARE if free else 1.0) * (0.5 if r.busy else 1.0) for r in held_back}
    rest = max(total - sum(targets.values()), 0.0)
    had = sum(reading.weight for reading in free)
    targets.update({r.name: rest * r.weight / had for r in free})
    return {r.name: _stepped(r, targets[r.name]) for r in readings}


def _stepped(reading: PaceReading, target: float) -> float:
    weight = reading.weight + (target - reading.weight) * STEP
    return min(max(weight, reading.start / FACTOR_MAX), float(reading.start * FACTOR_MAX))
