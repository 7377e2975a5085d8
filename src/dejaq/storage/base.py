"""The storage contract: where a message's life is kept and where every change to it is decided.

A backend applies each change as one conditional transition (`domain.transitions`) in the same atomic step as
the write, and returns only when the change is durable as the topic's settings demand. Requests and results
are columns. `now` is passed in, always in UTC milliseconds. A failed or cut write raises `Indefinite`; a
storage that cannot work raises `StoreError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dejaq.domain.batch import CreateBatch, Deletion, LeaseRequest, LeaseSet, Outcomes, Portion, RowRange, StoredRuns
from dejaq.domain.headers import decode_headers
from dejaq.domain.large import Declared, Reference
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import Topic
from dejaq.storage.edits import Edits as Edits
from dejaq.storage.steps import Transaction, Verdict


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, to be asked rather than guessed."""

    name: str
    durable: bool
    shared: bool
    # Whether it can store a body once for all the messages of a topic that have it.
    shares_bodies: bool = False
    # Of how many stores it is made. Over more than one, a call for several buckets is a commit in each of theirs, and a
    # transaction must stay in one.
    parts: int = 1
    # Where it can do so only with large bodies: above which size clients make a body one, in a topic that shares them.
    shared_inline_bytes_max: int = 0

    @property
    def label(self) -> str:
        """The backend in a word or two, for people."""
        return self.name if self.parts == 1 else f"{self.name}, {self.parts} shards"


@runtime_checkable
class FindsBodies(Protocol):
    """A storage that shares bodies, and finds one by its digest."""

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """The body of a message of the topic that has this digest; None for none."""


@runtime_checkable
class DeletesMany(Protocol):
    """A storage that deletes from several leases in one commit."""

    async def delete_many(self, topic: Topic, consumer: str, deletions: Sequence[Deletion], now: int) -> list[Outcomes]:
        """As `delete`, for each of them."""


class Bodies(Protocol):
    """The large bodies of a store: kept in parts, and referred to by messages (`domain.large`).

    `bucket` is that of the message that refers to a body, or will: where a store has several parts, the body is in the
    one that has the bucket. A message that refers to a body keeps it; create, edit and transact answer BODY_MISSING for
    a reference to none. When the last message that refers to it is gone or has another body, it goes too, at the latest
    with the first `reclaim` after its time.
    """

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Keep a body, a part at a time; it can be referred to when all of it is durable, for UPLOAD_KEEP_MS at least.

        Raises INVALID_ARGUMENT, and keeps nothing, where the parts are not what was declared; what `parts` raises is
        raised likewise. In a topic that shares bodies, one that is there already, byte for byte, is given instead.
        """

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body with this digest that can be referred to, for UPLOAD_KEEP_MS at least; None for none."""

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part of a body, as it was uploaded. Raises BODY_MISSING where the body is not there."""

    async def reclaim(self, now: int) -> int:
        """Remove the bodies that no message refers to and whose time is over; how many."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages a query is about: `start <= ts < end`, and each field that is not None."""

    start: int = 0
    end: int = 2**63 - 1
    status: Status | None = None
    owner: str | None = None
    consumer: str | None = None
    # The lowest and the highest priority that match.
    priorities: tuple[int, int] | None = None
    # Headers that must all be there with these values.
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def narrow(self) -> bool:
        """Whether it asks for what only the message itself tells."""
        return self.priorities is not None or bool(self.headers)

    def fits(self, priority: int, headers: bytes) -> bool:
        """Whether a message with these matches as far as `narrow` goes."""
        if self.priorities is not None and not self.priorities[0] <= priority <= self.priorities[1]:
            return False
        if not self.headers:
            return True
        there = decode_headers(headers)
        return all(there.get(name) == value for name, value in self.headers)


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in order of (ts, id), and the cursor of the next page, or None after the last."""

    messages: list[Message]
    cursor: bytes | None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the live lease of a message, under which lease and row, and the time it was due."""

    consumer: str
    lease_id: int
    row: int
    due: int


