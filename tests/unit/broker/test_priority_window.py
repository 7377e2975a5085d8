from __future__ import annotations

from dejaq.broker.delivery.priority_window import MEMORY_MS, STRETCH_MS, WINDOW_ROWS_MIN, PriorityWindow


def test_a_consumer_holds_a_few_rows_at_first() -> None:
    assert PriorityWindow().rows_max(0) == WINDOW_ROWS_MIN


def test_a_consumer_may_hold_as_much_as_it_settled_in_its_best_period() -> None:
    priority_window = PriorityWindow()
    priority_window.settled(300, 1_000)
    priority_window.settled(200, 1_000 + STRETCH_MS - 1)
    priority_window.settled(100, 1_000 + STRETCH_MS)
    assert priority_window.rows_max(1_000 + STRETCH_MS) == 500
    assert priority_window.rows_max(999 + MEMORY_MS) == 500, "a pause does not reset the limit"
    assert priority_window.rows_max(1_000 + MEMORY_MS) == 100
    assert priority_window.rows_max(1_000 + MEMORY_MS + STRETCH_MS) == WINDOW_ROWS_MIN
