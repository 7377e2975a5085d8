"""The numbers of a cluster in the form in which users read them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dejaq.cli.operating.info import lasted
from dejaq.cli.operating.top import changes, divide, screen


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (59_999, "59s"), (61_000, "1m1s"), (3_600_000, "1h0m"), (90_000_000, "1d1h"), (-5, "0s")],
)
def test_a_duration_is_shown_in_two_units(ms: int, text: str) -> None:
    assert lasted(ms) == text


def sample(**counts: int) -> dict[str, Any]:
    topics = [{"name": name, "available": n, "waiting": 1, "processing": 1} for name, n in counts.items()]
    return {"cluster": "c", "brokers": [], "clients": [], "topics": topics}


def test_growth_is_the_change_per_second() -> None:
    growth = changes(sample(a=10, b=10), sample(a=30, b=0), seconds=2.0)["topics"]
    assert [topic["growth_per_s"] for topic in growth] == [10.0, -5.0]


def test_a_topic_that_was_not_seen_before_has_no_growth_yet() -> None:
    assert changes(None, sample(a=10), seconds=1.0)["topics"][0]["growth_per_s"] == 0.0
    assert changes(sample(), sample(a=10), seconds=1.0)["topics"][0]["growth_per_s"] == 0.0


def drawn(values: dict[str, Any], width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(screen(values, width, height))
    return console.export_text().splitlines()


def test_a_small_screen_names_the_number_of_hidden_rows() -> None:
    """U23: `top` hid the rows that did not fit, and wrapped the others."""
    values = changes(None, sample(**{f"topic-{number:02}": number for number in range(40)}), 1.0)
    small = drawn(values, width=60, height=12)
    assert len(small) == 12
    assert small[-1] == "not shown: 33 topics, 5 columns; see `dejaq info`"
    assert [line.split()[0] for line in small if line.startswith("topic-")] == [f"topic-0{n}" for n in range(7)]
    large = drawn(values, width=200, height=60)
    assert "not shown" not in " ".join(large)
    assert "topic-39" in " ".join(large)


def test_lines_are_shared_between_tables() -> None:
    assert divide(12, [2, 40, 3]) == [2, 7, 3]
    assert divide(10, [2, 40, 40]) == [2, 4, 4]
    assert divide(-1, [1, 1, 1]) == [0, 0, 0]
