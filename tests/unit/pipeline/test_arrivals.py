"""The forecast of arrivals is at least as good as naive ones on traffic it has not seen, and its interval holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

import numpy as np

from dejaq.pipeline.jobs.arrivals import (
    COVERAGE,
    HISTORY_HOURS_MIN,
    METHODS,
    NAIVE,
    Counts,
    forecast_arrivals,
)
from dejaq.pipeline.reporting.arrivals import error_row
from dejaq.pipeline.reporting.findings import Findings
from dejaq.pipeline.reporting.report import page

HOURS, DAYS, TESTED = 24, 21, 10


def seasonal(hour: Counts) -> Counts:
    return np.asarray(500 + 400 * np.sin(2 * np.pi * (hour % 24) / 24), dtype=np.float64)


def growing(hour: Counts) -> Counts:
    return np.asarray((200 + 150 * np.sin(2 * np.pi * (hour % 24) / 24)) * (1 + hour / 200), dtype=np.float64)


def weekly(hour: Counts) -> Counts:
    weekend = (hour // 24) % 7 >= 5
    return np.asarray(seasonal(hour) * np.where(weekend, 0.3, 1.0), dtype=np.float64)


def bursty(hour: Counts) -> Counts:
    rng = np.random.default_rng(5)
    bursts = np.where(rng.random(len(hour)) < 0.05, rng.exponential(3_000, len(hour)), 0)
    return np.asarray(100 + bursts, dtype=np.float64)


Shape = Callable[[Counts], Counts]


def history(shape: Shape, seed: int) -> Counts:
    hours = np.arange((DAYS + TESTED) * 24, dtype=np.float64)
    return np.asarray(np.random.default_rng(seed).poisson(shape(hours)), dtype=np.float64)


def errors_of(shape: Shape, forecast: Callable[[Counts], Counts]) -> float:
    """The error over days that no forecast has seen: each is made at a later day, with all that was known then."""
    wrong = total = 0.0
    for seed in range(3):
        counts = history(shape, seed)
        for day in range(DAYS, DAYS + TESTED):
            actual = counts[day * 24 : day * 24 + HOURS]
            wrong += float(np.abs(actual - forecast(counts[: day * 24])).sum())
            total += float(actual.sum())
    return wrong / total


def ours(past: Counts) -> Counts:
    return forecast_arrivals(past, HOURS).expected


@pytest.mark.parametrize(
    ("shape", "share"),
    [(seasonal, 0.85), (growing, 0.85), (weekly, 0.6), (bursty, 1.02)],
    ids=["seasonal", "growing", "weekly", "bursty"],
)
def test_the_error_is_below_that_of_both_naive_forecasts(shape: Shape, share: float) -> None:
    """Of bursts that come at random nothing can be known; there it must not be worse."""
    best_naive = min(errors_of(shape, partial(METHODS[name], hours=HOURS)) for name in NAIVE)
    assert errors_of(shape, ours) <= share * best_naive


@pytest.mark.parametrize("shape", [seasonal, growing, bursty])
def test_about_the_promised_share_of_unseen_hours_is_within_the_interval(shape: Shape) -> None:
    inside = total = 0
    for seed in range(3):
        counts = history(shape, seed)
        for day in range(DAYS, DAYS + TESTED):
            found = forecast_arrivals(counts[: day * 24], HOURS)
            actual = counts[day * 24 : day * 24 + HOURS]
            inside += int(((actual >= found.low) & (actual <= found.high)).sum())
            total += HOURS
    assert COVERAGE - 0.1 <= inside / total <= 1.0


def test_the_reported_error_is_that_of_the_back_test() -> None:
    found = forecast_arrivals(history(seasonal, 1), HOURS)
    assert found.errors[found.method] == min(found.errors.values())
    assert found.errors[found.method] == pytest.approx(errors_of(seasonal, ours), rel=0.3)
    assert found.tested > 200
    assert found.covered == pytest.approx(COVERAGE, abs=0.02)


def _drawn() -> Any:
    raise AssertionError("the report draws no picture")


@pytest.mark.parametrize("shape", [seasonal, growing, bursty])
def test_the_report_shows_the_error_beside_those_of_both_naive_forecasts(shape: Shape) -> None:
    found = forecast_arrivals(history(shape, 1), HOURS)
    tables: dict[str, list[dict[str, object]]] = {
        "arrival_errors": [error_row("mail", found)],
        "minutes": [],
        "arrivals": [],
    }
    text = page([Findings("forecast", tables, {}, _drawn)], lake="lake", made_ms=0, newest_ms=None)
    assert f'["{found.method}"]' in text
    for method in (found.method, *NAIVE):
        assert f'["{found.errors[method]:.1%}",{found.errors[method]}]' in text


@pytest.mark.parametrize("length", [1, 2, HISTORY_HOURS_MIN - 1])
def test_without_enough_history_the_interval_says_that_nothing_is_known(length: int) -> None:
    found = forecast_arrivals(np.full(length, 7.0), 3)
    assert (found.tested, dict(found.errors)) == (0, {})
    assert found.expected.tolist() == [7.0] * 3
    assert (found.low.tolist(), found.high.tolist()) == ([0.0] * 3, [np.inf] * 3)


@pytest.mark.parametrize("length", [HISTORY_HOURS_MIN, 23, 24, 25, 47, 48, 49, 335, 336, 337, 1_000])
@pytest.mark.parametrize("hours", [1, 24, 168])
def test_any_length_of_history_gives_a_forecast(length: int, hours: int) -> None:
    found = forecast_arrivals(np.random.default_rng(length).poisson(20, length).astype(float), hours)
    assert len(found.expected) == len(found.low) == len(found.high) == hours
    assert (found.low <= found.expected).all() or found.tested
    assert np.isfinite(found.expected).all()
    assert (found.low >= 0).all()
    assert found.tested > 0


def test_silence_is_forecast_as_silence() -> None:
    found = forecast_arrivals(np.zeros(100), 24)
    assert found.expected.tolist() == [0.0] * 24
