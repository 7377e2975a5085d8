"""The storage contract: a storage keeps messages and decides every change to them.

A backend applies each change as one conditional transition (`domain.transitions`) in the same atomic step as
the write, and returns only when the change is as durable as the topic's settings require. Requests and results
are columns. `now` is passed in, always in UTC milliseconds. A failed or cut write raises `Indefinite`; a
storage that cannot work raises `StoreError`.

Every call that changes topics or messages takes the context of the client's call that caused it, as its last
argument. The journal record of the change names the principal of that context.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes, Portion, StoredFrames, StoredRuns
from dejaq.domain.bodies.large import Declared, Reference
from dejaq.domain.changes import Change
from dejaq.domain.context import CallContext
from dejaq.domain.headers import decode_headers
from dejaq.domain.id_column import IdColumn
from dejaq.domain.message import Message, Status, UnleasedMessages
from dejaq.domain.topic import Topic
from dejaq.errors import Refused
from dejaq.storage.transactions import Transaction, Verdict


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a backend. Callers read them instead of assuming them."""

    name: str
    durable: bool
    shared: bool
    # Whether it can store a body once for all the messages of a topic that have it.
    shares_bodies: bool = False
    # The number of its parts. With more than one, a call for several buckets makes one commit in each part, and a
    # transaction must stay in one part.
    parts: int = 1
    # When it can do so only with large bodies: the size above which clients upload a body as a large one, in a topic
    # that shares bodies.
    shared_inline_bytes_max: int = 0
    # Whether it encrypts the bodies of topics that ask for it.
    encrypts: bool = False
    # Whether it keeps only the latest message of each key in logs that ask for it.
    compacts_logs: bool = False

    @property
    def label(self) -> str:
        """A short name of the backend, for people."""
        return self.name if self.parts == 1 else f"{self.name}, {self.parts} shards"


@runtime_checkable
class NamesUsers(Protocol):
    """A shared storage that can say which processes use it."""

    def announce(self, name: str) -> None:
        """Use the storage under this name, from the next `open` on."""

    async def users(self, prefix: str) -> list[tuple[str, str]]:
        """The names of current users that begin with `prefix`, and the address of each."""


class Bodies(Protocol):
    """The large bodies of a store: kept in parts, and referred to by messages (`domain.large`).

    `bucket` is the bucket of the message that refers, or will refer, to the body: when a store has several parts, the
    body is in the part that has the bucket. A body is kept while a message refers to it; create, edit and transact
    answer BODY_MISSING for a reference without a body. After the last message that refers to it is deleted or has
    another body, the body is removed, at the latest by the first `reclaim` after its time; a body that was found is
    kept for the caller that found it.
    """

    async def upload(
        self, topic: Topic, bucket: int, declared: Declared, parts: AsyncIterator[bytes], now: int
    ) -> Reference:
        """Store a body, one part at a time; messages can refer to it when the whole body is durable.

        They can do so for at least UPLOAD_KEEP_MS, or until the last message that refers to it is deleted.

        Raises INVALID_ARGUMENT and keeps nothing when the parts differ from the declaration; also raises the errors of
        `parts`. In a topic that shares bodies, the reference to an existing equal body is returned instead.
        """

    async def find(self, topic: Topic, bucket: int, declared: Declared, now: int) -> Reference | None:
        """A body with this digest that messages can refer to for at least UPLOAD_KEEP_MS; None when there is none.

        The body is kept for that time even when the messages that refer to it are deleted, and over restarts.
        """

    async def part(self, topic: Topic, bucket: int, reference: Reference, part: int) -> bytes:
        """One part of a body, as it was uploaded. Raises BODY_MISSING when the body does not exist."""

    async def reclaim(self, now: int) -> int:
        """Remove the bodies that no message refers to and whose time is over; returns their number."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The messages that a query concerns: `start <= ts < end`, and each field that is not None."""

    start: int = 0
    end: int = 2**63 - 1
    status: Status | None = None
    owner: str | None = None
    consumer: str | None = None
    # The lowest and the highest priority that match.
    priorities: tuple[int, int] | None = None
    # A message matches when it has all these headers with these values.
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def needs_row_scan(self) -> bool:
        """Whether each message has to be read, because no index has these fields."""
        return self.priorities is not None or bool(self.headers)

    def fits(self, priority: int, headers: bytes) -> bool:
        """Whether a message with this priority and these headers matches; used with `needs_row_scan`."""
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
    """The consumer that holds the live lease of a message, the lease, the row, and the time the message was due."""

    consumer: str
    lease_id: int
    row: int
    due: int


