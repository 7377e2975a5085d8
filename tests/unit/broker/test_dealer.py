"""Dealing buckets: everybody gets a fair, contiguous share, and the same names get the same deal."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dejaq.broker.carrier.dealer import deal

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True)
buckets = st.integers(min_value=1, max_value=1024)


@given(names=names, buckets=buckets)
def test_every_bucket_is_dealt_exactly_once(names: list[str], buckets: int) -> None:
    dealt = deal(names, buckets)
    assert sorted(bucket for share in dealt.values() for bucket in share) == list(range(buckets))
    assert set(dealt) == set(names)


@given(names=names, buckets=buckets)
def test_shares_differ_by_one_at_most(names: list[str], buckets: int) -> None:
    sizes = [len(share) for share in deal(names, buckets).values()]
    assert max(sizes) - min(sizes) <= 1


@given(names=names, buckets=buckets, seed=st.integers())
def test_the_order_of_arrival_does_not_matter(names: list[str], buckets: int, seed: int) -> None:
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    assert deal(names, buckets) == deal(shuffled, buckets)


def test_one_who_joins_at_the_end_takes_only_from_the_ends_of_the_others() -> None:
    before, after = deal("abc", 60), deal("abcd", 60)
    for name in "abc":
        kept = set(before[name]) & set(after[name])
        assert len(kept) >= len(after[name]) // 3


def test_with_more_consumers_than_buckets_the_rest_stand_by() -> None:
    dealt = deal([f"c{n}" for n in range(5)], 2)
    assert sorted(len(share) for share in dealt.values()) == [0, 0, 0, 1, 1]


def test_nobody_gets_nothing() -> None:
    assert deal([], 8) == {}
