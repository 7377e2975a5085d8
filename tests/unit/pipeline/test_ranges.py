"""The records that are in the lake, as ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dejaq.pipeline.lake.ranges import Ranges

PAIRS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(PAIRS, st.integers(1, 50), st.integers(0, 6))
def test_ranges_behave_like_the_set_of_their_numbers(pairs: list[tuple[int, int]], first: int, length: int) -> None:
    ranges, numbers = Ranges(), set()
    for pair in pairs:
        ranges = ranges.with_range(*pair)
        numbers |= set(range(pair[0], pair[1] + 1))
    asked = set(range(first, first + length + 1))
    assert ranges.holds(first, first + length) == (asked <= numbers)
    assert ranges.meets(first, first + length) == bool(asked & numbers)
    assert ranges.end == max(numbers, default=0)
    assert {number for start, end in ranges.pairs for number in range(start, end + 1)} == numbers
    found = ranges.missing(first, first + length)
    assert {number for start, end in found for number in range(start, end + 1)} == asked - numbers
    assert all(start <= end for start, end in found)
    assert Ranges.of(ranges.pairs) == ranges
