"""The live consumers of each topic: who holds which name, and which buckets each leases from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dejaq.broker.carrier.consumer import Consumer
from dejaq.broker.carrier.dealer import deal
from dejaq.domain.topic import Topic


class Roster:
    """The consumers of one topic."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._named: dict[str, Consumer] = {}
        self._dealt: list[Consumer] = []
        self._by_bucket: dict[int, Consumer] = {}

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
        ranges = deal([consumer.name for consumer in self._dealt], self.topic.settings.buckets)
        self._by_bucket = {bucket: consumer for consumer in self._dealt for bucket in ranges[consumer.name]}
        for consumer in self._dealt:
            consumer.assign(ranges[consumer.name])

    def nudge(self, ts: int) -> None:
        """Tell everybody that something is now on the timeline at `ts`."""
        for consumer in self._dealt:
            consumer.nudge(ts)

    def nudge_buckets(self, ts: int, buckets: Iterable[int]) -> None:
        """Tell those who lease from `buckets` that something is now there at `ts`."""
        if self._dealt:
            for consumer in {self._by_bucket[bucket] for bucket in buckets}:
                consumer.nudge(ts)


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
