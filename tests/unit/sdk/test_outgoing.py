from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dejaq import limits
from dejaq.errors import Code, InvalidArgument
from dejaq.sdk.producing import outgoing
from dejaq.sdk.producing.outgoing import (
    OutgoingColumns,
    as_body,
    body_column,
    encoded_headers,
    header_column,
    id_column,
    priority_column,
    refusals,
)


def rows(*ts: int, priorities: list[int] | None = None) -> OutgoingColumns:
    return OutgoingColumns(ts=list(ts), bodies=[b"%d" % value for value in ts], priorities=priorities)


def test_rows_are_sorted_by_time_then_priority_and_only_when_needed() -> None:
    assert rows(1, 2, 2, 3).order() is None
    assert rows(3, 1, 2).order() == [1, 2, 0]
    assert rows(1, 1, 1, priorities=[5, -1, 0]).order() == [1, 2, 0]
    assert rows(1, 1, 2, priorities=[0, 5, -9]).order() is None


def test_taking_rows_takes_every_column() -> None:
    whole = OutgoingColumns(
        ts=[1, 2, 3],
        bodies=[b"a", b"b", b"c"],
        ids=["x", "y", "z"],
        priorities=[7, 8, 9],
        headers=[b"", b"h", b""],
    )
    assert whole.take([2, 0]) == OutgoingColumns([3, 1], [b"c", b"a"], ["z", "x"], [9, 7], [b"", b""])
    assert whole.take(slice(1, 2)) == OutgoingColumns([2], [b"b"], ["y"], [8], [b"h"])


@given(st.lists(st.integers(0, 400), max_size=60))
def test_chunks_cover_every_row_once_and_each_fits_one_batch(sizes: list[int]) -> None:
    batch = OutgoingColumns(ts=[0] * len(sizes), bodies=[b"x" * size for size in sizes])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outgoing, "CHUNK_COUNT_MAX", 7)
        patch.setattr(outgoing, "CHUNK_BYTES_MAX", 500)
        cuts = list(batch.cuts())
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(len(sizes)))
    for cut in cuts:
        taken = sizes[cut]
        assert len(taken) <= 7
        assert sum(taken) <= 500 or len(taken) == 1


def test_only_the_invalid_rows_are_refused() -> None:
    batch = OutgoingColumns(
        ts=[0, -1, limits.TS_MS_MAX, limits.TS_MS_MAX + 1, 5, 5, 5, 5],
        bodies=[b""] * 4 + [b"x" * limits.BODY_BYTES_MAX, b"x" * (limits.BODY_BYTES_MAX + 1), b"", b""],
        ids=["a", "b", "c", "d", "e", "f", "a", "no space"],
    )
    assert refusals(batch) == {
        1: Code.INVALID_TIME,
        3: Code.INVALID_TIME,
        5: Code.BODY_TOO_LARGE,
        6: Code.DUPLICATE_IN_BATCH,
        7: Code.INVALID_ID,
    }
    edge = [limits.PRIORITY_MIN, limits.PRIORITY_MAX, limits.PRIORITY_MAX + 1]
    assert refusals(rows(1, 2, 3, priorities=edge)) == {2: Code.INVALID_PRIORITY}
    assert refusals(rows()) == {}


def test_a_duplicate_of_a_refused_row_is_not_a_duplicate() -> None:
    batch = OutgoingColumns(ts=[-1, 1], bodies=[b"", b""], ids=["a", "a"])
    assert refusals(batch) == {0: Code.INVALID_TIME}


def test_bodies_are_bytes() -> None:
    bytes_like: Any = bytearray(b"b")
    assert as_body(bytearray(b"a")) == b"a"
    assert as_body(memoryview(b"a")) == b"a"
    assert body_column([b"a", bytes_like]) == [b"a", b"b"]
    with pytest.raises(InvalidArgument, match="encode"):
        as_body("text")
    for wrong in (b"single", "text", [b"a", 5]):
        with pytest.raises(InvalidArgument):
            body_column(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["abc", ["a"], ["a", "b", "c"], ["a", 5]])
def test_ids_are_one_string_per_message(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        id_column(wrong, 2)


def test_columns_that_hold_only_defaults_are_left_out() -> None:
    assert priority_column(0, 2) is None
    assert priority_column([0, 0], 2) is None
    assert priority_column(3, 2) == [3, 3]
    assert header_column(None, 2) is None
    assert header_column([None, {}], 2) is None
    one = encoded_headers({"k": "v"})
    assert header_column({"k": "v"}, 2) == [one, one]
    assert header_column([None, {"k": "v"}], 2) == [b"", one]
    for wrong in ([True, 1], [1], [1.5, 2]):
        with pytest.raises(InvalidArgument):
            priority_column(wrong, 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        header_column([{}], 2)


def test_headers_are_a_small_map_of_strings() -> None:
    many = {f"k{number}": "" for number in range(limits.HEADERS_COUNT_MAX)}
    encoded_headers(many)
    for wrong in (
        {**many, "one": "more"},
        {"k": "x" * limits.HEADERS_BYTES_MAX},
        {"k": 5},
        {"": "v"},
        [("k", "v")],
    ):
        with pytest.raises(InvalidArgument) as refused:
            encoded_headers(wrong)  # type: ignore[arg-type]
        assert refused.value.code is Code.INVALID_HEADERS
