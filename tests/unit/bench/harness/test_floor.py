from __future__ import annotations

import time

from bench.harness.floor import sleep_through


def test_every_millisecond_that_was_missed_counts_with_its_own_lateness() -> None:
    start_ns = time.time_ns() - 5_000_000
    late = sleep_through(start_ns, lambda target: target >= start_ns + 5_000_000)
    assert len(late) == 5
    assert list(late) == sorted(late, reverse=True)
    assert late[0] - late[-1] >= 4_000
    assert late[-1] >= 1_000


def test_a_span_without_a_millisecond_has_no_samples() -> None:
    assert len(sleep_through(time.time_ns(), lambda target: True)) == 0
