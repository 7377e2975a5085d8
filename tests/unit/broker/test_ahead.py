from __future__ import annotations

from dejaq.broker.carrier.ahead import AHEAD_MS, AHEAD_ROWS, Ahead


def test_a_consumer_that_settled_nothing_may_hold_a_few() -> None:
    assert Ahead().rows_max(0) == AHEAD_ROWS


def test_it_may_hold_what_it_settled_just_now_and_no_more() -> None:
    ahead = Ahead()
    ahead.settled(300, 1_000)
    ahead.settled(200, 1_050)
    assert ahead.rows_max(1_060) == 500
    assert ahead.rows_max(1_000 + AHEAD_MS) == 200
    assert ahead.rows_max(1_050 + AHEAD_MS) == AHEAD_ROWS
