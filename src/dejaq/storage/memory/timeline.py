"""One topic of the memory store: its messages, their order in time, their leases and the used counters."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dejaq import limits
from dejaq.domain.batch import IdSpan, LeaseSet
from dejaq.domain.bodies.large import content_of, is_reference
from dejaq.domain.headers import decode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import Standing
from dejaq.storage.base import Holder
from dejaq.storage.memory.bodies import MemoryBodies, MemorySharedBodies
from dejaq.storage.memory.created_ids import MemoryCreatedIds
from dejaq.storage.used_sequences import UsedSequences


@dataclass(slots=True, eq=False)
class HeldMessage:
    """A message. `ts` is its position, `own_ts` the last time that producer or consumer requested.

    While `lease` is set, live or lost, `due` is the position and `before` the version that the message had before the
    lease; `before` is 0 when that was a lost lease, which cannot be restored.
    """

    id: str
    natural: bool
    bucket: int
    owner: str
    ts: int
    priority: int
    body: bytes
    headers: bytes
    version: int
    attempts: int = 0
    own_ts: int = 0
    lease: HeldLease | None = field(default=None, repr=False)
    row: int = 0
    due: int = 0
    before: int = 0
    # When it was first and last leased, and both values before the present lease.
    first_lease: int = 0
    last_lease: int = 0
    leased_before: tuple[int, int] = (0, 0)
    # The number of its valid entry in the bucket's heap; 0 when it is gone.
    entry: int = 0

    @property
    def lock_consumer(self) -> str:
        """The holder, also of a lease that has expired."""
        return self.lease.consumer if self.lease is not None else ""

    @property
    def size(self) -> int:
        """The bytes that the message takes in a lease set."""
        return len(self.body) + len(self.headers)

    def standing(self) -> Standing:
        """The state that a transition needs."""
        return Standing(ts=self.ts, owner=self.owner, lock_consumer=self.lock_consumer, version=self.version)

    def holder(self, now: int) -> Holder | None:
        """The holder of its live lease."""
        if self.lease is None or self.ts <= now:
            return None
        return Holder(consumer=self.lease.consumer, lease_id=self.lease.lease_id, row=self.row, due=self.due)

    def same_content(self, other: HeldMessage) -> bool:
        """Whether a create of `other` has the content of this message, apart from the time."""
        return (self.owner, self.priority, content_of(self.body), self.headers) == (
            other.owner,
            other.priority,
            content_of(other.body),
            other.headers,
        )

    def message(self, topic: str) -> Message:
        """The message as its owner sees it."""
        return Message(
            id=self.id,
            topic=topic,
            bucket=self.bucket,
            ts=self.ts,
            priority=self.priority,
            body=self.body,
            producer_group=self.owner,
            lock_consumer=self.lock_consumer,
            version=self.version,
            attempts=self.attempts,
            headers=decode_headers(self.headers),
        )


@dataclass(slots=True, eq=False)
class HeldLease:
    """A lease set: the message of each row, or None once the row has left the lease."""

    lease_id: int
    consumer: str
    rows: list[HeldMessage | None] = field(default_factory=list)
    left: int = 0
    # Rows whose end the journal has recorded.
    reported: set[int] = field(default_factory=set)

    def messages(self) -> Iterator[HeldMessage]:
        """The remaining messages, in the order of the rows."""
        return (message for message in self.rows if message is not None)


@dataclass(slots=True)
class _Session:
    used_ms: int
    used: UsedSequences = field(default_factory=UsedSequences)


class Timeline:
    """The messages of one topic. One heap per bucket keeps their order; stale entries are skipped.

    In a priority topic a second heap per bucket has the due messages, in the order of (priority, ts).
    """

    def __init__(self, bodies: MemoryBodies, topic: Topic | None = None) -> None:
        self.bodies = bodies
        self._by_priority = topic is not None and topic.by_priority
        self._shared = MemorySharedBodies() if topic is not None and topic.settings.share_bodies else None
        self.created = MemoryCreatedIds(topic.settings.dedup_ms if topic is not None else 0)
        self._ready: dict[int, list[tuple[int, int, int, HeldMessage]]] = {}
        self.leases: dict[int, HeldLease] = {}
        self._natural: dict[str, HeldMessage] = {}
        self._generated: dict[str, HeldMessage] = {}
        self._sessions: dict[ProducerSession, _Session] = {}
        self._heaps: dict[int, list[tuple[int, int, int, HeldMessage]]] = {}
        self._entries = 0

    def all(self) -> Iterator[HeldMessage]:
        """Every message, in no order."""
        return chain(self._natural.values(), self._generated.values())

    def find(self, message_id: str) -> HeldMessage | None:
        """The message with this id; a natural id comes before a generated id with the same text."""
        return self._natural.get(message_id) or self._generated.get(message_id)

    def find_for(self, new: HeldMessage) -> HeldMessage | None:
        """The message that conflicts with a new message; a generated id conflicts only with generated ids."""
        return self.find(new.id) if new.natural else self._generated.get(new.id)

    def add(self, message: HeldMessage) -> None:
        """Add a new message."""
        if self._shared is not None:
            message.body = self._shared.take(message.body)
        (self._natural if message.natural else self._generated)[message.id] = message
        self.place(message, message.ts)

    def remove(self, message: HeldMessage) -> None:
        """Remove a message."""
        if self._shared is not None:
            self._shared.drop(message.body)
        del (self._natural if message.natural else self._generated)[message.id]
        self.leave_lease(message)
        message.entry = 0

    def replace_body(self, message: HeldMessage, body: bytes) -> None:
        """Give a message another body."""
        if self._shared is not None:
            new = self._shared.take(body)
            self._shared.drop(message.body)
            body = new
        message.body = body

    def find_body(self, digest: bytes) -> bytes | None:
        """The shared body that matches all bits of a digest."""
        return self._shared.find(digest) if self._shared is not None else None

    def place(self, message: HeldMessage, ts: int) -> None:
        """Put a message at a time that producer or consumer requested."""
        message.own_ts = ts
        self.hold(message, ts)

    def hold(self, message: HeldMessage, ts: int) -> None:
        """Put a message at the end of its lease, or back at its earlier position."""
        self._entries += 1
        message.ts = ts
        message.entry = self._entries
        heap = self._heaps.setdefault(message.bucket, [])
        heapq.heappush(heap, (ts, message.priority, self._entries, message))

    def due(self, buckets: Sequence[int], until: int) -> Iterator[HeldMessage]:
        """Take messages up to `until` off the heaps, earliest first; the caller puts back those that are not used."""
        if self._by_priority:
            yield from self._ripe(buckets, until)
            return
        heads = [(*heap[0][:3], heap) for bucket in set(buckets) if (heap := self._trimmed(bucket))]
        heapq.heapify(heads)
        while heads and heads[0][0] <= until:
            _, _, _, heap = heapq.heappop(heads)
            message = heapq.heappop(heap)[3]
            yield message
            if self._trimmed(message.bucket):
                heapq.heappush(heads, (*heap[0][:3], heap))

    def earliest(self, buckets: Sequence[int]) -> int | None:
        """The position of the first message in `buckets`."""
        times = [heap[0][0] for bucket in buckets if (heap := self._trimmed(bucket))]
        for bucket in buckets if self._by_priority else ():
            times += [ts for _, ts, entry, message in self._ready.get(bucket, ()) if message.entry == entry]
        return min(times, default=None)

    def oldest(self, now: int) -> dict[int, int]:
        """The time at which the oldest available message of each priority was due."""
        oldest: dict[int, int] = {}
        for message in self.all():
            if message.ts <= now:
                oldest[message.priority] = min(message.ts, oldest.get(message.priority, message.ts))
        return oldest

    def enter_lease(self, message: HeldMessage, lease: HeldLease, now: int) -> None:
        """Make `message` the next row of `lease`; an expired lease on it ends."""
        lost = message.lease is not None
        self.leave_lease(message)
        self.leases[lease.lease_id] = lease
        message.lease, message.row, message.due = lease, len(lease.rows), message.ts
        message.before = 0 if lost else message.version
        message.leased_before = (message.first_lease, 0 if lost else message.last_lease)
        message.first_lease = message.first_lease or now
        message.last_lease = now
        lease.rows.append(message)
        lease.left += 1

    def leave_lease(self, message: HeldMessage) -> None:
        """Take a message out of its lease, if it has one; an empty lease is forgotten."""
        lease = message.lease
        if lease is None:
            return
        lease.rows[message.row] = None
        lease.left -= 1
        message.lease = None
        if lease.left == 0:
            del self.leases[lease.lease_id]

    def used_sequences(self, session: ProducerSession, now: int) -> UsedSequences:
        """The used counters of a producer session; sessions that were unused for a long time are forgotten."""
        used = self._sessions.pop(session, None) or _Session(now)
        used.used_ms = now
        self._sessions[session] = used
        # The order of the dictionary is the order of last use.
        for other, record in list(self._sessions.items()):
            if record.used_ms >= now - limits.PRODUCER_SESSION_MS_MAX:
                break
            del self._sessions[other]
        return used.used

    def _ripe(self, buckets: Sequence[int], now: int) -> Iterator[HeldMessage]:
        """Take the due messages off the heaps, lowest priority first, then oldest."""
        heads = []
        for bucket in set(buckets):
            ready = self._ready.setdefault(bucket, [])
            while (heap := self._trimmed(bucket)) and heap[0][0] <= now:
                ts, priority, entry, message = heapq.heappop(heap)
                heapq.heappush(ready, (priority, ts, entry, message))
            if _trim(ready):
                heads.append((*ready[0][:3], ready))
        heapq.heapify(heads)
        while heads:
            _, _, _, ready = heapq.heappop(heads)
            yield heapq.heappop(ready)[3]
            if _trim(ready):
                heapq.heappush(heads, (*ready[0][:3], ready))

    def _trimmed(self, bucket: int) -> list[tuple[int, int, int, HeldMessage]]:
        return _trim(self._heaps.get(bucket, []))


def _trim(heap: list[tuple[int, int, int, HeldMessage]]) -> list[tuple[int, int, int, HeldMessage]]:
    """The heap without invalid entries at its top."""
    while heap and heap[0][3].entry != heap[0][2]:
        heapq.heappop(heap)
    return heap


def lease_set(lease: HeldLease, *, expires: int, messages: Sequence[HeldMessage]) -> LeaseSet:
    """Rows of a lease that end together, as columns."""
    attempts = [message.attempts for message in messages]
    priorities = [message.priority for message in messages]
    headers = [message.headers for message in messages]
    numbers = [message.row for message in messages]
    return LeaseSet(
        lease_id=lease.lease_id,
        consumer=lease.consumer,
        expires=expires,
        spans=[IdSpan(len(messages), ids=[message.id for message in messages])],
        ts=[message.due for message in messages],
        bodies=[message.body for message in messages],
        attempts=attempts if any(count != 1 for count in attempts) else None,
        priorities=priorities if any(priorities) else None,
        headers=headers if any(headers) else None,
        rows=numbers if numbers != list(range(len(lease.rows))) else None,
        large=any(is_reference(message.body) for message in messages),
    )
