"""The live consumers of each topic: their names, and the buckets that each leases from.

Buckets are assigned to the consumers of the whole cluster. Consumers of this broker are `ConnectedConsumer`s; of the
others only the name and the broker are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt

from dejaq.broker.assignment.assignment import Seat
from dejaq.broker.assignment.balance import PaceReading, weigh
from dejaq.broker.assignment.seating import Seating
from dejaq.broker.delivery.consumer import ConnectedConsumer
from dejaq.broker.delivery.inflight import mask_of
from dejaq.broker.delivery.pace import MEMORY_MS
from dejaq.broker.delivery.peers import NoPeers, Peers, ReleasedRows, RemoteConsumer
from dejaq.domain.batch import RowRange
from dejaq.domain.topic import Topic

# Buckets are assigned again when a share is off by more than this part of it.
MOVE_SHARE = 0.15
# Messages that wait longer than this in a consumer show that it lags.
LAG_MS = 100
# The pace of a consumer is published when it has changed by this part, and not more often than this. A change that may
# be chance, because it is less than so many standard deviations, is published less often.
PUBLISH_SHARE, CHANCE = 0.2, 3.0
PUBLISH_MS, PUBLISH_SLOW_MS = 500, 15_000
# With more consumers than this, changes that come within so long after a computation are handled together: longer after
# one of so many consumers, because each computation moves many buckets when hundreds of consumers come or go.
FLEET_CONSUMERS = 64
GATHER_SECONDS, GATHER_MANY_SECONDS, MANY_CHANGES = 0.02, 0.1, 16
# After so many consumers the event loop does other work: when they get other buckets, and when their pace is read.
APPLY_CONSUMERS = 64
BALANCE_CONSUMERS = 128


class Roster:
    """The consumers of one topic."""

    def __init__(self, topic: Topic, peers: Peers) -> None:
        self.topic = topic
        self._peers = peers
        self._named: dict[str, ConnectedConsumer] = {}
        # Consumers that have left and whose unpushed leases are being recalled.
        self._leaving: dict[str, asyncio.Task[None]] = {}
        # The consumers that take part in the assignment: those of this broker, and those of the others.
        self._subscribed: dict[str, ConnectedConsumer] = {}
        self._remote: dict[str, RemoteConsumer] = {}
        # By priority, a consumer with free credit takes the most urgent message, so each leases from every bucket.
        self._seating = None if topic.by_priority else Seating(topic.settings.buckets)
        # Names whose consumers have changed since the assignment was last computed, and the computation that runs.
        self._changed: set[str] = set()
        self._steps: Iterator[None] | None = None
        self._gathering = False
        self._gather_seconds = GATHER_SECONDS
        self._published_ms = 0

    def __iter__(self) -> Iterator[ConnectedConsumer]:
        return iter(list(self._named.values()))

    def __len__(self) -> int:
        return len(self._named)

    @property
    def names(self) -> list[str]:
        """The consumers of this broker, consumers that are leaving included."""
        return [*self._leaving.keys() | self._named.keys()]

    def __contains__(self, name: str) -> bool:
        return name in self._named or name in self._leaving

    def seat_of(self, name: str) -> Seat | None:
        """The seat of a consumer of this broker, if leases flow to it."""
        consumer = self._named.get(name)
        return consumer.seat if consumer is not None and consumer.subscribed else None

    @property
    def has_subscribers(self) -> bool:
        """Whether a consumer of this broker is subscribed."""
        return bool(self._subscribed)

    @property
    def has_consumers(self) -> bool:
        """Whether leases flow to a consumer of any broker."""
        return bool(self._subscribed or self._remote)

    @property
    def subscribed(self) -> list[ConnectedConsumer]:
        """The consumers of this broker to which leases flow."""
        return list(self._subscribed.values())

    @property
    def buckets_here(self) -> Sequence[int]:
        """The buckets whose consumers are connected here."""
        buckets = range(self.topic.settings.buckets)
        if self._seating is None or not self._remote:
            return buckets if self._subscribed else ()
        return [bucket for bucket in buckets if any(name in self._subscribed for name in self._seating.holders(bucket))]

    def find(self, name: str) -> ConnectedConsumer | None:
        """The live consumer of this name, if it is connected here."""
        return self._named.get(name)

    def broker_of(self, name: str) -> str | None:
        """The other broker that a consumer is connected to; None when it is connected here, or not known."""
        far = None if name in self._named else self._remote.get(name)
        return None if far is None else far.broker

    async def request_recall(self, name: str, lease_id: int, rows: Sequence[int]) -> ReleasedRows:
        """Ask a consumer of any broker to release rows that are not yet due; returns the rows it released."""
        consumer = self._named.get(name)
        if consumer is not None:
            return await consumer.release_rows(lease_id, rows)
        far = self._remote.get(name)
        if far is None:
            return ReleasedRows()
        return await self._peers.request_recall(far.broker, self.topic, name, lease_id, rows)

    def settled(self, name: str, lease_id: int, rows: Sequence[RowRange] | None) -> None:
        """A transaction has settled rows of a consumer of any broker; None for all rows of the lease."""
        consumer = self._named.get(name)
        if consumer is not None:
            consumer.settled(lease_id, None if rows is None else mask_of(rows))
        else:
            self._peers.settled(self.topic, name, lease_id, rows)

    def enter(self, consumer: ConnectedConsumer) -> None:
        """Add a consumer; the session of an earlier one of the same name is ended, because a name is one consumer.

        So a client that lost its connection has its leases again at once, although the broker has not yet
        noticed the loss; and of two programs that share a name by mistake, the older gets an error.
        """
        old = self._named.get(consumer.name)
        if old is not None:
            consumer.follow(old.put_out())
        else:
            consumer.follow(self._leaving.get(consumer.name) or self._peers.entered(self.topic, consumer.name))
        self._named[consumer.name] = consumer
        self._peers.changed(self.topic, (consumer.name,))

    def leave(self, consumer: ConnectedConsumer) -> None:
        """Remove a consumer, unless another has taken its name."""
        if self._named.get(consumer.name) is consumer:
            del self._named[consumer.name]
            farewell = consumer.unsubscribe()
            if farewell is not None and not farewell.done():
                self._leaving[consumer.name] = farewell
                farewell.add_done_callback(lambda task: self._left(consumer.name, task))
        self.reassign(consumer.name)

    def _left(self, name: str, farewell: asyncio.Task[None]) -> None:
        if self._leaving.get(name) is farewell:
            del self._leaving[name]
            self._peers.changed(self.topic, (name,))

    async def let_go(self, name: str) -> None:
        """End the session of a consumer that is now at another broker, and wait until its leases are recalled."""
        consumer = self._named.pop(name, None)
        farewell = self._leaving.get(name) if consumer is None else consumer.put_out()
        self.reassign(name)
        if farewell is not None:
            await asyncio.wait((farewell,))

    def reassign(self, *names: str) -> None:
        """These consumers of this broker have changed: assign the buckets again, and publish these consumers."""
        self.take_seats(names)
        self._peers.changed(self.topic, names)

    def reassign_all(self) -> None:
        """Every consumer of this broker may have changed."""
        self.reassign(*self._named)

    def take_all_seats(self) -> None:
        """Take the consumers of the other brokers for the first time."""
        self.take_seats(self._peers.seats(self.topic))

    def take_seats(self, names: Iterable[str]) -> None:
        """Assign the buckets again after changes of these consumers, at whichever broker they are."""
        self._changed.update(names)
        if self._steps is None and not self._gathering and self._changed:
            self._steps = self._assign()
            self._advance()

    @property
    def up_to_date(self) -> bool:
        """Whether the assignment contains every change of the consumers."""
        return not self._changed and self._steps is None and not self._gathering

    def sharing_changed(self, consumer: ConnectedConsumer) -> None:
        """A consumer of this broker began or stopped sharing its buckets."""
        if self._named.get(consumer.name) is consumer:
            self.take_seats((consumer.name,))
            if self._remote:
                self._peers.changed(self.topic, (consumer.name,))

    def _advance(self) -> None:
        """Compute a part of the assignment, and the next part after the event loop has done other work.

        Changes that come while it is computed are handled together afterwards. With many consumers, changes are
        gathered for a moment after each computation.
        """
        if self._steps is None:
            return
        try:
            for _ in self._steps:
                asyncio.get_running_loop().call_soon(self._advance)
                return
        except BaseException:
            self._steps = None
            raise
        self._steps = None
        if len(self._subscribed) + len(self._remote) > FLEET_CONSUMERS:
            self._gathering = True
            asyncio.get_running_loop().call_later(self._gather_seconds, self._end_gathering)
        elif self._changed:
            self.take_seats(())

    def _end_gathering(self) -> None:
        self._gathering = False
        self.take_seats(())

    def _assign(self) -> Iterator[None]:
        """Compute the assignment for the consumers that have changed, and apply what moved."""
        names, self._changed = self._changed, set()
        self._gather_seconds = GATHER_MANY_SECONDS if len(names) >= MANY_CHANGES else GATHER_SECONDS
        seats: dict[str, Seat] = {}
        gone: list[str] = []
        for name in names:
            consumer = self._named.get(name)
            far = self._peers.seat(self.topic, name)
            self._subscribed.pop(name, None)
            self._remote.pop(name, None)
            if consumer is not None and consumer.subscribed:
                self._subscribed[name] = consumer
                seats[name] = consumer.seat
            elif far is not None:
                self._remote[name] = far
                seats[name] = far.seat
            else:
                gone.append(name)
        if self._seating is None:
            for name in names & self._subscribed.keys():
                self._subscribed[name].assign(range(self.topic.settings.buckets))
            return
        yield from self._seating.change(seats, gone)
        for place, name in enumerate(self._seating.take_touched() | names):
            consumer = self._subscribed.get(name)
            if consumer is not None:
                consumer.assign(self._seating.own(name), self._seating.lent(name))
            if place % APPLY_CONSUMERS == APPLY_CONSUMERS - 1:
                yield

    def balance(self, now: int) -> Iterator[None]:
        """Read the pace of every consumer, and assign the buckets again when the shares should change clearly."""
        consumers = self.subscribed
        if len(consumers) + len(self._remote) < 2:
            return
        readings: dict[ConnectedConsumer, PaceReading] = {}
        for place, consumer in enumerate(consumers):
            readings[consumer] = _read(consumer, now)
            if place % BALANCE_CONSUMERS == BALANCE_CONSUMERS - 1:
                yield
        self._tell(readings, now)
        far = [_read_far(far.seat) for far in self._remote.values()]
        if not any(_needs_balance(reading) for reading in [*readings.values(), *far]):
            return
        weights = weigh([*readings.values(), *far])
        moved: list[str] = []
        for consumer in readings:
            weight = weights[consumer.name]
            # Small changes are not worth a new assignment; a weight near its start is set to its start.
            if abs(weight - consumer.start_weight) < consumer.start_weight / 20:
                weight = float(consumer.start_weight)
            if abs(weight - consumer.weight) > consumer.weight * MOVE_SHARE or weight == consumer.start_weight:
                if weight != consumer.weight:
                    moved.append(consumer.name)
                consumer.weight = weight
        if moved:
            self.reassign(*moved)

    def _tell(self, readings: Mapping[ConnectedConsumer, PaceReading], now: int) -> None:
        """Publish the pace of this broker's consumers when it has changed."""
        if not self._remote or now - self._published_ms < PUBLISH_MS:
            return
        news = [
            (consumer, reading)
            for consumer, reading in readings.items()
            if is_news(consumer.published, reading, now - consumer.published_ms)
        ]
        for consumer, reading in news:
            consumer.published, consumer.published_ms = reading, now
        if news:
            self._published_ms = now
            self._peers.changed(self.topic, [consumer.name for consumer, _ in news])

    @property
    def stalled(self) -> list[ConnectedConsumer]:
        """Consumers whose messages others could process: another consumer has free credit and nothing to do."""
        consumers = self.subscribed
        if any(not far.seat.sharing and not far.seat.lagging for far in self._remote.values()):
            # Whether a consumer at another broker is idle is not known; it keeps up, so it could take more.
            return [consumer for consumer in consumers if consumer.sharing or consumer.pace.wait_ms > LAG_MS]
        idle = [consumer for consumer in consumers if consumer.idle and not consumer.sharing]
        if len(idle) > 1:
            return consumers
        return [consumer for consumer in consumers if idle and consumer is not idle[0]]

    def notify(self, ts: int) -> None:
        """Notify every consumer of a new message at `ts`."""
        self.notify_local(ts)
        for broker in {far.broker for far in self._remote.values()}:
            self._peers.notify(broker, self.topic, ts, ())

    def notify_returned(self, ts: int, buckets: Iterable[int] | None) -> None:
        """Notify the consumers of `buckets`, or of all, of messages from `ts` on that a consumer has returned.

        Consumers that return messages often leave, and then brokers do not agree for a moment whose a bucket is.
        Each broker notifies those that have it in its own view.
        """
        returned = None if buckets is None or self._seating is None else list(buckets)
        if returned is None:
            self.notify(ts)
        elif returned:
            self.notify_local(ts, returned)
            for broker in {far.broker for far in self._remote.values()}:
                self._peers.notify(broker, self.topic, ts, returned)

    def notify_buckets(self, ts: int, buckets: Iterable[int]) -> None:
        """Notify the consumers of `buckets` of a new message at `ts`."""
        if self._seating is None:
            self.notify(ts)
            return
        if not self._subscribed and not self._remote:
            return
        far: dict[str, list[int]] = {}
        near: dict[str, ConnectedConsumer] = {}
        for bucket in buckets:
            for name in self._seating.holders(bucket):
                if name in self._subscribed:
                    near[name] = self._subscribed[name]
                elif name in self._remote:
                    far.setdefault(self._remote[name].broker, []).append(bucket)
        for consumer in near.values():
            consumer.notify(ts)
        for broker, theirs in far.items():
            self._peers.notify(broker, self.topic, ts, theirs)

    @property
    def is_fleet(self) -> bool:
        """Whether it has so many consumers that waking all of them is expensive."""
        return len(self._subscribed) + len(self._remote) > FLEET_CONSUMERS

    def notify_each(self, times: Mapping[int, int]) -> None:
        """Notify the consumers of each bucket of its first new message, by the time of that message."""
        if self._seating is None:
            self.notify(min(times.values()))
            return
        near: dict[str, int] = {}
        far: dict[str, dict[int, int]] = {}
        for bucket, ts in times.items():
            for name in self._seating.holders(bucket):
                if name in self._subscribed:
                    near[name] = min(ts, near.get(name, ts))
                elif name in self._remote:
                    far.setdefault(self._remote[name].broker, {})[bucket] = ts
        for name, ts in near.items():
            self._subscribed[name].notify(ts)
        for broker, theirs in far.items():
            self._peers.notify(broker, self.topic, min(theirs.values()), theirs)

    def notify_local(self, ts: int, buckets: Sequence[int] = ()) -> None:
        """Notify this broker's consumers of `buckets`, or all of them when none are named; called for other brokers."""
        for consumer in self._holders_here(buckets) if buckets else self.subscribed:
            consumer.notify(ts)

    def _holders_here(self, buckets: Iterable[int]) -> list[ConnectedConsumer]:
        """The consumers of this broker that lease from some buckets."""
        if self._seating is None:
            return self.subscribed
        names = {name for bucket in buckets for name in self._seating.holders(bucket)}
        return [self._subscribed[name] for name in names if name in self._subscribed]


