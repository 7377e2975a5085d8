"""The journal of the memory store: one record per change, as every store writes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dejaq.domain.batch import CreateBatch, IdSpan, LeaseSet, RowRange
from dejaq.domain.changes import Edits
from dejaq.domain.context import ANONYMOUS, CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.protocol.v1.journal_pb2 import EventKind
from dejaq.storage.memory.timeline import HeldLease, HeldMessage
from dejaq.storage.outbox import CANCELLED, CREATED, DEAD_LETTERED, EDITED, EXPIRED, MOVED, Outbox


class MemoryJournal:
    """Records in memory; none when the store has no journal."""

    def __init__(self, wanted: bool) -> None:
        self._outbox = Outbox(0) if wanted else None
        self._records: deque[tuple[int, bytes]] = deque()
        self._gathering = False
        self._principal = ANONYMOUS

    def begin(self, context: CallContext) -> None:
        """The changes that follow are made by this call. Nothing is awaited in a change, so calls do not mix."""
        self._principal = context.principal

    def of(self, topic: Topic) -> Outbox | None:
        """The outbox for the events of the topic; None if the topic has no journal."""
        return self._outbox if topic.settings.journal else None

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return self._outbox.stats() if self._outbox is not None else {}

    def commit(self, now: int) -> None:
        """End a change: its events become one record."""
        if self._gathering:
            return
        entry = self._outbox.take(now, self._principal) if self._outbox is not None else None
        if entry is not None:
            self._records.append(entry)

    @contextmanager
    def one_record(self, now: int) -> Iterator[None]:
        """Put the events of all changes within the block into one record."""
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
        self.commit(now)

    def read(self, after: int, bytes_max: int) -> list[bytes]:
        """The records after a sequence."""
        found: list[bytes] = []
        for sequence, record in self._records:
            if sequence > after and bytes_max > 0:
                found.append(record)
                bytes_max -= len(record)
        return found

    def trim(self, up_to: int) -> None:
        """Remove the records up to a sequence."""
        last = self._outbox.sequence if self._outbox is not None else 0
        if up_to > last:
            raise error_of(Code.INVALID_ARGUMENT, f"the journal ends with record {last}, before {up_to}")
        while self._records and self._records[0][0] <= up_to:
            self._records.popleft()

    # Events

    def created(self, topic: Topic, batch: CreateBatch, rows: Sequence[RowRange]) -> None:
        """Rows of a batch were created."""
        outbox = self.of(topic)
        if outbox is not None and rows:
            outbox.created(topic.name, batch, rows)

    def leased(self, topic: Topic, lease: LeaseSet) -> None:
        """A lease set was created."""
        outbox = self.of(topic)
        if outbox is not None:
            outbox.leased(topic.name, lease)

    def expired(self, topic: Topic, lease: HeldLease, messages: Sequence[HeldMessage], delays: Sequence[int]) -> None:
        """Rows of a lease expired together; each waits for its delay after the end."""
        outbox = self.of(topic)
        if outbox is not None and messages:
            outbox.settled(
                EXPIRED,
                topic.name,
                consumer=lease.consumer,
                lease_id=lease.lease_id,
                spans=_spans(messages),
                expires=messages[0].ts,
                ts=[m.ts + delay for m, delay in zip(messages, delays, strict=True)] if any(delays) else [],
            )

    def dead_lettered(
        self,
        topic: Topic,
        messages: Sequence[HeldMessage],
        *,
        consumer: str = "",
        lease_id: int = 0,
        handed_us: Sequence[int] = (),
    ) -> None:
        """Messages left for the dead-letter topic."""
        outbox = self.of(topic)
        if outbox is not None and messages:
            outbox.settled(
                DEAD_LETTERED,
                topic.name,
                consumer=consumer,
                lease_id=lease_id,
                spans=_spans(messages),
                handed_us=handed_us,
            )

    def arrived(self, topic: Topic, messages: Sequence[HeldMessage]) -> None:
        """Messages arrived from another topic."""
        outbox = self.of(topic)
        if outbox is not None:
            for owner in dict.fromkeys(message.owner for message in messages):
                own = [message for message in messages if message.owner == owner]
                outbox.changed(
                    CREATED,
                    topic.name,
                    owner=owner,
                    ids=[message.id for message in own],
                    ts=[message.ts for message in own],
                    priorities=[message.priority for message in own],
                    bodies=[message.body for message in own],
                )

    def settled(
        self,
        kind: EventKind,
        topic: Topic,
        lease: HeldLease | None,
        rows: Sequence[tuple[int, HeldMessage]],
        *,
        expires: int = 0,
        ts: int | Sequence[int] = (),
        handed_us: Sequence[int] = (),
    ) -> None:
        """Rows of a lease were settled: the messages, each with its place among the requested rows."""
        outbox = self.of(topic)
        if outbox is None or lease is None or not rows:
            return
        outbox.settled(
            kind,
            topic.name,
            consumer=lease.consumer,
            lease_id=lease.lease_id,
            spans=_spans([message for _, message in rows]),
            expires=expires,
            ts=[ts] if isinstance(ts, int) else [ts[place] for place, _ in rows] if ts else [],
            handed_us=[_cell(handed_us, place) for place, _ in rows] if len(handed_us) > 1 else handed_us,
        )

    def edited(self, topic: Topic, owner: str, edits: Edits, messages: Sequence[HeldMessage]) -> None:
        """Messages were changed by their owner; a change of only the time is a move."""
        outbox = self.of(topic)
        if outbox is None:
            return
        moved = edits.bodies is None and edits.priorities is None and edits.headers is None
        outbox.changed(
            MOVED if moved else EDITED,
            topic.name,
            owner=owner,
            ids=[message.id for message in messages],
            ts=[message.ts for message in messages],
            priorities=[] if moved else [message.priority for message in messages],
            bodies=[message.body for message in messages] if edits.bodies is not None else [],
        )

    def cancelled(self, topic: Topic, owner: str, ids: Sequence[str]) -> None:
        """Messages were cancelled by their owner."""
        outbox = self.of(topic)
        if outbox is not None:
            outbox.changed(CANCELLED, topic.name, owner=owner, ids=ids)

    def dropped(self, topic: Topic) -> None:
        """A topic was deleted with all its messages."""
        outbox = self.of(topic)
        if outbox is not None:
            outbox.dropped(topic.name)


def _spans(messages: Sequence[HeldMessage]) -> list[IdSpan]:
    return [IdSpan(len(messages), ids=[message.id for message in messages])]


def _cell(column: Sequence[int], place: int) -> int:
    return column[place] if place < len(column) else 0
