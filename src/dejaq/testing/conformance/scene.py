"""A storage with one topic and a clock that the test moves, and short functions to use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from dejaq import limits
from dejaq.domain.batch import ChangeName, CreateBatch, LeaseRequest, LeaseSet, Outcomes, RowRange
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Extend, Recall, Redrive, Reject, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.dead_letter import Cause
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession, generated_ids
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Conflict, Refused
from dejaq.storage.base import Filter, Holder, Storage, apply_one
from dejaq.storage.transactions import Step, Transaction, Verdict

StorageFactory = Callable[[], Storage]
T = TypeVar("T")

START_MS = 1_700_000_000_000
OWNER = "billing"
WORKER = "worker-1"
LEASE_MS = 30_000
BUCKETS = 8
# Names the transactions of a scene.
STEPS = ProducerSession(START_MS, 2**32 - 1)


class Scene:
    """The environment of one check.

    Times are given relative to `now`, which only `advance` moves. Rows of a lease are given by their place in its
    columns, which are in the order of time; the row numbers that settle them may be in another order.
    """

    def __init__(self, factory: StorageFactory, *, on_one_part: bool = False) -> None:
        self._factory = factory
        self._sessions = 0
        self.storage = factory()
        self.now = START_MS
        # The call that the following changes are part of.
        self.context = DIRECT_CALL
        # A topic of one bucket is on one part of a store that has several.
        self._buckets = 1 if on_one_part and self.storage.capabilities.parts > 1 else BUCKETS
        self.topic = Topic(name="mail", number=0, settings=TopicSettings(buckets=BUCKETS))

    @classmethod
    async def begin(cls, factory: StorageFactory, *, on_one_part: bool = False) -> Scene:
        """Open the storage and create a topic; `on_one_part` for operations that a store of several parts does in one
        part only.
        """
        scene = cls(factory, on_one_part=on_one_part)
        await scene.storage.open(scene.now)
        scene.topic = await scene.new_topic("mail")
        return scene

    async def end(self) -> None:
        """Close the storage."""
        await self.storage.close()

    async def restart(self) -> None:
        """Close the storage and open another one over the same contents."""
        await self.storage.close()
        self.storage = self._factory()
        await self.storage.open(self.now)

    def advance(self, milliseconds: int) -> None:
        """Move the clock."""
        self.now += milliseconds

    async def new_topic(self, name: str, *, buckets: int | None = None, **settings: object) -> Topic:
        """A live topic with a number of its own."""
        number = await self.storage.next_topic_number()
        chosen = TopicSettings(buckets=buckets or self._buckets, **settings)  # type: ignore[arg-type]
        topic = Topic(name, number, chosen, created_ms=self.now)
        await self.storage.put_topic(topic, self.context)
        return topic

    # Producer

    def session(self) -> ProducerSession:
        """A producer session that is not used yet."""
        self._sessions += 1
        return ProducerSession(self.now, self._sessions)

    def batch(
        self,
        ids: Sequence[str] | None,
        *,
        delays: Sequence[int],
        bodies: Sequence[bytes] | None = None,
        priorities: Sequence[int] | None = None,
        headers: Sequence[Mapping[str, str]] | None = None,
        owner: str = OWNER,
        session: ProducerSession | None = None,
        sequence: int = 0,
        bucket: int = 0,
        refused: Mapping[int, Code] | None = None,
        relative_rows: Sequence[RowRange] = (),
    ) -> CreateBatch:
        """A batch due at `now` plus each of `delays`, by default in a session of its own."""
        return CreateBatch(
            owner=owner,
            session=session or self.session(),
            sequence=sequence,
            ts=[self.now + delay for delay in delays],
            bodies=bodies if bodies is not None else [b"body %d" % row for row in range(len(delays))],
            ids=ids,
            bucket=bucket,
            priorities=priorities,
            headers=[encode_headers(one) for one in headers] if headers is not None else None,
            refused=dict(refused or {}),
            relative_rows=relative_rows,
        )

    async def create(self, batch: CreateBatch, topic: Topic | None = None) -> list[Code]:
        """Create a batch and return the outcome of every row."""
        outcomes = await apply_one(self.storage, Create(topic or self.topic, batch), self.now, self.context)
        assert outcomes.count == len(batch)
        return listed(outcomes, len(batch))

    async def put(
        self,
        message_id: str,
        delay: int = 0,
        *,
        body: bytes = b"body",
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        owner: str = OWNER,
        topic: Topic | None = None,
    ) -> None:
        """Create one message with a natural id."""
        batch = self.batch(
            [message_id],
            delays=[delay],
            bodies=[body],
            priorities=[priority],
            headers=[headers or {}],
            owner=owner,
        )
        assert await self.create(batch, topic) == [Code.OK]

    async def put_many(self, count: int, delay: int = 0, *, name: str = "m", owner: str = OWNER) -> list[str]:
        """Create messages with natural ids, all due at one time."""
        ids = [f"{name}-{number:05d}" for number in range(count)]
        batch = self.batch(ids, delays=[delay] * count, owner=owner)
        assert await self.create(batch) == [Code.OK] * count
        return ids

    async def generate(self, delays: Sequence[int], *, bucket: int = 0, owner: str = OWNER) -> list[str]:
        """Create messages with generated ids; `delays` ascend."""
        batch = self.batch(None, delays=delays, bucket=bucket % self._buckets, owner=owner)
        assert await self.create(batch) == [Code.OK] * len(delays)
        return ids_of(batch)

    async def edit(self, edits: Edits, owner: str = OWNER) -> list[Code]:
        """Edit and return the outcome of every row."""
        return listed(
            await apply_one(self.storage, Edit(self.topic, owner, edits), self.now, self.context), len(edits.ids)
        )

    async def cancel(
        self,
        *ids: str,
        owner: str = OWNER,
        versions: Sequence[int] | None = None,
        name: ChangeName | None = None,
    ) -> list[Code]:
        """Cancel and return the outcome of every row."""
        return listed(
            await apply_one(self.storage, Cancel(self.topic, owner, ids, versions, name), self.now, self.context),
            len(ids),
        )

    # Consumer

    async def try_lease(
        self,
        consumer: str = WORKER,
        *,
        ahead: int = 0,
        lease_ms: int = LEASE_MS,
        buckets: Sequence[int] | None = None,
        rows_max: int = limits.LEASE_ROWS_MAX,
        bytes_max: int = limits.BATCH_BYTES_MAX,
        topic: Topic | None = None,
        dead_letter: Topic | None = None,
    ) -> LeaseSet | None:
        """Lease the messages that are due up to `ahead` from now, by default in every bucket."""
        request = LeaseRequest(
            buckets=range(self.topic.settings.buckets) if buckets is None else buckets,
            consumer=consumer,
            until=self.now + ahead,
            expires=self.now + lease_ms,
            rows_max=rows_max,
            bytes_max=bytes_max,
            dead_letter=dead_letter,
        )
        lease = await self.storage.lease(topic or self.topic, request, self.now, self.context)
        if lease is not None and len(lease):
            check_shape(lease, request, by_priority=(topic or self.topic).by_priority)
        return lease

    async def lease(
        self, consumer: str = WORKER, *, ahead: int = 0, lease_ms: int = LEASE_MS, rows_max: int = 1_000
    ) -> LeaseSet:
        """Lease the due messages; there must be at least one."""
        lease = await self.try_lease(consumer, ahead=ahead, lease_ms=lease_ms, rows_max=rows_max)
        assert lease is not None, "nothing was leased although something is due"
        return lease

    async def delete(
        self, lease: LeaseSet, rows: Sequence[RowRange] | None = None, *, consumer: str | None = None
    ) -> list[Code]:
        """Delete rows and return the outcome of each requested row."""
        asked = numbered(lease, rows)
        answer = apply_one(
            self.storage, Delete(self.topic, lease.lease_id, consumer or lease.consumer, asked), self.now, self.context
        )
        return await settled(answer, lease, rows)

    async def extend(
        self,
        lease: LeaseSet,
        rows: Sequence[RowRange] | None = None,
        *,
        by: int = LEASE_MS,
        consumer: str | None = None,
    ) -> list[Code]:
        """Extend rows to `by` from now and return the outcome of each requested row."""
        asked = numbered(lease, rows)
        answer = apply_one(
            self.storage,
            Extend(self.topic, lease.lease_id, consumer or lease.consumer, asked, self.now + by),
            self.now,
            self.context,
        )
        return await settled(answer, lease, rows)

    async def release(
        self,
        lease: LeaseSet,
        rows: Sequence[RowRange] | None = None,
        *,
        delay: int | Sequence[int] = 0,
        consumer: str | None = None,
    ) -> list[Code]:
        """Release rows to `delay` from now and return the outcome of each requested row."""
        ts = self.now + delay if isinstance(delay, int) else [self.now + one for one in delay]
        # All rows are taken in the order of their numbers, so a list of times belongs to known rows.
        asked = numbered(lease, [(0, len(lease))] if rows is None and not isinstance(ts, int) else rows)
        answer = apply_one(
            self.storage,
            Release(self.topic, lease.lease_id, consumer or lease.consumer, asked, ts),
            self.now,
            self.context,
        )
        return await settled(answer, lease, rows)

    async def recall(
        self,
        lease: LeaseSet,
        rows: Sequence[RowRange] | None = None,
        *,
        consumer: str | None = None,
        expires: int | None = None,
    ) -> list[Code]:
        """Recall rows, with `expires` those with this end, and return the outcome of each requested row."""
        recall = Recall(self.topic, lease.lease_id, consumer or lease.consumer, numbered(lease, rows), expires)
        answer = apply_one(self.storage, recall, self.now, self.context)
        return await settled(answer, lease, rows)

    async def transact(self, *steps: Step, sequence: int = 0) -> Verdict:
        """Run steps together, under a name in the session `STEPS`."""
        return await self.storage.transact(Transaction(STEPS, sequence, steps), self.now, self.context)

    async def reject(
        self,
        lease: LeaseSet,
        rows: Sequence[RowRange] | None = None,
        *,
        dead_letter: Topic,
        reason: str = "no use",
        cause: Cause | None = None,
        consumer: str | None = None,
    ) -> list[Code]:
        """Reject rows and return the outcome of each requested row."""
        holder, asked = consumer or lease.consumer, numbered(lease, rows)
        answer = apply_one(
            self.storage,
            Reject(self.topic, lease.lease_id, holder, asked, dead_letter, cause or Cause(reason)),
            self.now,
            self.context,
        )
        return await settled(answer, lease, rows)

    async def redrive(self, topic: Topic, *ids: str, target: Topic | None = None) -> list[Code]:
        """Move messages of a topic to `target`, or to the scene's topic, and return the outcome of each id."""
        return listed(
            await apply_one(self.storage, Redrive(topic, target or self.topic, ids), self.now, self.context), len(ids)
        )

    # Queries

    async def find(self, message_id: str, topic: Topic | None = None) -> Message | None:
        """The message with this id, or None."""
        (found,) = await self.storage.get(topic or self.topic, [message_id], self.now)
        return found

    async def get(self, message_id: str, topic: Topic | None = None) -> Message:
        """The message with this id, which must exist."""
        found = await self.find(message_id, topic)
        assert found is not None, f"{message_id} is not there"
        return found

    async def holder(self, message_id: str) -> Holder | None:
        """The consumer that holds the live lease of this id."""
        (found,) = await self.storage.holders(self.topic, [message_id], self.now)
        return found

    async def count(self, **where: object) -> int:
        """The number of messages that match the fields of a Filter."""
        return await self.storage.count(self.topic, Filter(**where), self.now)  # type: ignore[arg-type]

    async def statuses(self) -> tuple[int, int, int]:
        """The numbers of available, waiting and processing messages."""
        return (
            await self.count(status=Status.AVAILABLE),
            await self.count(status=Status.WAITING),
            await self.count(status=Status.PROCESSING),
        )

    async def browse(self, where: Filter | None = None, *, limit: int = 100) -> list[Message]:
        """Every message of the scene's topic that matches, page by page."""
        return await self.browse_of(self.topic, where, limit=limit)

    async def browse_of(self, topic: Topic, where: Filter | None = None, *, limit: int = 100) -> list[Message]:
        """Every message of a topic that matches, page by page."""
        messages: list[Message] = []
        cursor: bytes | None = None
        while True:
            page = await self.storage.browse(topic, where or Filter(), cursor, limit, self.now)
            assert len(page.messages) <= limit
            messages += page.messages
            if page.cursor is None:
                return messages
            assert page.messages, "an empty page has a cursor"
            cursor = page.cursor


