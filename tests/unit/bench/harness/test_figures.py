from __future__ import annotations

import pytest
from bench.harness.figures import curve, lateness_figures, medians, per_second, percentile


def test_a_percentile_is_a_sample_that_this_share_does_not_exceed() -> None:
    ordered = list(range(1, 1_001))
    assert [percentile(ordered, share) for share in (0.0, 0.5, 0.99, 0.999, 1.0)] == [1, 500, 990, 999, 1_000]


def test_a_percentile_of_no_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_lateness_is_given_in_milliseconds_whatever_the_order_of_samples() -> None:
    assert lateness_figures([3_000, 1_000, 2_000]) == {
        "lateness_p50_ms": 2.0,
        "lateness_p99_ms": 3.0,
        "lateness_p999_ms": 3.0,
        "lateness_max_ms": 3.0,
    }


def test_lateness_without_samples_is_unknown_and_not_zero() -> None:
    assert set(lateness_figures([], "floor").values()) == {None}


def test_a_cumulative_curve_rises_to_one() -> None:
    assert curve([4_000, 1_000, 3_000, 2_000], points=4) == [(1.0, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0)]


def test_repeats_give_the_median_and_the_range() -> None:
    figures, spread = medians([{"create_per_s": 10.0}, {"create_per_s": 30.0}, {"create_per_s": 20.0}])
    assert figures == {"create_per_s": 20.0}
    assert spread == {"create_per_s": [10.0, 30.0]}


@pytest.mark.parametrize("promise", ["early", "undelivered"])
def test_one_broken_guarantee_is_not_averaged_away(promise: str) -> None:
    figures, _ = medians([{promise: 0}, {promise: 0}, {promise: 1}])
    assert figures == {promise: 1}


def test_a_figure_that_one_repeat_lacks_is_taken_from_the_others() -> None:
    assert medians([{"a_ms": 1.0, "b_ms": None}, {"a_ms": None, "b_ms": None}])[0] == {"a_ms": 1.0, "b_ms": None}


def test_a_rate_over_no_time_is_zero() -> None:
    assert (per_second(500, 500_000_000), per_second(500, 0)) == (1_000.0, 0.0)