class Snapshot(Protocol):
    """A topic as it stood at one instant, to be read at leisure while the topic changes."""

    @property
    def at(self) -> int:
        """The instant, in UTC ms; statuses are those of that time."""

    @property
    def count(self) -> int:
        """How many messages there were."""

    def scan(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """The messages of the buckets that match, in no order, in portions of a bounded size; may be called again."""

    def scan_stored(
        self, buckets: Sequence[int], where: Filter, *, bodies: bool
    ) -> AsyncIterator[Portion | StoredRuns]:
        """The same, with runs as they are stored where the store has such."""

    def close(self) -> None:
        """Let go of the view; a scan that is under way ends with an error."""


class Storage(Protocol):
    """One store of topics and messages. All methods are safe to call concurrently from one event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""

    @property
    def bodies(self) -> Bodies:
        """Its large bodies; there while it is open."""

    async def open(self, now: int) -> None:
        """Make the store usable, or raise STORE_LOCKED, STORE_CORRUPT, STORE_NEWER or STORE_FAILED."""

    async def close(self) -> None:
        """Finish what is under way, make it durable and let go of the store."""

    @property
    def failure(self) -> str | None:
        """Why the store takes no more changes, or None while it works. `recover` tries again."""

    async def recover(self, now: int) -> None:
        """Open the store anew after a failure; raises when the fault still stands."""

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, in any state."""

    async def put_topic(self, topic: Topic) -> None:
        """Create or replace the record of a topic."""

    async def next_topic_number(self) -> int:
        """A number that no topic of this store ever had."""

    async def drop_topic(self, topic: Topic, now: int) -> None:
        """Remove a topic, its messages and everything kept for them; the journal tells of it once."""

    # The producer's side

    async def create(self, topic: Topic, batch: CreateBatch, now: int) -> Outcomes:
        """Create the admitted rows of `batch`.

        Per row: OK, ALREADY_EXISTS (the same id and content, or a repeat of the batch), ID_TAKEN, or the code
        in `batch.refused`.
        """

    async def edit(self, topic: Topic, owner: str, edits: Edits, now: int) -> Outcomes:
        """Change time, body, priority or headers: OK, NOT_FOUND, NOT_OWNER, LEASED or VERSION_CONFLICT.

        The rows are done in order, so an id that stands twice is changed twice.

        A changed message gets a new version. Its attempts stay; a lost lease on it ends.
        """

    async def cancel(
        self, topic: Topic, owner: str, ids: Sequence[str], now: int, versions: Sequence[int | None] | None = None
    ) -> Outcomes:
        """Remove messages: OK, NOT_FOUND, NOT_OWNER, LEASED, or VERSION_CONFLICT where one of `versions` is not its."""

    # The consumer's side

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        """Lease what is free and due up to `request.until`, earliest first, then lower priority first.

        Rows come sorted by (ts, priority). An expired lease makes its rows due at its end. None: nothing is due.

        In a topic by priority what is available is leased lowest priority first, then oldest first, and comes sorted by
        (priority, ts); nothing is leased ahead of its time, whatever `request.until` is.

        With `request.dead_letter` rows whose attempts have reached the topic's `max_attempts` are not leased: the same
        commit moves them to that topic as natural ids, due now, with no attempts, and with their history in headers
        (`domain.dead_letter`); where the id is taken there, under another. TOPIC_NOT_FOUND when that topic is not in
        the store or is being deleted; then nothing is changed.

        Where the topic has an `expiry_backoff`, `lease`, `edit` and `cancel` first put every row whose lease has ended
        back on the timeline, that much behind the end, with a new version; a row that may have no other lease stays.
        """

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """A time before which nothing in `buckets` becomes due unless something changes; None: nothing is there."""

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Bring what is due up to `until` near, so that `lease` need not wait for it. Only a hint."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """What is left of the live leases of `consumer`, with the row numbers they had."""

    async def delete(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Remove rows of a live lease: OK or LEASE_LOST by row number.

        `handed_us` tells the journal when user code got them: one time, or one a row of the ranges.
        """

    async def extend(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        expires: int,
        now: int,
    ) -> Outcomes:
        """Move the end of a live lease to `expires`: OK or LEASE_LOST by row number. The lease id stays.

        A lease is never shortened: it ends behind the time its message is due, and must go on doing so.
        """

    async def release(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        ts: int | Sequence[int],
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """End a live lease and put the rows at `ts` (one, or one a row of the ranges): OK or LEASE_LOST."""

    async def recall(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        now: int,
    ) -> Outcomes:
        """Undo a live lease that user code never saw: time and attempts are as before it. OK or LEASE_LOST."""

    # Both sides at once

    async def transact(self, transaction: Transaction, now: int) -> Verdict:
        """Do every row of every step in one commit, or nothing: OK, ALREADY_EXISTS or the refusal of one row.

        Each row is decided as the call of its step decides it, on the state before the transaction. Refused is the
        first step that has a row that does not succeed, for the lowest such row; a message that an earlier row has
        named is DUPLICATE_IN_BATCH. A repeat of what was done, by its name, is ALREADY_EXISTS and changes nothing.
        Raises DIFFERENT_STORES where the topics have no one commit in common.
        """

    async def reject(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        dead_letter: Topic,
        reason: str,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Move rows of a live lease to the dead-letter topic, as `lease` does: OK or LEASE_LOST by row number."""

    async def redrive(self, topic: Topic, target: Topic, ids: Sequence[str], now: int) -> Outcomes:
        """Move messages that nobody holds to `target`: OK, NOT_FOUND, LEASED, or ID_TAKEN there.

        Each gets the id, headers and owner it had before it died, is due now and has no attempts. The journal tells of
        a cancel here and a create there. TOPIC_NOT_FOUND, and nothing changed, when `target` takes no messages.
        """

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The serialized `JournalRecord`s behind sequence `after`, in order, without a gap, and durable.

        About so many bytes of them, or fewer; none only when there are none.
        """

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records up to and with sequence `up_to`; sequences are never used again.

        Raises INVALID_ARGUMENT when no record of that sequence was ever written.
        """

    # Queries

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages, in the order of `ids`; None where there is none."""

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """Who holds the live lease of each id; None where nobody does."""

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match, exactly."""

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """(start of step, count) for each step of [start, end) that has messages, exactly."""

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of the messages that match, in order of (ts, id); of a topic by priority, of (priority, ts, id)."""

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """(priority, ts) of the oldest available message of each priority, by priority.

        Of more than `count` priorities, half of them are the most urgent and half the least. For watching only: what
        was available for a moment may be missed.
        """

    async def snapshot(self, topic: Topic, now: int) -> Snapshot:
        """A view of the topic as it stands now."""


def outermost(oldest: Mapping[int, int], count: int) -> list[tuple[int, int]]:
    """Priorities with their times, in order; of more than `count`, the first and the last ones."""
    listed = sorted(oldest.items())
    first = (count + 1) // 2
    return listed if len(listed) <= count else listed[:first] + listed[len(listed) - (count - first) :]
