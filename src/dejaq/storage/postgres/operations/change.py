"""The state of one change in progress: its place, and the records that are written with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.storage.outbox import Outbox
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.keys import LeaseKeys
from dejaq.storage.postgres.operations.counting import CountChanges

Away = Callable[[Topic, int], bool]
BUCKET_BITS = 10
_BUCKET_MASK = (1 << BUCKET_BITS) - 1


def places_of(topic: Topic, buckets: Iterable[int] | None = None) -> list[int]:
    """The places in the table of the messages of some buckets of a topic, or of all."""
    first, sign = topic.number << BUCKET_BITS, -1 if topic.by_priority else 1
    return [sign * (first + bucket) for bucket in (range(topic.settings.buckets) if buckets is None else buckets)]


def bucket_at(place: int) -> int:
    """The bucket of a place."""
    return abs(place) & _BUCKET_MASK


@dataclass(slots=True)
class Gathered:
    """Results of the parts of a change, which are written at its end."""

    outbox: Outbox | None
    counts: CountChanges = field(default_factory=CountChanges)
    # New leases: topic, id, end, consumer, keys.
    entered: list[tuple[int, int, int, str, LeaseKeys]] = field(default_factory=list)
    # How many rows left a lease, by topic and lease.
    settled: Counter[tuple[int, int]] = field(default_factory=Counter)
    # Whether the change also wrote rows that are not counted here, such as its name.
    noted: bool = False
    # Whether a bucket of a topic is on another shard; None when there is no other shard.
    away: Away | None = None
    # Whether messages were sent to another shard.
    sent: bool = False
    # The number of minutes that were counted as a list.
    listed: int = 0
    # Whether all rows were decided before: then no limit is checked.
    decided: bool = False


@dataclass(frozen=True, slots=True)
class TopicTransaction:
    """A transaction for the messages of one topic. `finish` writes the record, the counts and the state of leases."""

    link: PostgresLink
    topic: Topic
    now: int
    context: CallContext
    # The number of the journal that records the change, or None.
    origin: int | None
    gathered: Gathered

    @classmethod
    def begin(
        cls,
        link: PostgresLink,
        topic: Topic,
        now: int,
        context: CallContext,
        origin: int | None,
        away: Away | None = None,
    ) -> TopicTransaction:
        """A change without any events yet."""
        return cls(link, topic, now, context, origin, Gathered(Outbox(0) if origin is not None else None, away=away))

    def on(self, topic: Topic) -> TopicTransaction:
        """The same change for the messages of another topic."""
        return replace(self, topic=topic)

    @property
    def outbox(self) -> Outbox | None:
        """The outbox for the events of this topic; None if the topic has no journal."""
        return self.gathered.outbox if self.topic.settings.journal else None

    def arrived(self, times: Sequence[int], owners: str | Sequence[str], *, held: bool) -> None:
        """Count messages that now have these times; `owners` is one for all, or one per message."""
        self.gathered.counts.add(self.topic.number, times, owners, held=held)

    def left(self, times: Sequence[int], owners: str | Sequence[str], *, held: bool) -> None:
        """Count messages that no longer have these times."""
        self.gathered.counts.remove(self.topic.number, times, owners, held=held)

    def entered(self, lease_id: int, expires: int, consumer: str, keys: LeaseKeys) -> None:
        """A lease was created."""
        self.gathered.entered.append((self.topic.number, lease_id, expires, consumer, keys))

    def settled(self, lease_id: int, rows: int) -> None:
        """Rows left a lease."""
        self.gathered.settled[self.topic.number, lease_id] += rows

    async def finish(self) -> int:
        """Write the records that belong to the change, if there are any; returns the size of its journal record."""
        gathered, link = self.gathered, self.link
        entry = gathered.outbox.take(self.now, self.context.principal) if gathered.outbox is not None else None
        rows, listed = gathered.counts.columns()
        if entry is None and not (
            rows.counts or listed.counts or gathered.entered or gathered.settled or gathered.noted
        ):
            return 0
        link.changes += 1
        leases = list(gathered.settled.items())
        await link.execute(
            "finish",
            self.origin,
            [entry[1]] if entry is not None else [],
            link.shard,
            rows.topics,
            rows.minutes,
            rows.held,
            rows.counts,
            *([one[column] for one in gathered.entered] for column in range(4)),
            [one[4].pack() for one in gathered.entered],
            [topic for (topic, _), _ in leases],
            [lease_id for (_, lease_id), _ in leases],
            [count for _, count in leases],
            link.writer,
            link.changes,
            [one[4].open for one in gathered.entered],
            rows.owners,
            listed.topic,
            listed.held,
            listed.owner,
            listed.minutes,
            listed.counts,
        )
        return len(entry[1]) if entry is not None else 0
