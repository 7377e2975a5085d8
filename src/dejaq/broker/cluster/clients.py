"""Which consumers are connected to which broker: each broker publishes its own, and follows those of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from dejaq.broker.assignment.assignment import Seat
from dejaq.broker.background import Background
from dejaq.broker.cluster.connections import PeerConnections
from dejaq.broker.cluster.seats import (
    RECORDS,
    ConsumerKey,
    Place,
    Seats,
    broker_of,
    encode,
    record_key,
    record_of,
)
from dejaq.broker.delivery.peers import RemoteConsumer
from dejaq.broker.delivery.roster import Rosters
from dejaq.domain.topic import Topic
from dejaq.errors import DejaqError, SynchronizationFull
from dejaq.protocol.v1 import peer_pb2 as peer
from dejaq.synchronization.base import RecordChange, Synchronization
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 2.0
RETRY_SECONDS = 0.2
FULL_RETRY_SECONDS = 1.0
# Changes that come within this time after a write are written together.
GATHER_SECONDS = 0.02
# Records that are written in one step, and read in one step by the other brokers: at most so many bytes of them.
WRITE_BYTES = 32 * 1024


class Clients:
    """The consumers of the whole cluster, as this broker knows them."""

    def __init__(
        self,
        *,
        own: str,
        synchronization: Synchronization,
        rosters: Rosters,
        clock: Clock,
        background: Background,
        connections: PeerConnections,
    ) -> None:
        self._own = own
        self._synchronization = synchronization
        self._rosters = rosters
        self._clock = clock
        self._background = background
        self._connections = connections
        self._seats = Seats()
        # When each consumer came here; of two consumers of one name the later one has it.
        self._stamps: dict[ConsumerKey, int] = {}
        # Consumers that have changed since they were last published.
        self._changed: set[ConsumerKey] = set()
        self._some_changed = asyncio.Event()
        self._records = [PublishedRecord(number) for number in range(RECORDS)]

    # Those here

    def changed(self, topic: Topic, names: Iterable[str]) -> None:
        """These consumers of this broker have changed."""
        self._changed.update((topic.number, name) for name in names)
        if self._changed:
            self._some_changed.set()

    async def publish(self) -> None:
        """Publish the consumers of this broker to the others whenever they change, until cancelled."""
        while True:
            await self._some_changed.wait()
            self._some_changed.clear()
            await self._clock.sleep(await self._publish_changed())

    async def _publish_changed(self) -> float:
        """Write the records with consumers that have changed; returns how long to wait before the next time."""
        changed, self._changed = self._changed, set()
        for key in changed:
            self._note(key)
        writes = map(self._write, _groups([record for record in self._records if record.differs]))
        results = await asyncio.gather(*writes, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if not errors:
            return GATHER_SECONDS
        self._some_changed.set()
        for error in errors:
            if not isinstance(error, DejaqError):
                raise error
        log.info("the consumers of this broker cannot be published: %s", errors[0])
        full = any(isinstance(error, SynchronizationFull) for error in errors)
        return FULL_RETRY_SECONDS if full else RETRY_SECONDS

    def _note(self, key: ConsumerKey) -> None:
        """Note in its record what is known of a consumer of this broker now."""
        number, name = key
        roster = self._rosters.numbered(number)
        record = self._records[record_of(key)]
        if roster is not None and name in roster:
            record.put(key, self._stamps.get(key, 0), roster.seat_of(name))
        else:
            self._stamps.pop(key, None)
            record.remove(key)

    async def _write(self, records: Sequence[PublishedRecord]) -> None:
        keys = [record_key(self._own, record.number) for record in records]
        written = [(record.value, record.subscribed) for record in records]
        try:
            for key, (value, _) in zip(keys, written, strict=True):
                if not value:
                    await self._synchronization.remove(key)
            if values := {key: value for key, (value, _) in zip(keys, written, strict=True) if value}:
                await self._synchronization.put_bound(values)
        except SynchronizationFull:
            for key, record, (_, subscribed) in zip(keys, records, written, strict=True):
                if subscribed != record.written_subscribed:
                    # Removing is possible without space. The others then lease from all buckets, so that what is due in
                    # the buckets of a consumer that has left is delivered; the storage keeps them apart.
                    await self._synchronization.remove(key)
                    record.written, record.written_subscribed = b"", subscribed
            raise
        for record, (value, subscribed) in zip(records, written, strict=True):
            record.written, record.written_subscribed = value, subscribed

    def entered(self, topic: Topic, name: str, members: Mapping[str, object]) -> asyncio.Task[None] | None:
        """A consumer has connected; returns the task that ends the one of that name elsewhere, if there is one."""
        place = self._seats.of(topic.number).get(name)
        last = max(self._stamps.get((topic.number, name), 0), place.stamp if place is not None else 0)
        self._stamps[topic.number, name] = max(self._clock.now_us(), last + 1)
        if place is None or place.broker not in members:
            return None
        return self._background.spawn(self._take_over(place.broker, topic, name), name=f"take {name} over")

    async def _take_over(self, broker: str, topic: Topic, name: str) -> None:
        request = peer.LetGoRequest(topic=topic.number, consumer=name)
        try:
            await self._connections.call(broker, "Peer.LetGo", request, peer.LetGoResponse, FAREWELL_SECONDS)
        except DejaqError as error:
            log.info("broker %s did not let go of consumer %s: %s", broker, name, error)

    # Those at other brokers

    def records_changed(self, changes: Sequence[RecordChange]) -> None:
        """Take the records that other brokers published."""
        changed: dict[int, set[str]] = {}
        for change in changes:
            if broker_of(change.key) != self._own:
                value = None if change.record is None else change.record.value
                for number, name in self._seats.take(change.key, value):
                    changed.setdefault(number, set()).add(name)
        for number, names in changed.items():
            self._seats_changed(number, names)

    def _seats_changed(self, number: int, names: Iterable[str]) -> None:
        roster = self._rosters.numbered(number)
        if roster is None:
            return
        places = self._seats.of(number)
        for name in names:
            place = places.get(name)
            if place is not None and roster.find(name) and place.stamp > self._stamps.get((number, name), 0):
                self._background.spawn(roster.let_go(name), name=f"let {name} go to {place.broker}")
        roster.take_seats(names)

    def place_of(self, number: int, name: str) -> Place | None:
        """Where a consumer is connected, if that is another broker."""
        return self._seats.of(number).get(name)

    def seats(self, topic: Topic) -> dict[str, RemoteConsumer]:
        """The subscribed consumers at other brokers, by name."""
        places = self._seats.of(topic.number).items()
        return {name: RemoteConsumer(place.broker, place.seat) for name, place in places if place.seat is not None}

    def seat(self, topic: Topic, name: str) -> RemoteConsumer | None:
        """The subscribed consumer of this name at another broker; None where there is none."""
        place = self._seats.of(topic.number).get(name)
        return None if place is None or place.seat is None else RemoteConsumer(place.broker, place.seat)

    def count_at(self, number: int, broker: str) -> int:
        """How many consumers of a topic another broker has."""
        return self._seats.count(number, broker)


class PublishedRecord:
    """Some of this broker's consumers: as they are, and as they were last written."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.written = b""
        # The consumers in the record to which leases flow.
        self.written_subscribed: frozenset[ConsumerKey] = frozenset()
        self._consumers: dict[int, dict[str, tuple[int, Seat | None]]] = {}
        self._value: bytes | None = b""

    @property
    def differs(self) -> bool:
        """Whether it must be written."""
        return self.value != self.written

    @property
    def value(self) -> bytes:
        """The record as it should be written; empty without consumers."""
        if self._value is None:
            self._value = encode(self._consumers) if self._consumers else b""
        return self._value

    @property
    def subscribed(self) -> frozenset[ConsumerKey]:
        """The consumers to which leases flow."""
        return frozenset(
            (number, name) for number, named in self._consumers.items() for name, (_, seat) in named.items() if seat
        )

    def put(self, key: ConsumerKey, stamp: int, seat: Seat | None) -> None:
        """Add or change a consumer."""
        number, name = key
        self._consumers.setdefault(number, {})[name] = (stamp, seat)
        self._value = None

    def remove(self, key: ConsumerKey) -> None:
        """Remove a consumer."""
        number, name = key
        named = self._consumers.get(number, {})
        if named.pop(name, None) is not None:
            self._value = None
            if not named:
                del self._consumers[number]


def _groups(records: Iterable[PublishedRecord]) -> list[list[PublishedRecord]]:
    """Records in groups that are written together."""
    groups: list[list[PublishedRecord]] = []
    size = 0
    for record in records:
        size += len(record.value)
        if not groups or size > WRITE_BYTES:
            groups.append([])
            size = len(record.value)
        groups[-1].append(record)
    return groups
