from __future__ import annotations

import pytest
from bench.harness.payload import Load, due_us_of, lateness_us, stamped


def test_messages_are_due_at_the_rate_from_the_start() -> None:
    load = Load(count=2_500, start_ms=1_000_000, per_s=500)
    due = [ms for batch in load.batches() for ms in batch.due_ms or []]
    assert (due[0], due[499], due[500], due[-1]) == (1_000_000, 1_000_998, 1_001_000, 1_004_998)
    assert due == sorted(due)


def test_a_burst_is_due_at_one_millisecond() -> None:
    due = {ms for batch in Load(count=2_000, start_ms=77_000).batches() for ms in batch.due_ms or []}
    assert due == {77_000}


def test_each_body_says_when_it_is_due() -> None:
    for batch in Load(count=1_500, start_ms=1_000, per_s=1_000).batches():
        assert batch.due_ms is not None
        assert [due_us_of(body) // 1_000 for body in batch.bodies] == batch.due_ms


def test_messages_that_are_due_at_once_leave_their_time_to_the_system() -> None:
    assert [batch.due_ms for batch in Load(count=10).batches()] == [None]


@pytest.mark.parametrize("size", [16, 100, 1_024])
def test_bodies_have_the_size_asked_for(size: int) -> None:
    bodies = [body for batch in Load(count=1_200, body_bytes=size).batches() for body in batch.bodies]
    assert {len(body) for body in bodies} == {size}


def test_no_id_comes_twice_within_a_load_or_in_loads_of_other_prefixes() -> None:
    loads = (Load(count=2_500, prefix="a"), Load(count=2_500, prefix="b"))
    ids = [message_id for load in loads for batch in load.batches() for message_id in batch.ids]
    assert len(set(ids)) == 5_000


def test_batches_hold_a_thousand_and_the_last_the_rest() -> None:
    assert [len(batch) for batch in Load(count=2_001).batches()] == [1_000, 1_000, 1]


def test_lateness_is_negative_before_the_time() -> None:
    assert lateness_us([stamped(5_000), stamped(7_000)], now_us=6_000) == [1_000, -1_000]
