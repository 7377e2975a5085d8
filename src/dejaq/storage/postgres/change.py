"""One change while it is made: where it happens, and what is written with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import floordiv

from dejaq.domain.topic import Topic
from dejaq.storage.outbox import Outbox
from dejaq.storage.postgres.database import Link
from dejaq.storage.postgres.keys import LeaseKeys

Away = Callable[[Topic, int], bool]
MINUTE_MS = 60_000
BUCKET_BITS = 10
_BUCKET_MASK = (1 << BUCKET_BITS) - 1


def places_of(topic: Topic, buckets: Iterable[int] | None = None) -> list[int]:
    """Where the messages of some buckets of a topic, or of all, stand."""
    first, sign = topic.number << BUCKET_BITS, -1 if topic.by_priority else 1
    return [sign * (first + bucket) for bucket in (range(topic.settings.buckets) if buckets is None else buckets)]


def bucket_at(place: int) -> int:
    """The bucket of a place."""
    return abs(place) & _BUCKET_MASK


def minutes_of(times: Iterable[int]) -> Counter[int]:
    """How many of the times lie in which minute."""
    return Counter(map(floordiv, times, repeat(MINUTE_MS)))


def _counted(times: Sequence[int], owners: str | Sequence[str]) -> Iterable[tuple[tuple[int, str], int]]:
    """How many of the times lie in which minute for which owner."""
    if not isinstance(owners, str):
        if not owners or owners.count(owners[0]) < len(owners):
            return Counter(zip(map(floordiv, times, repeat(MINUTE_MS)), owners, strict=True)).items()
        owners = owners[0]
    return [((minute, owners), rows) for minute, rows in minutes_of(times).items()]


@dataclass(slots=True)
class Gathered:
    """What the parts of a change have to say, to be written at its end."""

    outbox: Outbox | None
    counts: Counter[tuple[int, int, bool, str]] = field(default_factory=Counter)
    # A lease that was given: topic, id, end, consumer, keys.
    entered: tuple[int, int, int, str, LeaseKeys] | None = None
    # How many rows left which lease of which topic.
    settled: Counter[tuple[int, int]] = field(default_factory=Counter)
    # The name of the change was noted, or something else that nothing here tells of.
    noted: bool = False
    # Whether a bucket of a topic is on another shard; None where there is no other.
    away: Away | None = None
    # Whether messages were sent to another shard.
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction, as it concerns one topic. `finish` writes the record, the counts and the state of leases."""

    link: Link
    topic: Topic
    now: int
    # The number of the journal that is told, or None.
    origin: int | None
    gathered: Gathered

    @classmethod
    def begin(cls, link: Link, topic: Topic, now: int, origin: int | None, away: Away | None = None) -> Change:
        """A change that has said nothing yet."""
        return cls(link, topic, now, origin, Gathered(Outbox(0) if origin is not None else None, away=away))

    def on(self, topic: Topic) -> Change:
        """The same change, as it concerns another topic."""
        return replace(self, topic=topic)

    @property
    def outbox(self) -> Outbox | None:
        """Where this topic's events are told; None when they are not."""
        return self.gathered.outbox if self.topic.settings.journal else None

    def arrived(self, times: Sequence[int], owners: str | Sequence[str], *, held: bool) -> None:
        """Messages now stand at these times; `owners` is one for all, or one a message."""
        for (minute, owner), rows in _counted(times, owners):
            self.gathered.counts[self.topic.number, minute, held, owner] += rows

    def left(self, times: Sequence[int], owners: str | Sequence[str], *, held: bool) -> None:
        """Messages no longer stand at these times."""
        for (minute, owner), rows in _counted(times, owners):
            self.gathered.counts[self.topic.number, minute, held, owner] -= rows

    def entered(self, lease_id: int, expires: int, consumer: str, keys: LeaseKeys) -> None:
        """A lease was given."""
        self.gathered.entered = (self.topic.number, lease_id, expires, consumer, keys)

    def settled(self, lease_id: int, rows: int) -> None:
        """Rows left a lease."""
        self.gathered.settled[self.topic.number, lease_id] += rows

    async def finish(self) -> int:
        """Write what goes with the change, and nothing when nothing changed; the size of its record."""
        gathered, link = self.gathered, self.link
        entry = gathered.outbox.take(self.now) if gathered.outbox is not None else None
        counts = [(*key, rows) for key, rows in gathered.counts.items() if rows]
        if entry is None and not (counts or gathered.entered or gathered.settled or gathered.noted):
            return 0
        link.changes += 1
        topics, minutes, held, owners, rows = zip(*sorted(counts), strict=True) if counts else ((),) * 5
        leases = list(gathered.settled.items())
        await link.execute(
            "finish",
            self.origin,
            [entry[1]] if entry is not None else [],
            link.shard,
            topics,
            minutes,
            held,
            rows,
            *(gathered.entered[:4] if gathered.entered else (None, None, None, None)),
            gathered.entered[4].pack() if gathered.entered else None,
            [topic for (topic, _), _ in leases],
            [lease_id for (_, lease_id), _ in leases],
            [count for _, count in leases],
            link.writer,
            link.changes,
            gathered.entered[4].open if gathered.entered else None,
            owners,
        )
        return len(entry[1]) if entry is not None else 0
