"""The assignment of buckets: fair shares, the same assignment for the same names, and few moves after a change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dejaq.broker.assignment.assignment import Assignment, Seat, assign_buckets
from dejaq.broker.assignment.lending import Lending
from dejaq.broker.assignment.seating import Seating

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True)
buckets = st.integers(min_value=1, max_value=1024)


@settings(deadline=None)
@given(names=names, buckets=buckets)
def test_every_bucket_is_assigned_exactly_once(names: list[str], buckets: int) -> None:
    assigned = assign_buckets(map(Seat, names), buckets)
    assert sorted(bucket for share in assigned.values() for bucket in share) == list(range(buckets))
    assert set(assigned) == set(names)


@settings(deadline=None)
@given(names=names, buckets=buckets)
def test_shares_differ_by_one_at_most(names: list[str], buckets: int) -> None:
    sizes = [len(share) for share in assign_buckets(map(Seat, names), buckets).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(names=names, buckets=buckets, seed=st.integers())
def test_the_order_of_arrival_does_not_matter(names: list[str], buckets: int, seed: int) -> None:
    shuffled = list(names)
    random.Random(seed).shuffle(shuffled)
    assert assign_buckets(map(Seat, names), buckets) == assign_buckets(map(Seat, shuffled), buckets)


@pytest.mark.parametrize(("count", "buckets"), [(2, 64), (3, 64), (10, 64), (30, 1024)])
def test_a_consumer_that_joins_or_leaves_moves_few_buckets(count: int, buckets: int) -> None:
    """On average over many sets of names, at most twice as many buckets move as the share of the new consumer needs."""
    moved = 0
    for trial in range(20):
        names = [f"consumer-{trial}-{place}" for place in range(count + 1)]
        before, after = assign_buckets(map(Seat, names[:-1]), buckets), assign_buckets(map(Seat, names), buckets)
        moved += sum(len(set(after[name]) - set(before.get(name, ()))) for name in names)
    assert moved / 20 < 2 * buckets / (count + 1) + 1


def test_with_more_consumers_than_buckets_some_have_no_bucket() -> None:
    assigned = assign_buckets([Seat(f"c{n}") for n in range(5)], 2)
    assert sorted(len(share) for share in assigned.values()) == [0, 0, 0, 1, 1]


def test_without_consumers_no_bucket_is_assigned() -> None:
    assert assign_buckets([], 8) == {}


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
    assigned = assign_buckets(seats, buckets)
    total = sum(seat.weight for seat in seats)
    assert sorted(bucket for share in assigned.values() for bucket in share) == list(range(buckets))
    for seat in seats:
        assert abs(len(assigned[seat.name]) - buckets * seat.weight / total) <= 1


def changed(assignment: Assignment, weights: Mapping[str, int], gone: list[str]) -> int:
    """Apply a change, and check what it reports; returns the number of buckets that moved."""
    before = [assignment.owner(bucket) for bucket in range(1024)]
    for _ in assignment.change(weights, gone):
        pass
    after = [assignment.owner(bucket) for bucket in range(1024)]
    moved = {n: pair for n, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]}
    assert assignment.take_moved() == moved
    return len(moved)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(), equal=st.booleans())
def test_an_assignment_that_was_changed_step_by_step_is_the_one_computed_at_once(seed: int, equal: bool) -> None:
    chance = random.Random(seed)
    assignment, weights = Assignment(1024), dict[str, int]()
    for _ in range(8):
        # Few changes, and changes of most consumers; below, at and above the number of buckets.
        count = chance.choice([1, 2, 70, 600])
        new = {f"c{chance.randrange(1_200)}": 100 if equal else chance.randint(1, 10_000) for _ in range(count)}
        gone = [name for name in weights if name not in new and chance.random() < chance.choice([0.01, 0.9])]
        weights = {name: weight for name, weight in (weights | new).items() if name not in gone}
        changed(assignment, new, gone)
        expected = assign_buckets([Seat(name, weight) for name, weight in weights.items()], 1024)
        assert {name: assignment.of(name) for name in weights} == expected


def fleet(count: int, first: int = 0) -> dict[str, int]:
    return {f"consumer-{number}": 100 for number in range(first, first + count)}


def test_a_join_and_a_leave_in_a_fleet_cost_as_much_as_moves() -> None:
    assignment = Assignment(1024)
    changed(assignment, fleet(1_000), [])
    assert assignment.steps < 10_000, "even the first assignment does not score every consumer for every bucket"
    before, moved = assignment.steps, 0
    for number in range(1_000, 1_020):
        moved += changed(assignment, {f"consumer-{number}": 100}, [])
    for number in range(20):
        moved += changed(assignment, {}, [f"consumer-{number}"])
    assert moved < 40 * 30
    assert assignment.steps - before < 40 * 500


@pytest.mark.parametrize("weights", [fleet(1_000), {name: 50 + 3 * n for n, name in enumerate(fleet(1_000))}])
def test_the_shares_of_a_fleet_are_fair_after_a_fifth_has_left(weights: dict[str, int]) -> None:
    assignment = Assignment(1024)
    changed(assignment, weights, [])
    changed(assignment, {}, list(weights)[:200])
    left = dict(list(weights.items())[200:])
    for name, weight in left.items():
        assert abs(len(assignment.of(name)) - 1024 * weight / sum(left.values())) < 1
    assert sorted(bucket for name in left for bucket in assignment.of(name)) == list(range(1024))


def test_a_large_change_is_computed_in_small_steps() -> None:
    seating, done = Seating(1024), 0
    for _ in seating.change({name: Seat(name) for name in fleet(1_000)}, []):
        assert seating.steps - done <= 2_000
        done = seating.steps
    assert done


def helpers_of(seats_by_name: Mapping[str, Seat]) -> Mapping[str, tuple[str, ...]]:
    lending = Lending()
    for seat in seats_by_name.values():
        lending.put(seat)
    list(lending.take_changed())
    return {name: lending.of(name) for name in seats_by_name}


def changing_seats(chance: random.Random, count: int) -> Iterator[tuple[dict[str, Seat], str]]:
    """The state of `count` consumers after each change, and the name of the consumer that changed."""
    known: dict[str, Seat] = {}
    for _ in range(4 * count):
        name = f"c{chance.randrange(count)}"
        if name in known and chance.random() < 0.3:
            del known[name]
        else:
            rack = chance.choice(["", "r1", "r1", "r1", "r2"])
            known[name] = Seat(name, rack=rack, sharing=chance.random() < 0.5)
        yield known, name


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(), count=st.sampled_from([3, 10, 60]))
def test_helpers_are_the_same_whatever_the_order_of_the_changes(seed: int, count: int) -> None:
    chance, lending = random.Random(seed), Lending()
    reported: dict[str, tuple[str, ...]] = {}
    for known, name in changing_seats(chance, count):
        if name in known:
            lending.put(known[name])
        else:
            lending.remove(name)
        reported.update({one: lending.of(one) for one in lending.take_changed()})
        expected = helpers_of(known)
        assert {one: lending.of(one) for one in known} == expected
        assert {one: found for one, found in reported.items() if found} == {n: f for n, f in expected.items() if f}


@given(seats=seats)
def test_a_consumer_without_free_credit_is_helped_by_consumers_in_other_racks(seats: list[Seat]) -> None:
    known = {seat.name: Seat(seat.name, rack=seat.rack, sharing=seat.weight % 2 == 0) for seat in seats}
    free = {seat.name: seat for seat in known.values() if not seat.sharing}
    for name, helpers in helpers_of(known).items():
        owner = known[name]
        elsewhere = {other for other, seat in free.items() if seat.rack != owner.rack}
        possible = elsewhere if owner.rack and elsewhere else set(free)
        assert set(helpers) <= possible
        assert bool(helpers) == (owner.sharing and bool(free))


def test_the_rack_rule_and_the_weights_hold_in_a_fleet_of_a_thousand() -> None:
    """A fifth has no free credit; each of these is helped from another rack, and shares follow the weights."""
    chance = random.Random(8)
    seats = {
        name: Seat(name, weight=chance.randrange(50, 150), rack=f"r{number % 4}", sharing=number % 5 == 0)
        for number, name in enumerate(fleet(1_000))
    }
    seating = Seating(1024)
    for _ in seating.change(seats, []):
        pass
    assigned = assign_buckets(list(seats.values()), 1024)
    total = sum(seat.weight for seat in seats.values())
    for name, seat in seats.items():
        assert abs(len(assigned[name]) - 1024 * seat.weight / total) <= 1
    helpers = helpers_of(seats)
    for name, seat in seats.items():
        assert bool(helpers[name]) == seat.sharing
        assert all(seats[other].rack != seat.rack and not seats[other].sharing for other in helpers[name])


def test_replacing_half_of_a_fleet_moves_few_buckets_each_time() -> None:
    """500 of 1,000 consumers are replaced one after the other, as in a rollout."""
    assignment = Assignment(1024)
    names = list(fleet(1_000))
    changed(assignment, fleet(1_000), [])
    most = 0
    for number in range(500):
        most = max(most, changed(assignment, {f"new-{number}": 100}, []), changed(assignment, {}, [names[number]]))
    assert most <= 1024 // 20, "no change moves more than a twentieth of the buckets"
    present = [*names[500:], *(f"new-{number}" for number in range(500))]
    assert sorted(bucket for name in present for bucket in assignment.of(name)) == [*range(1024)]


def test_the_buckets_of_one_owner_spread_over_its_helpers() -> None:
    lending = Lending()
    for seat in (Seat("owner", sharing=True), *(Seat(f"c{number}") for number in range(4))):
        lending.put(seat)
    assert list(lending.take_changed()) == ["owner"]
    chosen = [lending.helper("owner", bucket) for bucket in range(400)]
    assert all(60 <= chosen.count(f"c{number}") <= 140 for number in range(4))
    assert lending.helper("c1", 1) is None


def test_in_a_fleet_a_change_of_free_credit_concerns_few_consumers() -> None:
    lending = Lending()
    chance = random.Random(1)
    seats = {name: Seat(name, sharing=chance.random() < 0.2) for name in fleet(1_000)}
    for seat in seats.values():
        lending.put(seat)
    list(lending.take_changed())
    before = lending.steps
    for name in list(seats)[:100]:
        lending.put(Seat(name, sharing=not seats[name].sharing))
        list(lending.take_changed())
    assert lending.steps - before < 100 * 16 * 20
