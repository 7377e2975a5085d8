"""One change while it is made: where it happens, and what is written with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dejaq.domain.topic import Topic
from dejaq.storage.outbox import Outbox
from dejaq.storage.postgres.database import Link

MINUTE_MS = 60_000
BUCKET_BITS = 10


def places_of(topic: Topic, buckets: Iterable[int] | None = None) -> list[int]:
    """Where the messages of some buckets of a topic, or of all, stand."""
    first = topic.number << BUCKET_BITS
    return [first + bucket for bucket in (range(topic.settings.buckets) if buckets is None else buckets)]


@dataclass(slots=True)
class Change:
    """A transaction on one topic. `finish` writes the record, the counts and the state of the lease."""

    link: Link
    topic: Topic
    now: int
    # The number of the journal that is told, or None.
    origin: int | None
    outbox: Outbox | None = None
    _counts: Counter[tuple[int, bool]] = field(default_factory=Counter)
    _entered: tuple[int, int, str, Sequence[str]] | None = None
    _settled: tuple[int, int] | None = None
    record: bytes = b""

    def __post_init__(self) -> None:
        if self.origin is not None and self.topic.settings.journal:
            self.outbox = Outbox(0)

    def arrived(self, times: Iterable[int], *, held: bool) -> None:
        """Messages now stand at these times."""
        self._counts.update([(ts // MINUTE_MS, held) for ts in times])

    def left(self, times: Iterable[int], *, held: bool) -> None:
        """Messages no longer stand at these times."""
        self._counts.subtract([(ts // MINUTE_MS, held) for ts in times])

    def entered(self, lease_id: int, expires: int, consumer: str, keys: Sequence[str]) -> None:
        """A lease was given."""
        self._entered = (lease_id, expires, consumer, keys)

    def settled(self, lease_id: int, rows: int) -> None:
        """Rows left a lease."""
        self._settled = (lease_id, rows)

    async def finish(self) -> None:
        """Write what goes with the change; nothing when nothing changed."""
        entry = self.outbox.take(self.now) if self.outbox is not None else None
        counts = [(minute, held, rows) for (minute, held), rows in self._counts.items() if rows]
        if entry is None and not counts and self._entered is None and self._settled is None:
            return
        link = self.link
        link.changes += 1
        self.record = entry[1] if entry is not None else b""
        lease_id, expires, consumer, keys = self._entered or (None, None, None, None)
        await link.execute(
            "finish",
            self.origin,
            [self.record] if entry is not None else [],
            self.topic.number,
            link.shard,
            [minute for minute, _, _ in counts],
            [held for _, held, _ in counts],
            [rows for _, _, rows in counts],
            lease_id,
            expires,
            consumer,
            keys,
            *(self._settled or (None, None)),
            link.writer,
            link.changes,
        )
