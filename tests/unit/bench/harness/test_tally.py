from __future__ import annotations

import multiprocessing
import time

from bench.harness.payload import stamped
from bench.harness.tally import Tally

HOUR_NS = 3_600_000_000_000


def tally(delivered: object, *, target: int, deadline_ns: int | None = None) -> Tally:
    deadline = time.time_ns() + HOUR_NS if deadline_ns is None else deadline_ns
    return Tally(delivered=delivered, target=target, deadline_ns=deadline, timed=True)  # type: ignore[arg-type]


def test_consumers_of_one_run_end_together() -> None:
    delivered = multiprocessing.get_context("spawn").Value("q", 0)
    one, other = tally(delivered, target=5), tally(delivered, target=5)
    one.deleted(3)
    assert (one.done(), other.done()) == (False, False)
    other.deleted(2)
    assert (one.done(), other.done()) == (True, True)
    assert (one.count, other.count) == (3, 2)


def test_a_tally_stops_at_the_deadline() -> None:
    delivered = multiprocessing.get_context("spawn").Value("q", 0)
    assert tally(delivered, target=1, deadline_ns=time.time_ns() - 1).done()


def test_an_early_message_is_counted_as_early() -> None:
    seen = tally(multiprocessing.get_context("spawn").Value("q", 0), target=1)
    now_us = time.time_ns() // 1_000
    seen.taken([stamped(now_us + 60_000_000), stamped(now_us - 60_000_000)])
    early, late = seen.late_us()
    assert early < 0 < late
