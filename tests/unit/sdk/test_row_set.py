"""A set of rows that is stored in the bits of one integer behaves like a set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.domain.row_set import RowSet

rows = st.one_of(
    st.sets(st.integers(0, 200)), st.builds(range, st.integers(0, 200), st.integers(0, 200)), st.just(range(9, 2, -2))
)
steps = st.lists(st.tuples(st.sampled_from(["update", "difference_update"]), rows))


@given(start=rows, steps=steps, asked=rows)
def test_a_row_set_behaves_like_a_set(start: set[int], steps: list[tuple[str, set[int]]], asked: set[int]) -> None:
    ours, expected = RowSet(start), set(start)
    for name, change in steps:
        getattr(ours, name)(change)
        getattr(expected, name)(change)
    assert list(ours) == sorted(expected)
    assert bool(ours) == bool(expected)
    assert ours.issuperset(asked) == expected.issuperset(asked)
    assert [row in ours for row in range(210)] == [row in expected for row in range(210)]
    ours.discard(7)
    assert set(ours) == expected - {7}
