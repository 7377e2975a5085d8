"""Memory slopes."""

from __future__ import annotations

import pytest
from bench.harness.figures import slope, us_each
from bench.harness.growth import growth_figures


def test_the_slope_is_that_of_the_line_with_the_least_squares() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2.0)
    assert slope([(0, 0), (1, 3), (2, 0)]) == pytest.approx(0.0)


def test_there_is_no_slope_without_three_points_or_without_a_width() -> None:
    assert slope([(0, 1), (1, 2)]) is None
    assert slope([(1, 1), (1, 2), (1, 3)]) is None


def test_the_first_tenth_does_not_count() -> None:
    warm_up = [(0, 10.0, 5.0), (90_000, 100.0, 50.0)]
    flat = [(messages, 100.0, 50.0) for messages in range(100_000, 1_000_001, 100_000)]
    figures = growth_figures(warm_up + flat)
    assert (figures["rss_slope_mb_per_million"], figures["rss_growth_percent"]) == (0.0, 0.0)
    assert figures["rss_start_mb"] == 100.0


def test_growth_is_in_relation_to_the_memory_after_the_first_tenth() -> None:
    samples = [(messages, 100.0 + messages / 100_000, 50.0) for messages in range(0, 1_000_001, 100_000)]
    figures = growth_figures(samples)
    assert figures["rss_slope_mb_per_million"] == pytest.approx(10.0)
    assert figures["rss_growth_percent"] == pytest.approx(100 * 9 / 101, abs=0.01)
    assert figures["client_slope_mb_per_million"] == 0.0


def test_without_samples_there_are_no_figures() -> None:
    assert growth_figures([]) == {}


def test_cpu_is_in_microseconds_per_message() -> None:
    assert (us_each(2.0, 1_000_000), us_each(1.0, 0)) == (2.0, 0.0)
