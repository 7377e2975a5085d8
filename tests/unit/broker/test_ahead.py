from __future__ import annotations

from dejaq.broker.carrier.ahead import AHEAD_MS, AHEAD_ROWS, MEMORY_MS, Ahead


def test_a_consumer_holds_a_few_rows_at_first() -> None:
    assert Ahead().rows_max(0) == AHEAD_ROWS


def test_one_that_settles_much_may_hold_as_much_as_in_its_best_stretch() -> None:
    ahead = Ahead()
    ahead.settled(300, 1_000)
    ahead.settled(200, 1_000 + AHEAD_MS - 1)
    ahead.settled(100, 1_000 + AHEAD_MS)
    assert ahead.rows_max(1_000 + AHEAD_MS) == 500
    assert ahead.rows_max(999 + MEMORY_MS) == 500, "a pause does not make it begin anew"
    assert ahead.rows_max(1_000 + MEMORY_MS) == 100
    assert ahead.rows_max(1_000 + MEMORY_MS + AHEAD_MS) == AHEAD_ROWS
