"""Bar charts in the terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.cli.terminal.bars import bar, draw, label_for, step_for


def test_the_largest_value_fills_the_width_and_zero_shows_nothing() -> None:
    assert bar(100, 100, 10) == "█" * 10
    assert bar(0, 100, 10) == ""


def test_a_single_message_among_a_million_is_still_seen() -> None:
    assert bar(1, 1_000_000, 10) == "▏"


@given(values=st.lists(st.integers(0, 10**9), min_size=1, max_size=30), width=st.integers(40, 200))
def test_a_drawing_keeps_within_the_terminal(values: list[int], width: int) -> None:
    lines = draw([label_for(i * 1000, 1000) for i in range(len(values))], values, width=width)
    assert len(lines) == len(values)
    assert max(map(len, lines)) <= width


@given(span=st.integers(1, 10**12), lines=st.integers(1, 50))
def test_the_steps_cover_the_span_in_at_most_that_many_lines(span: int, lines: int) -> None:
    assert step_for(span, lines) * lines >= span


def test_a_label_is_as_exact_as_its_step() -> None:
    assert label_for(1_700_000_000_123, 1) == "22:13:20.123"
    assert label_for(1_700_000_000_123, 5_000) == "22:13:20"
    assert label_for(1_700_000_000_123, 3_600_000) == "11-14 22:13"
    assert label_for(1_700_000_000_123, 86_400_000) == "2023-11-14"
