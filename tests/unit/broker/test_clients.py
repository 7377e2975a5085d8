"""What a broker publishes of its consumers: many small records, and after a change only those that differ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

from dejaq.broker.assignment.assignment import Seat
from dejaq.broker.background import Background
from dejaq.broker.cluster.clients import WRITE_BYTES, Clients
from dejaq.broker.cluster.connections import PeerConnections
from dejaq.broker.cluster.seats import PREFIX
from dejaq.broker.delivery.consumer import ConnectedConsumer
from dejaq.broker.delivery.peers import NoPeers
from dejaq.broker.delivery.roster import Rosters
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.synchronization.base import Record, RecordChange
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock

CONSUMERS = 2_000
TOPIC = Topic(name="t", number=7, settings=TopicSettings(buckets=1024), state=TopicStage.LIVE, created_ms=0)


class CountingSynchronization(LocalSynchronization):
    """Remembers the sizes of what is written."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.sizes: list[int] = []
        # What was written together: the sizes of each group.
        self.groups: list[list[int]] = []

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, bound: bool = False, comes_back: bool = True
    ) -> Record | None:
        self.sizes.append(len(value))
        return await super().put(key, value, expected=expected, bound=bound, comes_back=comes_back)

    async def put_bound(self, values: Mapping[str, bytes]) -> None:
        self.groups.append([len(value) for value in values.values()])
        await super().put_bound(values)


class Desk:
    """The part of a consumer that the roster uses."""

    subscribed = True
    sharing = False

    def __init__(self, name: str) -> None:
        self.name, self.seat = name, Seat(name, rack="rack-1")

    def assign(self, own: object, shared: object = ()) -> None:
        pass

    def follow(self, before: object) -> None:
        pass

    def unsubscribe(self) -> None:
        self.subscribed = False


class Publisher(NoPeers):
    """One broker with consumers, which publishes them."""

    def __init__(self, hub: Hub) -> None:
        self.synchronization = CountingSynchronization(hub)
        self.rosters = Rosters()
        background = Background()
        self.clients = Clients(
            own="a",
            synchronization=self.synchronization,
            rosters=self.rosters,
            clock=SystemClock(),
            background=background,
            connections=PeerConnections(background=background),
        )
        self.rosters.connect(self)

    def entered(self, topic: Topic, name: str) -> asyncio.Task[None] | None:
        return self.clients.entered(topic, name, {})

    def changed(self, topic: Topic, names: object) -> None:
        self.clients.changed(topic, names)  # type: ignore[arg-type]

    def join(self, name: str) -> ConnectedConsumer:
        consumer = cast(ConnectedConsumer, Desk(name))
        self.rosters.of(TOPIC).enter(consumer)
        self.rosters.of(TOPIC).reassign(name)
        return consumer


@asynccontextmanager
async def publishing(hub: Hub) -> AsyncIterator[Publisher]:
    publisher = Publisher(hub)
    await publisher.synchronization.open()
    task = asyncio.create_task(publisher.clients.publish())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def known_from(hub: Hub) -> Clients:
    """What another broker knows from the records."""
    background = Background()
    other = Clients(
        own="b",
        synchronization=LocalSynchronization(hub),
        rosters=Rosters(),
        clock=SystemClock(),
        background=background,
        connections=PeerConnections(background=background),
    )
    other.records_changed([RecordChange(record.key, record) for record in hub.under(PREFIX)])
    return other


async def test_two_thousand_consumers_are_many_small_records_and_a_change_rewrites_one() -> None:
    """D27: all consumers of a broker were in one record, which etcd limits to 1.5 MiB, and each change rewrote it."""
    hub = Hub()
    async with publishing(hub) as broker:
        consumers = [broker.join(f"consumer-{number}") for number in range(CONSUMERS)]
        await eventually(lambda: len(known_from(hub).seats(TOPIC)) == CONSUMERS, within=10)
        assert known_from(hub).count_at(TOPIC.number, "a") == CONSUMERS
        assert max(broker.synchronization.sizes) < 20_000, "a record stays far below the limit of etcd"
        broker.synchronization.sizes.clear()
        broker.rosters.of(TOPIC).leave(consumers[0])
        await eventually(lambda: len(known_from(hub).seats(TOPIC)) == CONSUMERS - 1, within=5)
        broker.join("one-more")
        await eventually(lambda: known_from(hub).place_of(TOPIC.number, "one-more") is not None, within=5)
        assert sum(broker.synchronization.sizes) < 20_000, "each change rewrote one record"


async def test_consumers_that_join_together_are_written_together() -> None:
    hub = Hub()
    async with publishing(hub) as broker:
        for number in range(CONSUMERS):
            broker.join(f"consumer-{number}")
        await eventually(lambda: len(known_from(hub).seats(TOPIC)) == CONSUMERS, within=10)
        assert len(broker.synchronization.sizes) <= 128


async def test_records_that_change_together_are_few_changes_of_bounded_size() -> None:
    """L7: 200 consumers that left were hundreds of writes, and the other brokers learned of them up to 6 s later."""
    hub = Hub()
    async with publishing(hub) as broker:
        for number in range(CONSUMERS):
            broker.join(f"consumer-{number}")
        await eventually(lambda: len(known_from(hub).seats(TOPIC)) == CONSUMERS, within=10)
        groups = broker.synchronization.groups
        assert max(map(sum, groups)) <= WRITE_BYTES
        assert sum(map(len, groups)) > 4 * len(groups)
        groups.clear()
        for number in range(0, CONSUMERS, 50):
            broker.rosters.of(TOPIC).leave(broker.rosters.of(TOPIC)._named[f"consumer-{number}"])
        left = CONSUMERS - CONSUMERS // 50
        await eventually(lambda: len(known_from(hub).seats(TOPIC)) == left, within=10)
        assert sum(map(len, groups)) > 20
        assert len(groups) <= 2 * CONSUMERS * 100 // WRITE_BYTES


async def test_the_records_of_a_topic_that_is_gone_are_removed() -> None:
    hub = Hub()
    async with publishing(hub) as broker:
        for number in range(10):
            broker.join(f"consumer-{number}")
        await eventually(lambda: len(known_from(hub).seats(TOPIC)) == 10, within=5)
        broker.rosters.forget(TOPIC)
        await eventually(lambda: not hub.under(PREFIX), within=5)
