"""How many messages will be created in the coming hours: a forecast from hourly counts, with its measured error.

The method is chosen for each topic by a back-test: at several past hours, each method sees only what was known then,
and is compared with what came. Two of the methods are naive and serve as a measure: the last hour again, and the same
hour of the day before again. The residuals of the chosen method give the interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]

DAY = 24
# Of the past, so much is used; longer ago says little of tomorrow.
HISTORY_HOURS_MAX = 28 * DAY
# With less history there is nothing to test a method with.
HISTORY_HOURS_MIN = 12
ORIGINS_MAX = 40
# The interval is meant to contain this share of the hours.
COVERAGE = 0.9
# Newer days count more: the weight of a day is that of the day after it, times this.
_FADING = 0.6
# A trend does not continue without end: each further day grows by this share of the growth of the day before.
_DAMPING = 0.8
# Residuals grow with the expected count, a little less than in proportion.
_SPREAD = 0.75


@dataclass(frozen=True, slots=True)
class ArrivalsForecast:
    """The coming hours of one topic, and how large the errors of the same method were in the past."""

    expected: Counts
    low: Counts
    high: Counts
    method: str
    # The sum of the absolute errors by the sum of the counts, for each method; empty without a back-test.
    errors: Mapping[str, float]
    # The number of past hours that were forecast in the back-test, and the share of them within the interval.
    tested: int
    covered: float


def forecast_arrivals(counts: Counts, hours: int) -> ArrivalsForecast:
    """Forecast the hours that follow on those counted, which are whole hours in their order, without a gap."""
    past = np.asarray(counts, dtype=np.float64)[-HISTORY_HOURS_MAX:]
    origins = _origins(len(past), hours)
    if not origins:
        level = METHODS["mean of a day"](past, hours)
        return ArrivalsForecast(level, np.zeros(hours), np.full(hours, np.inf), "mean of a day", {}, 0, 0.0)
    actual = np.concatenate([past[origin : origin + hours] for origin in origins])
    predicted = {
        name: np.concatenate([method(past[:origin], hours)[: len(past) - origin] for origin in origins])
        for name, method in METHODS.items()
    }
    total = max(float(actual.sum()), 1.0)
    errors = {name: float(np.abs(actual - values).sum()) / total for name, values in predicted.items()}
    chosen = min(errors, key=lambda name: errors[name])
    scaled = (actual - predicted[chosen]) / _scale(predicted[chosen])
    low_z, high_z = np.quantile(scaled, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    expected = METHODS[chosen](past, hours)
    low, high = (np.maximum(expected + z * _scale(expected), 0.0) for z in (low_z, high_z))
    covered = float(np.mean((scaled >= low_z) & (scaled <= high_z)))
    return ArrivalsForecast(expected, low, high, chosen, errors, len(actual), covered)


def _origins(length: int, hours: int) -> list[int]:
    """The past hours from which the back-test forecasts: in the newer half, where there is enough before them."""
    if length < HISTORY_HOURS_MIN:
        return []
    first, last = max(length // 2, HISTORY_HOURS_MIN // 2), max(length - hours, length // 2 + 1)
    return sorted({int(origin) for origin in np.linspace(first, min(last, length - 1), ORIGINS_MAX)})


def _scale(expected: Counts) -> Counts:
    return np.asarray(np.power(expected + 1.0, _SPREAD))


# The methods: from counts of the past, the counts of the coming hours.


def last_hour(past: Counts, hours: int) -> Counts:
    """The last hour again and again."""
    return np.full(hours, past[-1])


def day_before(past: Counts, hours: int) -> Counts:
    """The same hour of the last day that is known."""
    if len(past) < DAY:
        return last_hour(past, hours)
    return np.resize(past[-DAY:], hours)


def mean_of_a_day(past: Counts, hours: int) -> Counts:
    """The mean of the last day."""
    return np.full(hours, past[-DAY:].mean())


def median_of_a_week(past: Counts, hours: int) -> Counts:
    """The median hour of the last week: what comes most of the time, where bursts come at random."""
    return np.full(hours, np.median(past[-7 * DAY :]))


def shape_of_days(past: Counts, hours: int) -> Counts:
    """The usual shape of a day, times the totals of the coming days: their level, their trend, and their weekday."""
    days = len(past) // DAY
    if days < 2:
        return day_before(past, hours)
    # Days that end now, so that the coming hours begin one.
    by_day = past[len(past) - days * DAY :].reshape(days, DAY)
    totals = by_day.sum(axis=1)
    weights = _FADING ** np.arange(days - 1, -1, -1)
    shape = np.average(by_day, axis=0, weights=weights)
    shape = shape / shape.sum() if shape.sum() else np.full(DAY, 1 / DAY)
    factors = _weekdays(totals)
    level_totals = totals / factors[np.arange(days) % 7]
    level = float(np.average(level_totals, weights=weights))
    # The level is that of the days on average, which are so many days old.
    age = float(np.average(np.arange(days - 1, -1, -1), weights=weights))
    trend = _trend(level_totals)
    found = np.empty(-(-hours // DAY) * DAY)
    for ahead in range(len(found) // DAY):
        growth = sum(_DAMPING**step for step in range(ahead + 1))
        total = max(level + trend * (age + growth), 0.0) * factors[(days + ahead) % 7]
        found[ahead * DAY : (ahead + 1) * DAY] = shape * total
    return found[:hours]


def _weekdays(totals: Counts) -> Counts:
    """How each day of the week compares with the mean; ones with less than two weeks."""
    if len(totals) < 14 or not totals.sum():
        return np.ones(7)
    # Compared with the line through all days, so that growth is not taken for a weekday.
    days = np.arange(len(totals))
    line = np.maximum(np.polyval(np.polyfit(days, totals, 1), days), totals.mean() / 10)
    found = np.array([(totals / line)[weekday::7].mean() for weekday in range(7)])
    return np.asarray(np.maximum(found, 0.05), dtype=np.float64)


def _trend(totals: Counts) -> float:
    """By how much a day's total grows, from the newest week; 0 where days go up and down without a direction."""
    recent = totals[-7:]
    if len(recent) < 3:
        return 0.0
    slope, start = np.polyfit(np.arange(len(recent)), recent, 1)
    spread = float(np.std(recent - (slope * np.arange(len(recent)) + start)))
    return float(slope) if abs(slope) * len(recent) > 2 * spread else 0.0


class ArrivalsMethod(Protocol):
    """From counts of the past, the counts of the coming hours."""

    def __call__(self, past: Counts, hours: int) -> Counts:
        """Forecast."""


NAIVE = ("last hour", "day before")
METHODS: Mapping[str, ArrivalsMethod] = {
    "last hour": last_hour,
    "day before": day_before,
    "mean of a day": mean_of_a_day,
    "median of a week": median_of_a_week,
    "shape of days": shape_of_days,
}
