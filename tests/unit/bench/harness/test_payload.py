from __future__ import annotations

from itertools import pairwise

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


def test_each_body_contains_its_due_time() -> None:
    for batch in Load(count=1_500, start_ms=1_000, per_s=1_000).batches():
        assert batch.due_ms is not None
        assert [due_us_of(body) // 1_000 for body in batch.bodies] == batch.due_ms


def test_messages_that_are_due_at_once_have_no_time_of_their_own() -> None:
    assert [batch.due_ms for batch in Load(count=10).batches()] == [None]


@pytest.mark.parametrize("size", [16, 100, 1_024])
def test_bodies_have_the_size_asked_for(size: int) -> None:
    bodies = [body for batch in Load(count=1_200, body_bytes=size).batches() for body in batch.bodies]
    assert {len(body) for body in bodies} == {size}


def test_ids_are_unique_within_a_load_and_over_loads_with_other_prefixes() -> None:
    loads = (Load(count=2_500, prefix="a"), Load(count=2_500, prefix="b"))
    ids = [message_id for load in loads for batch in load.batches() for message_id in batch.ids]
    assert len(set(ids)) == 5_000


def test_batches_have_a_thousand_messages_and_the_last_has_the_rest() -> None:
    assert [len(batch) for batch in Load(count=2_001).batches()] == [1_000, 1_000, 1]


def test_lateness_is_negative_before_the_time() -> None:
    assert lateness_us([stamped(5_000), stamped(7_000)], now_us=6_000) == [1_000, -1_000]


def scattered(count: int, prefix: str = "m") -> Load:
    return Load(count=count, prefix=prefix, start_ms=1_000_000, scatter_ms=60_000)


def test_scattered_times_fill_the_whole_span_in_random_order() -> None:
    due = [ms for batch in scattered(20_000).batches() for ms in batch.due_ms or []]
    counts = [sum(1_000_000 + s * 6_000 <= ms < 1_006_000 + s * 6_000 for ms in due) for s in range(10)]
    assert sum(counts) == 20_000
    assert all(1_800 < count < 2_200 for count in counts)
    earlier = sum(after < before for before, after in pairwise(due))
    assert 9_000 < earlier < 11_000


def test_the_ids_of_a_scattered_load_look_random_and_are_not_in_order_of_time() -> None:
    (batch,) = scattered(1_000).batches()
    assert batch.due_ms is not None
    by_time = [message_id for _, message_id in sorted(zip(batch.due_ms, batch.ids, strict=True))]
    for ids in (batch.ids, by_time):
        assert 400 < sum(after < before for before, after in pairwise(ids)) < 600
    assert len({*batch.ids, *next(scattered(1_000, "other").batches()).ids}) == 2_000


def test_one_message_of_a_scattered_load_is_found_without_making_the_others() -> None:
    load = scattered(1_500)
    batches = list(load.batches())
    ids = [message_id for batch in batches for message_id in batch.ids]
    due = [ms for batch in batches for ms in batch.due_ms or []]
    assert [load.id_of(row) for row in range(1_500)] == ids
    assert [load.due_ms(row) for row in range(1_500)] == due


def test_the_parts_of_a_load_are_the_whole_load() -> None:
    load = scattered(1_001)
    parts = [row for number in range(7) for row in load.part(number, 7)]
    whole = [row for b in load.batches() for row in zip(b.ids, b.bodies, b.due_ms or [], strict=True)]
    assert sorted(parts) == sorted(whole)
