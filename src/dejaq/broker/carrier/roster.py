"""The live consumers of each topic: who holds which name, and which buckets each leases from.

Buckets are dealt over the consumers of the whole cluster. Those that are connected here are `Consumer`s; of the others
only the name and the broker are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dejaq.broker.carrier.balance import Reading, weigh
from dejaq.broker.carrier.consumer import Consumer
from dejaq.broker.carrier.dealer import Seat, deal, stand_in
from dejaq.domain.topic import Topic

# A new deal is made when a share is off by more than this part of it.
MOVE_SHARE = 0.15
# Messages that wait longer than this in a consumer show that it lags.
LAG_MS = 100
# Other brokers are told when a rate has changed by this part, and not more often than this.
TELL_SHARE = 0.2
TELL_MS = 500


@dataclass(frozen=True, slots=True)
class Far:
    """A consumer that is connected to another broker."""

    broker: str
    seat: Seat


class Outside(Protocol):
    """The other brokers of the cluster, as far as the rosters need them."""

    def seats(self, topic: Topic) -> Mapping[str, Far]:
        """The subscribed consumers that are connected elsewhere, by name."""

    def entered(self, topic: Topic, name: str) -> asyncio.Task[None] | None:
        """A consumer came here; gives the farewell of the one of that name elsewhere, if there is one."""

    def changed(self, topic: Topic) -> None:
        """The consumers that are connected here are others now."""

    def nudge(self, broker: str, topic: Topic, ts: int, buckets: Iterable[int]) -> None:
        """Something is now at `ts` on a timeline whose consumers are connected there; no buckets: all."""

    async def ask_back(self, broker: str, topic: Topic, name: str, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask a consumer that is connected there for rows that are not yet due; gives those it has let go of."""


