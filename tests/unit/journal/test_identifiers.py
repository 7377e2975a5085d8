"""Ids that are formatted with the table equal ids that are formatted one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dejaq.domain.ids import generated_ids
from dejaq.journal.identifiers import Identifiers

PREFIXES = st.text(alphabet="0123456789abcdef", min_size=24, max_size=24)
COUNTERS = st.sampled_from([0, 1, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFF0]) | st.integers(0, 2**32 - 9)
GENERATED = st.tuples(PREFIXES, COUNTERS, st.integers(1, 8))
LISTED = st.lists(st.text(alphabet="aZ09.:-_", max_size=64), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(GENERATED | LISTED, max_size=12))
def test_ids_are_formatted_correctly_and_in_order(stretches: list[tuple[str, int, int] | list[str]]) -> None:
    identifiers, expected = Identifiers(4), []
    for stretch in stretches:
        if isinstance(stretch, list):
            identifiers.add_listed("\n".join(stretch), len(stretch))
            expected += stretch
        else:
            identifiers.add_generated(*stretch)
            expected += generated_ids(*stretch)
    assert identifiers.array().to_pylist() == expected


@pytest.mark.parametrize(("prefix", "first", "count"), [("abc", 0, 1), ("0" * 24, 2**32 - 1, 2)])
def test_a_value_that_is_no_generated_id_is_refused(prefix: str, first: int, count: int) -> None:
    with pytest.raises(ValueError, match="no generated id"):
        Identifiers(1).add_generated(prefix, first, count)
