"""The buckets that consumers at several brokers lease from, when some consumers share their buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dejaq.broker.assignment.assignment import Seat
from dejaq.broker.assignment.balance import PaceReading
from dejaq.broker.cluster import seats
from dejaq.broker.delivery import roster as roster_module
from dejaq.broker.delivery.consumer import ConnectedConsumer
from dejaq.broker.delivery.peers import NoPeers, RemoteConsumer
from dejaq.broker.delivery.roster import (
    FLEET_CONSUMERS,
    GATHER_MANY_SECONDS,
    GATHER_SECONDS,
    MANY_CHANGES,
    PUBLISH_SLOW_MS,
    Roster,
    is_news,
)
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.testing.waiting import eventually

BUCKETS = 24
TOPIC = Topic(name="t", number=7, settings=TopicSettings(buckets=BUCKETS), state=TopicStage.LIVE, created_ms=0)
SEATS = {
    "stuck": Seat("stuck", rack="x", sharing=True),
    "near": Seat("near", rack="x"),
    "far-1": Seat("far-1", rack="y"),
    "far-2": Seat("far-2", rack="y"),
}


class Cluster(NoPeers):
    """The consumers that are connected to other brokers."""

    def __init__(self, here: str) -> None:
        self.here = here
        self.notified: list[tuple[str, tuple[int, ...]]] = []

    def seats(self, topic: Topic) -> Mapping[str, RemoteConsumer]:
        return {name: RemoteConsumer(f"broker of {name}", seat) for name, seat in SEATS.items() if name != self.here}

    def seat(self, topic: Topic, name: str) -> RemoteConsumer | None:
        return self.seats(topic).get(name)

    def notify(self, broker: str, topic: Topic, ts: int, buckets: Any) -> None:
        self.notified.append((broker, tuple(buckets)))


class Desk:
    """The part of a consumer that the roster uses."""

    subscribed = True

    def __init__(self, seat: Seat) -> None:
        self.name, self.seat, self.sharing = seat.name, seat, seat.sharing
        self.own: Sequence[int] = ()
        self.shared_buckets: Sequence[int] = ()
        self.notified: list[int] = []

    def assign(self, own: Sequence[int], shared_buckets: Sequence[int] = ()) -> None:
        self.own, self.shared_buckets = own, shared_buckets

    def follow(self, before: object) -> None:
        pass

    def notify(self, ts: int) -> None:
        self.notified.append(ts)


def seated(name: str) -> tuple[Roster, Desk, Cluster]:
    """One consumer at a broker of its own, which knows the other consumers."""
    cluster, desk = Cluster(name), Desk(SEATS[name])
    roster = Roster(TOPIC, cluster)
    roster.enter(cast(ConnectedConsumer, desk))
    roster.take_all_seats()
    roster.take_seats([name])
    return roster, desk, cluster


def test_consumers_in_another_rack_take_over_and_every_broker_computes_the_same() -> None:
    desks = {name: seated(name)[1] for name in SEATS}
    assert sorted(bucket for desk in desks.values() for bucket in desk.own) == list(range(BUCKETS))
    shared_buckets = {name: set(desk.shared_buckets) for name, desk in desks.items()}
    assert shared_buckets["far-1"] | shared_buckets["far-2"] == set(desks["stuck"].own)
    assert not shared_buckets["far-1"] & shared_buckets["far-2"]
    assert shared_buckets["near"] == shared_buckets["stuck"] == set()


def test_a_substitute_at_another_broker_is_notified_of_new_messages() -> None:
    roster, desk, cluster = seated("stuck")
    bucket = desk.own[0]
    roster.notify_buckets(5, [bucket])
    assert desk.notified == [5]
    [(broker, buckets)] = cluster.notified
    assert (broker.startswith("broker of far-"), buckets) == (True, (bucket,))
    there, helper, _ = seated(broker.removeprefix("broker of "))
    there.notify_local(6, [bucket])
    assert helper.notified == [6]


def test_every_broker_is_notified_of_messages_that_a_consumer_returns() -> None:
    """L7: the brokers did not agree whose the buckets of 200 leaving consumers were, and notices went to nobody."""
    roster, desk, cluster = seated("near")
    mine = desk.own[0]
    theirs = next(bucket for bucket in range(BUCKETS) if bucket not in desk.own)
    roster.notify_returned(5, {theirs})
    assert desk.notified == []
    roster.notify_returned(6, {mine})
    assert desk.notified == [6]
    others = {f"broker of {name}" for name in SEATS if name != "near"}
    assert sorted(cluster.notified) == sorted((broker, (bucket,)) for broker in others for bucket in (mine, theirs))
    roster.notify_returned(7, set())
    assert desk.notified == [6], "nothing was returned"


async def test_changes_of_many_consumers_are_gathered_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """L7: 200 consumers that left were 40 computations at each broker, which moved 1,700 buckets instead of 500."""
    waits = list[float]()
    loop = SimpleNamespace(
        call_soon=asyncio.get_running_loop().call_soon, call_later=lambda wait, _: waits.append(wait)
    )
    monkeypatch.setattr(roster_module, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    roster = Roster(TOPIC, NoPeers())
    for number in range(FLEET_CONSUMERS + 1):
        roster.enter(cast(ConnectedConsumer, Desk(Seat(f"c{number}"))))
    roster.take_seats(roster.names)
    await eventually(lambda: waits == [GATHER_MANY_SECONDS], within=5)
    roster.take_seats([f"c{number}" for number in range(MANY_CHANGES - 1)])
    assert not roster.up_to_date
    roster._end_gathering()
    await eventually(lambda: waits == [GATHER_MANY_SECONDS, GATHER_SECONDS], within=5)


@pytest.mark.parametrize("fields", [(100, "x"), (100, "x", 50, 7, True, True), (100, "x", 50, 7, True, True, "newer")])
def test_brokers_of_other_releases_are_understood(fields: tuple[Any, ...]) -> None:
    known = seats.Seats()
    record = (
        b'{"consumers": {"7": {"c": [3, %s]}}}' % str(list(fields)).replace("'", '"').replace("True", "true").encode()
    )
    assert known.take("clients/b", record) == {(7, "c")}
    place = known.of(7)["c"]
    seat = place.seat
    assert place.broker == "b"
    assert seat is not None
    assert (seat.weight, seat.rack, seat.sharing) == (100, "x", len(fields) > 2)


@pytest.mark.parametrize(
    ("before", "after", "age_ms", "news"),
    [
        (2.0, 3.5, 1_000, False),
        (2.0, 3.5, PUBLISH_SLOW_MS, True),
        (0.0, 2.0, 1_000, False),
        (0.0, 50.0, 0, True),
        (1_000.0, 1_100.0, PUBLISH_SLOW_MS, False),
        (1_000.0, 1_300.0, 0, True),
    ],
)
def test_a_pace_that_may_vary_by_chance_is_published_seldom(
    before: float, after: float, age_ms: int, news: bool
) -> None:
    """L7: the paces of 1,000 consumers with two messages per second were published twice per second."""

    def reading(rate: float, *, lagging: bool = False) -> PaceReading:
        return PaceReading("c", start=1, weight=1.0, rate=rate, lagging=lagging)

    assert is_news(reading(before), reading(after), age_ms) is news
    assert is_news(reading(before), reading(before, lagging=True), 0)