class Snapshot(Protocol):
    """A view of a topic at one instant, which can be read while the topic changes."""

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
        """The same as `scan`, but with stored runs when the store has runs."""

    def close(self) -> None:
        """Release the view; a scan in progress ends with an error."""


class Share(NamedTuple):
    """One of several parts of the runs over several buckets: those whose number is `part` modulo `parts`."""

    part: int
    parts: int


@runtime_checkable
class SharesRuns(Protocol):
    """A snapshot of a store with runs, which several callers read together, from files where they can."""

    @property
    def frames_path(self) -> Path | None:
        """The directory of the files, which stay until the snapshot is closed; None where runs must not be read so."""

    def scan_shared(
        self, buckets: Sequence[int], share: Share, *, bodies: bool, framed: bool
    ) -> AsyncIterator[Portion | StoredRuns | StoredFrames]:
        """All messages of the buckets, and those of a share of the runs over several buckets, whatever their buckets.

        `framed`: with the places of the runs that are in files, in place of these runs.
        """


class Storage(Protocol):
    """One store of topics and messages. All methods are safe to call concurrently from one event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this backend."""

    @property
    def bodies(self) -> Bodies:
        """Its large bodies; available while it is open."""

    @property
    def identity(self) -> str:
        """The permanent name of a store that several brokers share, known while it is open; empty for other stores."""

    def stats(self) -> Mapping[str, float]:
        """Figures of the store for the metrics, by name."""

    def journal_stats(self) -> Mapping[str, float]:
        """Those of the journal alone, which cost the same however many topics there are; empty without a journal."""

    async def open(self, now: int) -> None:
        """Make the store usable, or raise STORE_LOCKED, STORE_CORRUPT, STORE_NEWER or STORE_FAILED."""

    async def close(self) -> None:
        """Finish the calls in progress, make their changes durable and release the store."""

    @property
    def failure(self) -> str | None:
        """The reason why the store accepts no more changes, or None while it works. `recover` tries again."""

    @property
    def corrupt(self) -> bool:
        """Whether it failed because the stored data is damaged; clients receive an error that is not retryable."""

    async def recover(self, now: int) -> None:
        """Open the store again after a failure; raises an error if the fault still exists.

        Raises STORE_CORRUPT when only a repair and another start of the broker help.
        """

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, in any state."""

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        """Create or replace the record of a topic."""

    async def next_topic_number(self) -> int:
        """A number that no topic of this store ever had."""

    async def drop_topic(self, topic: Topic, now: int, context: CallContext) -> None:
        """Remove a topic, its messages and everything stored for them; the journal records it once."""

    # Changes

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        """Apply each change separately, in order, and return an answer for each; in as few commits as the store can.

        Each class in `domain.changes` describes its change and the answers. When a change is refused as a whole
        (INVALID_ARGUMENT, TOPIC_NOT_FOUND, LIMIT_EXCEEDED), its answer is the refusal, it has changed nothing, and the
        others are applied. Raises an error only when the store cannot work, or `Indefinite`. `apply_one` applies a
        single change and raises its refusal.

        When the topic has an `expiry_backoff`, changes by an owner first put every row whose lease has ended back on
        the timeline, as `lease` does.
        """

    # Consumer

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        """Lease the messages that are free and due up to `request.until`, earliest first, then lower priority first.

        Rows are sorted by (ts, priority). The rows of an expired lease are due at the lease's end. None means that
        nothing is due.

        In a priority topic the available messages are leased lowest priority first, then oldest first, and are sorted
        by (priority, ts); no message is leased ahead of its time, whatever `request.until` is.

        With `request.dead_letter`, rows whose attempts have reached the topic's `max_attempts` are not leased: the same
        commit moves them to that topic as natural ids, due now, with zero attempts, and with their history in headers
        (`domain.dead_letter`); when the id is taken there, under another id. Raises TOPIC_NOT_FOUND when that topic is
        not in the store or is being deleted; then nothing is changed.

        When the topic has an `expiry_backoff`, a lease and changes by an owner first put every row whose lease has
        ended back on the timeline, with this delay after the end and a new version. A row that may not be leased again
        is not moved.
        """

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """A time before which nothing in `buckets` becomes due unless something changes; None when the buckets are
        empty.
        """

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Load the messages that are due up to `until` into memory, so that `lease` need not wait for them.

        Only a hint.
        """

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """The remaining rows of the live leases of `consumer`, with their original row numbers."""

    # Transactions

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        """Apply every row of every step in one commit, or nothing: OK, ALREADY_EXISTS or the refusal of one row.

        Each row is decided as in the separate call of its step, on the state before the transaction. The answer names
        the first step with a row that is refused, and the lowest such row; a message that an earlier row has named is
        DUPLICATE_IN_BATCH. A repeat of a committed transaction, by its name, is ALREADY_EXISTS and changes nothing.
        Raises DIFFERENT_STORES when one commit cannot include all the topics.
        """

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The serialized `JournalRecord`s after sequence `after`, in order, without a gap, and durable.

        About so many bytes of them, or fewer; empty only when there are none.
        """

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records up to and including sequence `up_to`; sequences are never used again.

        Raises INVALID_ARGUMENT when no record with that sequence was ever written.
        """

    # Queries

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages, in the order of `ids`; None for an id that no message has."""

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """A body of the topic with this digest, when the topic shares bodies; None when there is none."""

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """The holder of the live lease of each id; None for an id that no consumer holds."""

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match, exactly."""

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """(start of step, count) for each step of [start, end) that has messages, exactly."""

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of the matching messages, in order of (ts, id), or, in a priority topic, of (priority, ts, id)."""

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """(priority, ts) of the oldest available message of each priority, by priority.

        With more than `count` priorities, half of the result are the most urgent and half the least urgent ones. Only
        for monitoring: messages that are available for a short time may be missed.
        """

    async def snapshot(self, topic: Topic, now: int) -> Snapshot:
        """A view of the topic at this instant."""


@runtime_checkable
class BeginsChanges(Protocol):
    """A storage that applies changes at once, and has to wait only until they are durable."""

    def look_at(self, ids: IdColumn) -> None:
        """Note with ids that were not decoded what is known of them before they are checked; it changes nothing else.

        A storage that computes hashes anyway knows so whether all ids differ.
        """

    def begin(
        self, changes: Sequence[Change], now: int, context: CallContext
    ) -> asyncio.Future[list[Outcomes | Refused]] | None:
        """Apply changes as `apply` does; the future has their answers. It must not be cancelled.

        None, and nothing is applied, when these changes have to wait for something else: then `apply` does it.
        """

    def begin_transactions(
        self, transactions: Sequence[Transaction], now: int, context: CallContext
    ) -> asyncio.Future[list[Verdict | Refused]] | None:
        """Do transactions in their order, each as `transact` does; the future has their verdicts.

        None, and nothing is done, when one of them has to wait for something else: then `transact` does them.
        """


@runtime_checkable
class ReadsColumns(Protocol):
    """A storage that has most messages as columns."""

    def columns_rows(self, topic: Topic) -> tuple[int, int]:
        """How many ids a call may name while the sizes of bodies are not known, and when they are known to be small."""

    async def get_columns(
        self, topic: Topic, ids: Sequence[str], now: int
    ) -> tuple[UnleasedMessages, list[tuple[int, Message]]]:
        """The messages with these ids: some as columns, and the others with the positions of their ids. The caller
        limits how many ids these are.
        """


@runtime_checkable
class Wraps(Protocol):
    """A storage around another one."""

    @property
    def inner(self) -> Storage:
        """The storage inside."""


@runtime_checkable
class RotatesKeys(Protocol):
    """A storage that encrypts bodies."""

    async def rekey(self, topic: Topic, context: CallContext, *, new_key: bool) -> str:
        """Protect the keys of an encrypted topic with the provider's current key, which is named in the answer.

        With `new_key` the topic first gets another key, for all bodies that are sealed from now on.
        """


def innermost(storage: Storage) -> Storage:
    """The storage that has the messages, for what only some kinds of storage can do."""
    return innermost(storage.inner) if isinstance(storage, Wraps) else storage


async def apply_one(storage: Storage, change: Change, now: int, context: CallContext) -> Outcomes:
    """Apply one change; raises an error when it is refused as a whole."""
    (answer,) = await storage.apply((change,), now, context)
    if isinstance(answer, Refused):
        raise answer
    return answer


def outermost(oldest: Mapping[int, int], count: int) -> list[tuple[int, int]]:
    """Priorities with their times, in order; with more than `count`, only the first and the last ones."""
    listed = sorted(oldest.items())
    first = (count + 1) // 2
    return listed if len(listed) <= count else listed[:first] + listed[len(listed) - (count - first) :]
