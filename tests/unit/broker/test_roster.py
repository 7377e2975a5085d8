"""Who leases from which bucket when consumers sit at several brokers and some of them lend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from dejaq.broker.carrier.consumer import Consumer
from dejaq.broker.carrier.dealer import Seat
from dejaq.broker.carrier.roster import Far, Nobody, Roster
from dejaq.broker.cluster import seats
from dejaq.domain.topic import Topic, TopicSettings, TopicState

BUCKETS = 24
TOPIC = Topic(name="t", number=7, settings=TopicSettings(buckets=BUCKETS), state=TopicState.LIVE, created_ms=0)
SEATS = {
    "stuck": Seat("stuck", rack="x", lending=True),
    "near": Seat("near", rack="x"),
    "far-1": Seat("far-1", rack="y"),
    "far-2": Seat("far-2", rack="y"),
}


class Cluster(Nobody):
    """Everybody who is not at one broker."""

    def __init__(self, here: str) -> None:
        self.here = here
        self.nudged: list[tuple[str, tuple[int, ...]]] = []

    def seats(self, topic: Topic) -> Mapping[str, Far]:
        return {name: Far(f"broker of {name}", seat) for name, seat in SEATS.items() if name != self.here}

    def nudge(self, broker: str, topic: Topic, ts: int, buckets: Any) -> None:
        self.nudged.append((broker, tuple(buckets)))


class Desk:
    """As much of a consumer as the roster asks for."""

    subscribed = True

    def __init__(self, seat: Seat) -> None:
        self.name, self.seat, self.lending = seat.name, seat, seat.lending
        self.own: Sequence[int] = ()
        self.lent: Sequence[int] = ()
        self.nudged: list[int] = []

    def assign(self, own: Sequence[int], lent: Sequence[int] = ()) -> None:
        self.own, self.lent = own, lent

    def follow(self, before: object) -> None:
        pass

    def nudge(self, ts: int) -> None:
        self.nudged.append(ts)


def seated(name: str) -> tuple[Roster, Desk, Cluster]:
    """One consumer at a broker of its own, which knows of the others."""
    cluster, desk = Cluster(name), Desk(SEATS[name])
    roster = Roster(TOPIC, cluster)
    roster.enter(cast(Consumer, desk))
    roster.take_seats()
    return roster, desk, cluster


def test_those_in_another_rack_stand_in_and_every_broker_finds_the_same() -> None:
    desks = {name: seated(name)[1] for name in SEATS}
    assert sorted(bucket for desk in desks.values() for bucket in desk.own) == list(range(BUCKETS))
    lent = {name: set(desk.lent) for name, desk in desks.items()}
    assert lent["far-1"] | lent["far-2"] == set(desks["stuck"].own)
    assert not lent["far-1"] & lent["far-2"]
    assert lent["near"] == lent["stuck"] == set()


def test_who_stands_in_at_another_broker_is_told_of_what_comes() -> None:
    roster, desk, cluster = seated("stuck")
    bucket = desk.own[0]
    roster.nudge_buckets(5, [bucket])
    assert desk.nudged == [5]
    [(broker, buckets)] = cluster.nudged
    assert (broker.startswith("broker of far-"), buckets) == (True, (bucket,))
    there, helper, _ = seated(broker.removeprefix("broker of "))
    there.nudge_here(6, [bucket])
    assert helper.nudged == [6]


@pytest.mark.parametrize("told", [(100, "x"), (100, "x", 50, 7, True, True), (100, "x", 50, 7, True, True, "newer")])
def test_brokers_of_other_releases_are_understood(told: tuple[Any, ...]) -> None:
    known = seats.Seats()
    record = (
        b'{"consumers": {"7": {"c": [3, %s]}}}' % str(list(told)).replace("'", '"').replace("True", "true").encode()
    )
    assert known.tell("b", record) == {7}
    seat = known.of(7)["c"].seat
    assert seat is not None
    assert (seat.weight, seat.rack, seat.lending) == (100, "x", len(told) > 2)