async def refusal_of(answer: Awaitable[object]) -> Code:
    """The code with which the call was refused as a whole; OK when it succeeded."""
    try:
        await answer
    except Refused as refusal:
        return refusal.code
    return Code.OK


def listed(outcomes: Outcomes, count: int) -> list[Code]:
    """The outcome of every row."""
    assert all(0 <= row < count for row in outcomes.codes), "an outcome names a row that was not asked for"
    return [outcomes[row] for row in range(count)]


def ids_of(batch: CreateBatch) -> list[str]:
    """Every id of a batch."""
    if batch.ids is not None:
        return list(batch.ids)
    return generated_ids(batch.session.prefix(batch.bucket), batch.sequence, len(batch))


def _within(lease: LeaseSet, rows: Sequence[RowRange] | None) -> bool:
    return all(0 <= start < end <= len(lease) for start, end in rows or ())


def positions(lease: LeaseSet, rows: Sequence[RowRange] | None) -> list[int]:
    """Every place in the lease's columns that the ranges name."""
    return [place for start, end in rows or [(0, len(lease))] for place in range(start, end)]


def numbered(lease: LeaseSet, rows: Sequence[RowRange] | None) -> list[RowRange] | None:
    """Convert ranges of places in the lease's columns to ranges of row numbers; places outside stay unchanged."""
    if rows is None:
        return None
    if not _within(lease, rows):
        return list(rows)
    ranges: list[RowRange] = []
    for place in positions(lease, rows):
        number = numbers_of(lease)[place]
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return ranges