def _read(consumer: ConnectedConsumer, now: int) -> PaceReading:
    consumer.pace.read(now)
    return PaceReading(
        name=consumer.name,
        start=consumer.start_weight,
        weight=consumer.weight,
        rate=consumer.pace.rate,
        lagging=consumer.sharing or consumer.rows_max is not None or consumer.pace.wait_ms > LAG_MS,
        busy=consumer.busy_until > now,
    )


def _read_far(seat: Seat) -> PaceReading:
    return PaceReading(name=seat.name, start=seat.start, weight=seat.weight, rate=seat.rate, lagging=seat.lagging)


def _needs_balance(reading: PaceReading) -> bool:
    return reading.lagging or reading.busy or reading.weight != reading.start


def is_news(published: PaceReading, reading: PaceReading, age_ms: int) -> bool:
    """Whether the other brokers must learn of a pace that was published `age_ms` ago.

    The rate of a consumer with few messages varies by chance all the time, so it is published seldom.
    """
    rate = max(published.rate, reading.rate, 1.0)
    clear = PUBLISH_SHARE * rate
    if age_ms < PUBLISH_SLOW_MS:
        clear = max(clear, CHANCE * sqrt(rate / (2 * MEMORY_MS / 1_000)))
    return published.lagging != reading.lagging or abs(published.rate - reading.rate) > clear


class Rosters:
    """The rosters of every topic."""

    def __init__(self) -> None:
        self.peers: Peers = NoPeers()
        self._by_number: dict[int, Roster] = {}

    def connect(self, peers: Peers) -> None:
        """Share consumers with these other brokers; called before the first roster is made."""
        self.peers = peers

    def __iter__(self) -> Iterator[Roster]:
        return iter(list(self._by_number.values()))

    def of(self, topic: Topic) -> Roster:
        """The roster of a topic."""
        roster = self._by_number.get(topic.number)
        if roster is None:
            roster = self._by_number[topic.number] = Roster(topic, self.peers)
            roster.take_all_seats()
        return roster

    def numbered(self, number: int) -> Roster | None:
        """The roster of the topic of this number, if it has been made."""
        return self._by_number.get(number)

    def renew(self, topic: Topic) -> None:
        """Take a topic whose settings have changed; its buckets and its kind never do."""
        roster = self._by_number.get(topic.number)
        if roster is not None:
            roster.topic = topic

    def forget(self, topic: Topic) -> None:
        """Drop the roster of a topic that is gone."""
        roster = self._by_number.pop(topic.number, None)
        if roster is not None:
            self.peers.changed(topic, roster.names)
