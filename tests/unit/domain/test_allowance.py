"""Tokens that become available at a rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.allowance import Allowance


def test_the_tokens_of_one_second_are_available_at_first_and_never_more() -> None:
    allowance = Allowance(10, 0)
    assert allowance.left(0) == allowance.left(60_000) == 10


def test_used_tokens_return_at_the_rate() -> None:
    allowance = Allowance(10, 0)
    allowance.take(10, 0)
    assert (allowance.left(0), allowance.wait_ms(0)) == (0, 100)
    assert (allowance.left(99), allowance.left(100), allowance.left(500)) == (0, 1, 5)


def test_a_negative_balance_is_compensated_first() -> None:
    allowance = Allowance(100, 0)
    allowance.take(300, 0)
    assert allowance.wait_ms(0) == 2_010
    assert allowance.left(2_009) == 0
    assert allowance.left(2_010) == 1


def test_unused_tokens_are_returned() -> None:
    allowance = Allowance(10, 0)
    allowance.take(8, 0)
    allowance.take(-6, 0)
    assert allowance.left(0) == 8


def test_a_clock_that_is_set_back_removes_no_tokens() -> None:
    allowance = Allowance(10, 10_000)
    allowance.take(5, 10_000)
    assert allowance.left(0) == 5
    assert allowance.left(100) == 6


@given(rate=st.integers(1, 10_000), steps=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 50)), max_size=40))
def test_no_more_tokens_are_used_than_those_of_one_second_plus_the_rate(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    allowance, now, passed = Allowance(rate, 0), 0, 0
    for wait, wanted in steps:
        now += wait
        count = min(wanted, allowance.left(now))
        allowance.take(count, now)
        passed += count
    assert passed <= rate + now * rate / 1_000 + 1