class Nobody:
    """There is no other broker."""

    def seats(self, topic: Topic) -> Mapping[str, Far]:
        """None."""
        return {}

    def entered(self, topic: Topic, name: str) -> asyncio.Task[None] | None:
        """Nobody else has the name."""
        return None

    def changed(self, topic: Topic) -> None:
        """Nobody is to be told."""

    def nudge(self, broker: str, topic: Topic, ts: int, buckets: Iterable[int]) -> None:
        """Nobody is there."""

    async def ask_back(self, broker: str, topic: Topic, name: str, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Nobody lets go of anything."""
        return []


class Roster:
    """The consumers of one topic."""

    def __init__(self, topic: Topic, outside: Outside) -> None:
        self.topic = topic
        self._outside = outside
        self._named: dict[str, Consumer] = {}
        # Consumers that have left and whose unfinished leases are being given back.
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._dealt: list[Consumer] = []
        self._far: Mapping[str, Far] = {}
        self._ranges: dict[str, Sequence[int]] = {}
        # Who leases from each bucket: consumers here, and the brokers where others are.
        self._by_bucket: dict[int, tuple[Consumer | str, ...]] = {}
        self._told_ms = 0

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self._named.values()))

    def __len__(self) -> int:
        return len(self._named)

    @property
    def names(self) -> dict[str, Seat | None]:
        """Who is connected here, with its seat if leases flow; those who are just leaving included."""
        here = {consumer.name: consumer.seat if consumer.subscribed else None for consumer in self._named.values()}
        return dict.fromkeys(self._leaving) | here

    @property
    def dealt(self) -> bool:
        """Whether anybody is subscribed here."""
        return bool(self._dealt)

    @property
    def buckets_here(self) -> list[int]:
        """The buckets whose consumers are connected here."""
        return [
            bucket
            for bucket, holders in self._by_bucket.items()
            if any(not isinstance(holder, str) for holder in holders)
        ]

    def find(self, name: str) -> Consumer | None:
        """The live consumer of this name, if it is connected here."""
        return self._named.get(name)

    async def ask_back(self, name: str, lease_id: int, rows: Sequence[int]) -> list[int]:
        """Ask a consumer, wherever it is connected, for rows that are not yet due; gives those it has let go of."""
        consumer = self._named.get(name)
        if consumer is not None:
            return await consumer.ask_back(lease_id, rows)
        far = self._far.get(name)
        return [] if far is None else await self._outside.ask_back(far.broker, self.topic, name, lease_id, rows)

    def enter(self, consumer: Consumer) -> None:
        """Let a consumer in; one that has the same name is put out, because a name is one consumer.

        So a client that lost its connection takes its leases back at once, although the broker has not yet
        noticed the loss; and of two programs that share a name by mistake, the older is told.
        """
        old = self._named.get(consumer.name)
        if old is not None:
            consumer.follow(old.put_out())
        else:
            consumer.follow(self._leaving.get(consumer.name) or self._outside.entered(self.topic, consumer.name))
        self._named[consumer.name] = consumer
        self._outside.changed(self.topic)

    def leave(self, consumer: Consumer) -> None:
        """Let a consumer go, unless another has taken its name."""
        if self._named.get(consumer.name) is consumer:
            del self._named[consumer.name]
            farewell = consumer.unsubscribe()
            if farewell is not None and not farewell.done():
                self._leaving[consumer.name] = farewell
                farewell.add_done_callback(lambda task: self._left(consumer.name, task))
        self.redeal()

    def _left(self, name: str, farewell: asyncio.Task[None]) -> None:
        if self._leaving.get(name) is farewell:
            del self._leaving[name]
            self._outside.changed(self.topic)

    async def let_go(self, name: str) -> None:
        """End the session of a consumer that is now connected elsewhere, and wait for its farewell."""
        consumer = self._named.pop(name, None)
        farewell = self._leaving.get(name) if consumer is None else consumer.put_out()
        self.redeal()
        if farewell is not None:
            await asyncio.wait((farewell,))

    def redeal(self) -> None:
        """Spread the buckets over those who are subscribed now, and tell the others who is here."""
        self.take_seats()
        self._outside.changed(self.topic)

    def take_seats(self) -> None:
        """Spread the buckets over those who are subscribed now, here and elsewhere."""
        self._dealt = [consumer for consumer in self._named.values() if consumer.subscribed]
        here = {consumer.name for consumer in self._dealt}
        self._far = {name: far for name, far in self._outside.seats(self.topic).items() if name not in here}
        seats = [consumer.seat for consumer in self._dealt] + [far.seat for far in self._far.values()]
        buckets = self.topic.settings.buckets
        # By priority, whoever has room takes the most urgent message of all, so everybody leases from everywhere.
        self._ranges = {seat.name: range(buckets) for seat in seats} if self.topic.by_priority else deal(seats, buckets)
        self.lend()

    def lending_changed(self) -> None:
        """Somebody here lends or lends no more."""
        self.lend()
        if self._far:
            self._outside.changed(self.topic)

    def lend(self) -> None:
        """Let those who have room lease from the buckets of those who have none, wherever they are connected.

        Every broker finds the same stand-ins, and has its own consumers lease.
        """
        if self.topic.by_priority:
            self._by_bucket = dict.fromkeys(range(self.topic.settings.buckets), tuple(self._dealt))
            for consumer in self._dealt:
                consumer.assign(self._ranges[consumer.name])
            return
        places: dict[str, Consumer | str] = {consumer.name: consumer for consumer in self._dealt}
        places |= {name: far.broker for name, far in self._far.items()}
        seats = [consumer.seat for consumer in self._dealt] + [far.seat for far in self._far.values()]
        helpers = [seat for seat in seats if not seat.lending]
        lent: dict[str, list[int]] = {}
        self._by_bucket = {bucket: (places[seat.name],) for seat in seats for bucket in self._ranges[seat.name]}
        for lender in seats if len(helpers) < len(seats) else ():
            for bucket in self._ranges[lender.name] if lender.lending else ():
                seat = stand_in(bucket, lender, helpers)
                if seat is not None:
                    lent.setdefault(seat.name, []).append(bucket)
                    self._by_bucket[bucket] = (places[lender.name], places[seat.name])
        for consumer in self._dealt:
            consumer.assign(self._ranges[consumer.name], lent.get(consumer.name, ()))

    def balance(self, now: int) -> None:
        """Read how everybody does, and deal anew when the shares should be others by a good part."""
        readings = {consumer: _read(consumer, now) for consumer in self._dealt}
        if len(readings) + len(self._far) < 2:
            return
        self._tell(readings, now)
        weights = weigh([*readings.values(), *(_read_far(far.seat) for far in self._far.values())])
        moved = False
        for consumer in self._dealt:
            weight = weights[consumer.name]
            # Small changes are not worth a new deal; who is nearly back where it began is there.
            if abs(weight - consumer.start_weight) < consumer.start_weight / 20:
                weight = float(consumer.start_weight)
            if abs(weight - consumer.weight) > consumer.weight * MOVE_SHARE or weight == consumer.start_weight:
                moved = moved or weight != consumer.weight
                consumer.weight = weight
        if moved:
            self.redeal()

    def _tell(self, readings: Mapping[Consumer, Reading], now: int) -> None:
        """Tell the other brokers how those here do, when that is news."""
        if not self._far or now - self._told_ms < TELL_MS:
            return
        news = [(consumer, reading) for consumer, reading in readings.items() if _is_news(consumer.told, reading)]
        for consumer, reading in news:
            consumer.told = reading
        if news:
            self._told_ms = now
            self._outside.changed(self.topic)

    @property
    def hoarders(self) -> list[Consumer]:
        """Those whose messages others could have: somebody else has room and nothing to do."""
        if any(not far.seat.lending and not far.seat.lagging for far in self._far.values()):
            # Whether one elsewhere is idle right now is not known; it keeps up, so that it would take more.
            return [consumer for consumer in self._dealt if consumer.lending or consumer.pace.wait_ms > LAG_MS]
        idle = [consumer for consumer in self._dealt if consumer.idle and not consumer.lending]
        return [consumer for consumer in self._dealt if any(other is not consumer for other in idle)]

    def nudge(self, ts: int) -> None:
        """Tell everybody that something is now on the timeline at `ts`."""
        self.nudge_here(ts)
        for broker in {far.broker for far in self._far.values()}:
            self._outside.nudge(broker, self.topic, ts, ())

    def nudge_buckets(self, ts: int, buckets: Iterable[int]) -> None:
        """Tell those who lease from `buckets` that something is now there at `ts`."""
        if self.topic.by_priority:
            self.nudge(ts)
            return
        if not self._by_bucket:
            return
        far: dict[str, list[int]] = {}
        near: set[Consumer] = set()
        for bucket in buckets:
            for holder in self._by_bucket[bucket]:
                if isinstance(holder, str):
                    far.setdefault(holder, []).append(bucket)
                else:
                    near.add(holder)
        for consumer in near:
            consumer.nudge(ts)
        for broker, theirs in far.items():
            self._outside.nudge(broker, self.topic, ts, theirs)

    def nudge_here(self, ts: int, buckets: Iterable[int] = ()) -> None:
        """Tell those who are connected here and lease from `buckets`, all without any; what another broker asks for."""
        holders = [self._by_bucket.get(bucket, ()) for bucket in buckets] or [tuple(self._dealt)]
        for holder in {holder for held in holders for holder in held}:
            if not isinstance(holder, str):
                holder.nudge(ts)


def _read(consumer: Consumer, now: int) -> Reading:
    consumer.pace.read(now)
    return Reading(
        name=consumer.name,
        start=consumer.start_weight,
        weight=consumer.weight,
        rate=consumer.pace.rate,
        lagging=consumer.lending or consumer.rows_max is not None or consumer.pace.wait_ms > LAG_MS,
        busy=consumer.busy_until > now,
    )


def _read_far(seat: Seat) -> Reading:
    return Reading(name=seat.name, start=seat.start, weight=seat.weight, rate=seat.rate, lagging=seat.lagging)


def _is_news(told: Reading, reading: Reading) -> bool:
    return told.lagging != reading.lagging or abs(told.rate - reading.rate) > TELL_SHARE * max(told.rate, 1.0)


class Rosters:
    """The rosters of every topic."""

    def __init__(self, outside: Outside | None = None) -> None:
        self.outside: Outside = outside if outside is not None else Nobody()
        self._by_number: dict[int, Roster] = {}

    def __iter__(self) -> Iterator[Roster]:
        return iter(list(self._by_number.values()))

    def of(self, topic: Topic) -> Roster:
        """The roster of a topic."""
        roster = self._by_number.get(topic.number)
        if roster is None:
            roster = self._by_number[topic.number] = Roster(topic, self.outside)
            roster.take_seats()
        return roster

    def numbered(self, number: int) -> Roster | None:
        """The roster of the topic of this number, if anybody has asked for it."""
        return self._by_number.get(number)

    def forget(self, topic: Topic) -> None:
        """Drop the roster of a topic that is gone."""
        self._by_number.pop(topic.number, None)
