"""Rates, and the lateness of topics over time, from counters that are read again and again."""

from __future__ import annotations

import pytest

from dejaq.web.metrics.history import (
    COARSE_MS,
    FINE_KEPT,
    FINE_MS,
    RATE_MS,
    TOPICS_MAX,
    MetricsHistory,
    percentile,
)
from dejaq.web.metrics.scraping import BOUNDS_MS, TopicCounters

START = 1_700_000_000_000 // COARSE_MS * COARSE_MS


def counters(created: float = 0, late_ms: dict[int, float] | None = None, **more: float) -> TopicCounters:
    late = [0.0] * (len(BOUNDS_MS) + 1)
    for bound, count in (late_ms or {}).items():
        late[BOUNDS_MS.index(bound)] = count
    return TopicCounters({"created": created, **more}, late)


def history_of(*readings: TopicCounters, broker: str = "a", topic: str = "mail") -> MetricsHistory:
    """What is known after these readings, one per step."""
    history = MetricsHistory()
    for number, reading in enumerate(readings):
        history.add(START + number * FINE_MS, {broker: {topic: reading}})
    return history


def test_rates_are_differences_per_second() -> None:
    history = history_of(counters(100), counters(115, deleted=3), counters(130, deleted=3, expired=1))
    (rates,) = history.rates(["mail", "unknown"]).values()
    assert rates.created == pytest.approx(30 / (RATE_MS / 1_000))
    assert (rates.deleted, rates.expired) == pytest.approx((3 * 1_000 / RATE_MS, 1_000 / RATE_MS))
    assert rates.p99_ms is None


def test_what_was_counted_before_the_first_reading_is_no_rate() -> None:
    history = history_of(counters(1_000_000, {1: 50}))
    assert history.rates(["mail"]) == {}
    assert history.lateness(["mail"], fine=True).starts == []
    assert (history.began_ms, history.problem) == (START, "")


def test_a_rate_ends_when_nothing_is_counted_any_more() -> None:
    steps = RATE_MS // FINE_MS
    readings = [counters(0), counters(90), *[counters(90)] * steps]
    assert history_of(*readings[:-1]).rates(["mail"])
    assert history_of(*readings).rates(["mail"]) == {}


def test_brokers_are_added_and_one_that_is_started_again_loses_nothing() -> None:
    history = MetricsHistory()
    for number, (a, b) in enumerate([(100, 10), (106, 13), (4, 13), (5, 20)]):
        history.add(START + number * FINE_MS, {"a": {"mail": counters(a)}, "b": {"mail": counters(b)}})
    (rates,) = history.rates(["mail"]).values()
    # 6 and 3, then 4 after the restart, then 1 and 7: the last fifteen seconds have all of them.
    assert rates.created == pytest.approx((6 + 3 + 4 + 1 + 7) * 1_000 / RATE_MS)


def test_lateness_has_one_column_per_step_and_its_percentiles() -> None:
    readings = [
        counters(0),
        counters(1, {1: 98, 5: 2}),
        counters(1, {1: 98, 5: 2}),
        counters(2, {1: 98, 5: 2, 1_000: 1}),
    ]
    found = history_of(*readings).lateness(["mail"], fine=True)
    assert found.step_ms == FINE_MS
    assert found.starts == [START + FINE_MS, START + 3 * FINE_MS]
    assert [sum(row) for row in found.counts] == [100, 1]
    assert (found.p50_ms[0], found.p99_ms[0]) == pytest.approx((50 / 98, 3.5), abs=0.001)
    assert found.p50_ms[1] == pytest.approx(625)


def test_topics_are_added_up_and_only_those_that_were_asked_for() -> None:
    history = MetricsHistory()
    for number in range(2):
        history.add(
            START + number * FINE_MS, {"a": {one: counters(late_ms={1: 5 * number}) for one in ("x", "y", "z")}}
        )
    assert [sum(row) for row in history.lateness(["x", "y"], fine=True).counts] == [10]


def test_minutes_join_the_short_steps() -> None:
    steps = 2 * COARSE_MS // FINE_MS
    history = history_of(*(counters(late_ms={1: number}) for number in range(steps)))
    found = history.lateness(["mail"], fine=False)
    assert (found.step_ms, found.starts) == (COARSE_MS, [START, START + COARSE_MS])
    assert [sum(row) for row in found.counts] == [steps / 2 - 1, steps / 2]


def test_old_steps_and_quiet_topics_leave() -> None:
    history = history_of(*(counters(late_ms={1: number}) for number in range(FINE_KEPT + 10)))
    assert len(history.lateness(["mail"], fine=True).starts) == FINE_KEPT
    for number in range(TOPICS_MAX + 5):
        name = f"topic-{number}"
        history.add(START + 10**7 + number, {"b": {name: counters(1)}})
        history.add(START + 10**7 + number, {"b": {name: counters(2)}})
    assert history.rates(["mail"]) == {}
    assert len(history.rates([f"topic-{number}" for number in range(TOPICS_MAX + 5)])) == TOPICS_MAX


@pytest.mark.parametrize(
    ("late_ms", "share", "expected"),
    [({}, 0.5, None), ({0: 10}, 0.99, 0.0), ({10: 4}, 0.5, 7.5), ({1: 99, 60_000: 1}, 0.999, 59_450.0)],
)
def test_a_percentile_lies_within_its_bucket(late_ms: dict[int, float], share: float, expected: float | None) -> None:
    found = percentile(counters(late_ms=late_ms).late, share)
    assert found == pytest.approx(expected, rel=0.1) if expected is not None else found is None


def test_what_is_beyond_the_last_bound_counts_as_the_last_bound() -> None:
    late = [0.0] * len(BOUNDS_MS) + [3.0]
    assert percentile(late, 0.5) == BOUNDS_MS[-1]
