from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dejaq.storage.ranges import insert

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 10)), max_size=20)


@given(spans)
def test_ranges_stay_sorted_disjoint_and_complete(batches: list[tuple[int, int]]) -> None:
    ranges: list[list[int]] = []
    used: set[int] = set()
    for start, length in batches:
        insert(ranges, start, start + length)
        used |= set(range(start, start + length))
    assert {counter for start, end in ranges for counter in range(start, end)} == used
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))
