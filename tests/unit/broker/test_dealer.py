"""Dealing buckets: everybody gets a fair share, the same names get the same deal, and a change moves few."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dejaq.broker.carrier.dealer import Seat, deal, stand_in

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True)
buckets = st.integers(min_value=1, max_value=1024)


@settings(deadline=None)
@given(names=names, buckets=buckets)
def test_every_bucket_is_dealt_exactly_once(names: list[str], buckets: int) -> None:
    dealt = deal(map(Seat, names), buckets)
    assert sorted(bucket for share in dealt.values() for bucket in share) == list(range(buckets))
    assert set(dealt) == set(names)


@settings(deadline=None)
@given(names=names, buckets=buckets)
def test_shares_differ_by_one_at_most(names: list[str], buckets: int) -> None:
    sizes = [len(share) for share in deal(map(Seat, names), buckets).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(names=names, buckets=buckets, seed=st.integers())
def test_the_order_of_arrival_does_not_matter(names: list[str], buckets: int, seed: int) -> None:
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    assert deal(map(Seat, names), buckets) == deal(map(Seat, shuffled), buckets)


@pytest.mark.parametrize(("count", "buckets"), [(2, 64), (3, 64), (10, 64), (30, 1024)])
def test_who_comes_or_goes_moves_few_buckets(count: int, buckets: int) -> None:
    """At most twice what the share of the one who comes needs, on the average of many sets of names."""
    moved = 0
    for trial in range(20):
        names = [f"consumer-{trial}-{place}" for place in range(count + 1)]
        before, after = deal(map(Seat, names[:-1]), buckets), deal(map(Seat, names), buckets)
        moved += sum(len(set(after[name]) - set(before.get(name, ()))) for name in names)
    assert moved / 20 < 2 * buckets / (count + 1) + 1


def test_with_more_consumers_than_buckets_the_rest_stand_by() -> None:
    dealt = deal([Seat(f"c{n}") for n in range(5)], 2)
    assert sorted(len(share) for share in dealt.values()) == [0, 0, 0, 1, 1]


def test_nobody_gets_nothing() -> None:
    assert deal([], 8) == {}


seats = st.lists(
    st.builds(
        Seat, st.text("abcdef", min_size=1, max_size=4), st.integers(1, 10_000), st.sampled_from(["", "r1", "r2"])
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda seat: seat.name,
)


@given(seats=seats, buckets=buckets)
def test_shares_follow_the_weights_to_within_a_bucket(seats: list[Seat], buckets: int) -> None:
    dealt = deal(seats, buckets)
    total = sum(seat.weight for seat in seats)
    assert sorted(bucket for share in dealt.values() for bucket in share) == list(range(buckets))
    for seat in seats:
        assert abs(len(dealt[seat.name]) - buckets * seat.weight / total) <= 1


@given(owner=seats, others=seats, bucket=buckets)
def test_a_stand_in_is_in_another_rack_where_there_is_one(owner: list[Seat], others: list[Seat], bucket: int) -> None:
    chosen = stand_in(bucket, owner[0], others)
    assert chosen in others
    elsewhere = {seat.rack for seat in others} - {owner[0].rack}
    assert not (owner[0].rack and elsewhere) or (chosen is not None and chosen.rack in elsewhere)
    assert stand_in(bucket, owner[0], list(reversed(others))) == chosen


def test_the_buckets_of_one_owner_spread_over_its_stand_ins() -> None:
    others = [Seat(f"c{number}") for number in range(4)]
    chosen = [stand_in(bucket, Seat("owner"), others) for bucket in range(400)]
    assert all(60 <= chosen.count(seat) <= 140 for seat in others)
    assert stand_in(1, Seat("owner"), []) is None