async def settled(answer: Awaitable[Outcomes], lease: LeaseSet, rows: Sequence[RowRange] | None = None) -> list[Code]:
    """The outcome of each requested row; a lease that is forgotten as a whole may answer with one outcome for all."""
    asked = [numbers_of(lease)[place] for place in positions(lease, rows)] if _within(lease, rows) else []
    try:
        outcomes = await answer
    except Conflict as refusal:
        return [refusal.code] * len(asked)
    if rows is None and set(outcomes.codes) == {0} and outcomes.count < len(lease):
        assert outcomes[0] is Code.LEASE_LOST, "a forgotten lease answers LEASE_LOST"
        return [Code.LEASE_LOST] * len(asked)
    assert set(outcomes.codes) <= set(asked), "an outcome names a row that was not asked for"
    return [outcomes[number] for number in asked]


def check_shape(lease: LeaseSet, request: LeaseRequest, *, by_priority: bool = False) -> None:
    """Every column of a lease set is None or as long as the set, and the set is sorted and matches the request."""
    count = len(lease)
    assert 0 < count <= request.rows_max
    assert lease.consumer == request.consumer
    assert lease.expires == request.expires
    for column in (lease.ids(), lease.bodies, lease.attempts, lease.priorities, lease.headers, lease.rows):
        assert column is None or len(column) == count
    columns = (priorities_of(lease), lease.ts) if by_priority else (lease.ts, priorities_of(lease))
    keys = list(zip(*columns, strict=True))
    assert keys == sorted(keys), "the rows of a lease are not sorted by time and priority"
    # A store with several parts has numbered rows before it found that they are dead letters.
    numbers = set(numbers_of(lease))
    assert len(numbers) == count, "two rows of a lease have one number"
    assert numbers <= set(range(count + lease.dead_lettered)), "the rows of a new lease are numbered from 0"


def attempts_of(lease: LeaseSet) -> list[int]:
    """The attempts of every row."""
    return lease.attempts if lease.attempts is not None else [1] * len(lease)


def priorities_of(lease: LeaseSet) -> list[int]:
    """The priority of every row."""
    return lease.priorities if lease.priorities is not None else [0] * len(lease)


def headers_of(lease: LeaseSet) -> list[bytes]:
    """The encoded headers of every row."""
    return lease.headers if lease.headers is not None else [b""] * len(lease)


def numbers_of(lease: LeaseSet) -> list[int]:
    """The row number of every row."""
    return lease.rows if lease.rows is not None else list(range(len(lease)))


def sized_to(count: int, values: Sequence[T]) -> list[T]:
    """`values`, repeated to a length of `count`."""
    return [values[index % len(values)] for index in range(count)]
