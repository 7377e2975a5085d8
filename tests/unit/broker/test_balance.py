"""Shares that follow the pace of consumers. The computation is pure, so a simulated queue shows the final shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker.assignment.balance import FACTOR_MAX, PaceReading, weigh

readings = st.lists(
    st.builds(
        PaceReading,
        name=st.text("abc", min_size=1, max_size=6),
        start=st.integers(1, 10_000),
        weight=st.floats(1, 10_000),
        rate=st.floats(0, 1e6),
        lagging=st.booleans(),
        busy=st.booleans(),
    ),
    min_size=1,
    max_size=10,
    unique_by=lambda reading: reading.name,
)


def settle(capacities: dict[str, float], arriving: float, rounds: int = 60) -> dict[str, float]:
    """The final weights of consumers with these capacities, when `arriving` messages per second come."""
    weights = dict.fromkeys(capacities, 100.0)
    queues = dict.fromkeys(capacities, 0.0)
    for _ in range(rounds):
        total = sum(weights.values())
        given = {name: queues[name] + arriving * weights[name] / total for name in capacities}
        rates = {name: min(given[name], capacities[name]) for name in capacities}
        queues = {name: given[name] - rates[name] for name in capacities}
        weights = weigh([PaceReading(n, 100, weights[n], rates[n], lagging=queues[n] > 1) for n in capacities])
    return weights


@given(readings=readings)
def test_a_weight_stays_within_its_bounds(readings: list[PaceReading]) -> None:
    held_back = any(r.lagging or r.busy for r in readings) and any(r.rate for r in readings)
    for reading, weight in zip(readings, weigh(readings).values(), strict=True):
        assert weight > 0
        if held_back:
            assert reading.start / FACTOR_MAX <= weight <= reading.start * FACTOR_MAX


def test_when_all_lag_each_gets_as_much_as_it_settles() -> None:
    weights = settle({"fast": 100.0, "slow": 50.0}, arriving=300.0)
    assert weights["slow"] / weights["fast"] == pytest.approx(0.5, rel=0.02)


def test_a_slow_consumer_stops_lagging_when_others_have_capacity() -> None:
    weights = settle({"fast": 1_000.0, "slow": 50.0}, arriving=400.0, rounds=400)
    share = weights["slow"] / sum(weights.values())
    assert 0.05 <= share <= 50 / 400 * 1.3


def test_a_stuck_consumer_gets_the_smallest_share() -> None:
    weights = settle({"good": 100.0, "stuck": 0.0}, arriving=50.0)
    assert weights["stuck"] == pytest.approx(100 / FACTOR_MAX)


def test_when_no_consumer_lags_all_return_to_their_first_weights() -> None:
    weights = {"a": 400.0, "b": 20.0}
    for _ in range(60):
        weights = weigh([PaceReading(name, 100, weights[name], 10.0, lagging=False) for name in weights])
    assert weights == {"a": pytest.approx(100, rel=0.05), "b": pytest.approx(100, rel=0.05)}


def test_a_busy_consumer_gets_less_than_one_that_only_lags() -> None:
    busy = PaceReading("busy", 100, 100.0, 50.0, lagging=True, busy=True)
    lagging = PaceReading("lagging", 100, 100.0, 50.0, lagging=True)
    weights = weigh([busy, lagging])
    assert weights["busy"] < weights["lagging"]
