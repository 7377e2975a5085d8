"""The metrics page of a broker becomes counters by topic."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from dejaq.web.metrics.scraping import BOUNDS_MS, EVENTS, TopicCounters, parse

PAGE = """
# HELP dejaq_messages_created_total Messages created.
dejaq_messages_created_total{topic="mail"} 12.0
dejaq_messages_created_total{topic="other"} 1e+06
dejaq_messages_deleted_total{topic="mail"} 7.0
dejaq_messages_dead_lettered_total{topic="mail",why="rejected"} 2.0
dejaq_messages_dead_lettered_total{topic="mail",why="attempts"} 3.0
dejaq_messages_pushed_total{topic="mail"} 99.0
dejaq_push_lateness_seconds_bucket{le="0.001",topic="mail"} 4.0
dejaq_push_lateness_seconds_bucket{le="0.002",topic="mail"} 9.0
dejaq_push_lateness_seconds_bucket{le="60.0",topic="mail"} 9.0
dejaq_push_lateness_seconds_bucket{le="+Inf",topic="mail"} 10.0
dejaq_push_lateness_seconds_sum{topic="mail"} 1.5
nonsense
"""


def late(**counts: float) -> list[float]:
    found = [0.0] * (len(BOUNDS_MS) + 1)
    for name, count in counts.items():
        found[BOUNDS_MS.index(int(name[1:])) if name != "above" else -1] = count
    return found


def test_a_page_is_read_by_topic() -> None:
    page = PAGE
    # A bucket that the page leaves out would make a difference; a real page has every bucket.
    for bound in BOUNDS_MS:
        if bound not in (1, 2, 60_000):
            value = 0.0 if bound < 1 else 9.0
            page += f'dejaq_push_lateness_seconds_bucket{{le="{bound / 1_000}",topic="mail"}} {value}\n'
    found = parse(page.splitlines())
    assert set(found) == {"mail", "other"}
    assert found["mail"].events == {"created": 12, "deleted": 7, "dead_lettered": 5}
    assert found["mail"].late == late(b1=4, b2=5, above=1)
    assert found["other"].events == {"created": 1_000_000}


def test_the_page_of_the_real_library_is_read() -> None:
    registry = CollectorRegistry()
    for name in EVENTS:
        Counter(f"dejaq_messages_{name}", name, ["topic"], registry=registry).labels("mail").inc(3)
    pushed = Histogram(
        "dejaq_push_lateness_seconds", "x", ["topic"], buckets=[ms / 1_000 for ms in BOUNDS_MS], registry=registry
    )
    for seconds in (0.0, 0.0015, 0.0015, 100):
        pushed.labels("mail").observe(seconds)
    found = parse(generate_latest(registry).decode().splitlines())["mail"]
    assert found.events == dict.fromkeys(EVENTS, 3)
    assert found.late == late(b0=1, b2=2, above=1)


def test_differences_and_sums() -> None:
    before = TopicCounters({"created": 5, "deleted": 1}, late(b1=2))
    now = TopicCounters({"created": 9, "deleted": 1, "expired": 2}, late(b1=5, b2=1))
    changed = now.since(before)
    assert changed.events == {"created": 4, "deleted": 0, "expired": 2}
    assert changed.late == late(b1=3, b2=1)
    changed.add(changed)
    assert changed.events["created"] == 8
    assert changed.late == late(b1=6, b2=2)
    assert now.since(now).is_quiet


@pytest.mark.parametrize("after", [{"created": 1, "deleted": 9}, {"created": 6}])
def test_a_broker_that_was_started_again_counts_from_zero(after: dict[str, float]) -> None:
    before, now = TopicCounters({"created": 5, "deleted": 1}, late(b1=2)), TopicCounters(after, late(b1=1))
    assert now.since(before) is now


def test_what_was_counted_before_the_first_reading_is_unknown() -> None:
    now = TopicCounters({"created": 5})
    assert now.since(None) is now
