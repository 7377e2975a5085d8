"""The live consumers of each topic: who holds which name, and which buckets each leases from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dejaq.broker.carrier.balance import Reading, weigh
from dejaq.broker.carrier.consumer import Consumer
from dejaq.broker.carrier.dealer import deal, stand_in
from dejaq.domain.topic import Topic

# A new deal is made when a share is off by more than this part of it.
MOVE_SHARE = 0.15
# Messages that wait longer than this in a consumer show that it lags.
LAG_MS = 100


class Roster:
    """The consumers of one topic."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._named: dict[str, Consumer] = {}
        self._dealt: list[Consumer] = []
        self._ranges: dict[str, range] = {}
        self._by_bucket: dict[int, tuple[Consumer, ...]] = {}

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self._named.values()))

    def __len__(self) -> int:
        return len(self._named)

    @property
    def dealt(self) -> bool:
        """Whether anybody is subscribed."""
        return bool(self._dealt)

    def find(self, name: str) -> Consumer | None:
        """The live consumer of this name."""
        return self._named.get(name)

    def enter(self, consumer: Consumer) -> None:
        """Let a consumer in; one that has the same name is put out, because a name is one consumer.

        So a client that lost its connection takes its leases back at once, although the broker has not yet
        noticed the loss; and of two programs that share a name by mistake, the older is told.
        """
        old = self._named.get(consumer.name)
        if old is not None:
            consumer.follow(old.put_out())
        self._named[consumer.name] = consumer

    def leave(self, consumer: Consumer) -> None:
        """Let a consumer go, unless another has taken its name."""
        if self._named.get(consumer.name) is consumer:
            del self._named[consumer.name]
        self.redeal()

    def redeal(self) -> None:
        """Spread the buckets over those who are subscribed now."""
        self._dealt = [consumer for consumer in self._named.values() if consumer.subscribed]
        self._ranges = deal([consumer.seat for consumer in self._dealt], self.topic.settings.buckets)
        self.lend()

    def lend(self) -> None:
        """Let those who have room lease from the buckets of those who have none."""
        helpers = {consumer.name: consumer for consumer in self._dealt if not consumer.lending}
        seats = [helper.seat for helper in helpers.values()]
        lent: dict[str, list[int]] = {}
        self._by_bucket = {bucket: (consumer,) for consumer in self._dealt for bucket in self._ranges[consumer.name]}
        for consumer in self._dealt if len(helpers) < len(self._dealt) else ():
            if consumer.lending:
                for bucket in self._ranges[consumer.name]:
                    seat = stand_in(bucket, consumer.seat, seats)
                    if seat is not None:
                        lent.setdefault(seat.name, []).append(bucket)
                        self._by_bucket[bucket] = (consumer, helpers[seat.name])
        for consumer in self._dealt:
            consumer.assign(self._ranges[consumer.name], lent.get(consumer.name, ()))

    def balance(self, now: int) -> None:
        """Read how everybody does, and deal anew when the shares should be others by a good part."""
        readings = [_read(consumer, now) for consumer in self._dealt]
        if len(readings) < 2:
            return
        weights = weigh(readings)
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

    @property
    def hoarders(self) -> list[Consumer]:
        """Those whose messages others could have: somebody else has room and nothing to do."""
        idle = [consumer for consumer in self._dealt if consumer.idle and not consumer.lending]
        return [consumer for consumer in self._dealt if any(other is not consumer for other in idle)]

    def nudge(self, ts: int) -> None:
        """Tell everybody that something is now on the timeline at `ts`."""
        for consumer in self._dealt:
            consumer.nudge(ts)

    def nudge_buckets(self, ts: int, buckets: Iterable[int]) -> None:
        """Tell those who lease from `buckets` that something is now there at `ts`."""
        if self._dealt:
            for consumer in {consumer for bucket in buckets for consumer in self._by_bucket[bucket]}:
                consumer.nudge(ts)


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


class Rosters:
    """The rosters of every topic."""

    def __init__(self) -> None:
        self._by_number: dict[int, Roster] = {}

    def __iter__(self) -> Iterator[Roster]:
        return iter(list(self._by_number.values()))

    def of(self, topic: Topic) -> Roster:
        """The roster of a topic."""
        roster = self._by_number.get(topic.number)
        if roster is None:
            roster = self._by_number[topic.number] = Roster(topic)
        return roster

    def forget(self, topic: Topic) -> None:
        """Drop the roster of a topic that is gone."""
        self._by_number.pop(topic.number, None)
