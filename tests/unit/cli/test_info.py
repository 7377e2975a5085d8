"""Numbers of the cluster as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from dejaq.cli.info import lasted
from dejaq.cli.top import changes


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (59_999, "59s"), (61_000, "1m1s"), (3_600_000, "1h0m"), (90_000_000, "1d1h"), (-5, "0s")],
)
def test_a_length_of_time_is_told_in_two_units(ms: int, text: str) -> None:
    assert lasted(ms) == text


def look(**counts: int) -> dict[str, Any]:
    topics = [{"name": name, "available": n, "waiting": 1, "processing": 1} for name, n in counts.items()]
    return {"cluster": "c", "brokers": [], "clients": [], "topics": topics}


def test_growth_is_what_came_less_what_went_in_a_second() -> None:
    growth = changes(look(a=10, b=10), look(a=30, b=0), seconds=2.0)["topics"]
    assert [topic["growth_per_s"] for topic in growth] == [10.0, -5.0]


def test_a_topic_that_was_not_seen_before_has_no_growth_yet() -> None:
    assert changes(None, look(a=10), seconds=1.0)["topics"][0]["growth_per_s"] == 0.0
    assert changes(look(), look(a=10), seconds=1.0)["topics"][0]["growth_per_s"] == 0.0
