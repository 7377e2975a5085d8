from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dejaq.storage.rocksdb.timeline import masks

row_sets = st.sets(st.integers(0, 300))


def _mask(rows: set[int]) -> int:
    return sum(1 << row for row in rows)


@given(row_sets)
def test_rows_and_ranges_name_the_same_rows(rows: set[int]) -> None:
    mask = _mask(rows)
    assert list(masks.rows(mask)) == sorted(rows)
    assert masks.of_ranges(masks.ranges(mask)) == mask
    listed = list(masks.ranges(mask))
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(listed))


@given(row_sets)
def test_a_packed_mask_is_unpacked_unchanged(rows: set[int]) -> None:
    assert masks.unpack(masks.pack(_mask(rows))) == _mask(rows)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_lowest_is_the_smallest_row(rows: set[int]) -> None:
    assert masks.lowest(_mask(rows)) == min(rows)


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_span_has_the_rows_between(start: int, length: int) -> None:
    assert set(masks.rows(masks.span(start, start + length))) == set(range(start, start + length))


@given(row_sets, st.integers(301, 320))
def test_flags_are_true_for_the_rows(rows: set[int], count: int) -> None:
    assert masks.flags(_mask(rows), count).tolist() == [row in rows for row in range(count)]
