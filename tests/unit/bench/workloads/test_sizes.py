"""Sizes of the workloads, and their settings on the command line."""

from __future__ import annotations

import pytest
from bench.workloads.sizes import FULL, SMALL, changed


def test_the_full_sizes_are_those_of_the_goals() -> None:
    assert (FULL.reminders, FULL.reminders_buckets, FULL.reminders_pending) == (1_000_000, (16, 64), 20_000_000)
    assert (FULL.due_pending, FULL.due_per_s, FULL.due_consumers) == (1_000_000, (4_000, 10_000), 2)
    assert (FULL.single_sends[0], FULL.single_connections, FULL.single_producers) == (1_000_000, 50, 1_000)
    assert (FULL.by_id_pending, FULL.backlog[-1]) == (5_000_000, 600_000)
    assert (FULL.slow_held, FULL.slow_messages, FULL.slow_seconds) == (10_000, 100_000_000, 3_600.0)
    assert (FULL.uptime_messages, FULL.uptime_pending) == (100_000_000, 1_000_000)


def test_each_kind_of_size_can_be_set() -> None:
    sizes = changed(SMALL, ["uptime_messages=7000", "slow_seconds=1.5", "due_per_s=100,200", "reminders_buckets=8"])
    assert (sizes.uptime_messages, sizes.slow_seconds) == (7_000, 1.5)
    assert (sizes.due_per_s, sizes.reminders_buckets) == ((100, 200), (8,))


def test_an_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'rounds' is not a size; known: .*uptime_rounds"):
        changed(SMALL, ["rounds=3"])
