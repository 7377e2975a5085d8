"""A storage and the memory model side by side: each step is done on both and the answers are compared."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, RowRange
from dejaq.domain.ids import ProducerSession
from dejaq.domain.large import any_reference, content_of
from dejaq.domain.message import Message, Status
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.errors import Code, Conflict
from dejaq.storage.base import Edits, Filter, Storage
from dejaq.storage.memory import MemoryStorage
from dejaq.storage.steps import CancelStep, CreateStep, DeleteStep, EditStep, ReleaseStep, Step, Transaction
from dejaq.testing.conformance.scene import (
    START_MS,
    StorageFactory,
    attempts_of,
    check_shape,
    headers_of,
    ids_of,
    listed,
    numbers_of,
    priorities_of,
    settled,
)
from dejaq.testing.pair_uploads import UploadPairs
from dejaq.testing.replay import Replay, described, events_of, read_journal

BUCKETS = 3
_SESSIONS = 2
_CONSUMERS = ("worker-1", "worker-2")
_OWNERS = ("billing", "mail")


# Delay, priority, name of a body, headers.
Row = tuple[int, int, str, bytes]


class Change(Enum):
    """What a step of a transaction may do."""

    CREATE = auto()
    MOVE = auto()
    CANCEL = auto()
    DELETE = auto()
    RELEASE = auto()


class Settle(Enum):
    """What a consumer may do to rows of its lease."""

    DELETE = auto()
    EXTEND = auto()
    RELEASE = auto()
    RELEASE_EACH = auto()
    RECALL = auto()
    REJECT = auto()


@dataclass(frozen=True, slots=True)
class Plan:
    """One step of a transaction: what it does, and what picks the message, row or lease it does it to."""

    change: Change
    pick: int
    recent: bool
    delay: int
    owner: str
    # Of what is created: a natural id, or none for a generated one, and the name of its body.
    id: str = ""
    body: str = "made"


@dataclass(frozen=True, slots=True)
class LeasePair:
    """One lease, as the storage and as the model know it: equal row numbers, different ids."""

    real: LeaseSet
    model: LeaseSet

    @property
    def count(self) -> int:
        """How many rows it began with."""
        return len(self.real)


class Pair:
    """Drives both. Where several messages are equally next, the storage chooses and the model follows."""

    def __init__(self, factory: StorageFactory, *, journal: bool = False) -> None:
        self._factory = factory
        self._journal = journal
        self._journalled = 0
        self._replay = Replay()
        self._real: Storage = factory()
        self._model = MemoryStorage()
        self._topic = Topic("model", 1, TopicSettings(buckets=BUCKETS))
        self._dead = Topic("model.dead", 2, TopicSettings(buckets=2))
        self._sequences = [0] * _SESSIONS
        self._versions: dict[str, dict[int, int]] = {}
        self._transactions = 0
        self._made = 0
        self.uploads = UploadPairs()
        self.now = START_MS
        self.batches: list[CreateBatch] = []
        self.leases: list[LeasePair] = []
        self.ids: list[str] = []

    async def open(
        self, *, max_attempts: int = 0, expiry_backoff: str = "", kind: TopicKind = TopicKind.TIMELINE
    ) -> None:
        """Open both, and make the topic and the one for its dead letters."""
        await self._real.open(self.now)
        await self._model.open(self.now)
        chosen = TopicSettings(buckets=BUCKETS, max_attempts=max_attempts, expiry_backoff=expiry_backoff, kind=kind)
        self._topic = replace(self._topic, number=await self._real.next_topic_number(), settings=chosen)
        self._dead = replace(self._dead, number=await self._real.next_topic_number())
        for topic in (self._topic, self._dead):
            await self._real.put_topic(topic)
            await self._model.put_topic(topic)

    async def close(self) -> None:
        """Close both."""
        await self._real.close()
        await self._model.close()

    async def restart(self) -> None:
        """Close the storage and open another over the same contents; the model goes on."""
        await self._real.close()
        self._real = self._factory()
        await self._real.open(self.now)
        await self.uploads.follow(self._real, self._model, self._topic, self.now)

    # The producer's side

    async def create(
        self,
        *,
        ids: Sequence[str] | None,
        rows: Sequence[Row],
        owner: str,
        session: int,
        back: int,
        refused: AbstractSet[int],
        bucket: int = 0,
    ) -> None:
        """Create `rows`; their counters begin `back` before the session's next one, or leave a gap."""
        number = session % _SESSIONS
        sequence = max(0, self._sequences[number] - back)
        self._sequences[number] = max(self._sequences[number], sequence + len(rows))
        batch = CreateBatch(
            owner=owner,
            session=ProducerSession(START_MS, number),
            sequence=sequence,
            ts=[self.now + delay for delay, _, _, _ in rows],
            bodies=[self._body(name) for _, _, name, _ in rows],
            ids=ids,
            bucket=bucket,
            priorities=[priority for _, priority, _, _ in rows],
            headers=[headers for _, _, _, headers in rows],
            refused=dict.fromkeys(refused, Code.TOO_FAR),
        )
        batch.large = any_reference(batch.bodies)
        await self._send(batch)
        self.batches.append(batch)
        self.ids += [one for one in ids_of(batch) if one not in self.ids]

    async def repeat(self, pick: int) -> None:
        """Send an earlier batch again; what was refused then is admitted now."""
        batch = self.batches[pick % len(self.batches)]
        await self._send(replace(batch, refused={} if pick % 2 else batch.refused))

    async def _send(self, batch: CreateBatch) -> None:
        if batch.large:
            await self._name(batch.bodies)
        expected = listed(await self._model.create(self._topic, self._in_model(batch), self.now), len(batch))
        codes = listed(await self._real.create(self._topic, batch, self.now), len(batch))
        assert codes == expected, f"create answered {codes}, the model {expected}"

    async def edit(
        self,
        picks: Sequence[int],
        *,
        owner: str,
        delays: Sequence[int | None] | None,
        bodies: Sequence[str | None] | None,
        priorities: Sequence[int | None] | None,
        headers: Sequence[bytes | None] | None,
        versions: str | None,
    ) -> None:
        """Edit; `versions` makes it conditional on the present or the first version that was seen."""
        ids = self._picked(picks)
        edits = Edits(
            ids,
            ts=[None if one is None else self.now + one for one in delays] if delays is not None else None,
            bodies=[None if one is None else self._body(one) for one in bodies] if bodies is not None else None,
            priorities=priorities,
            headers=headers,
        )
        named = [body for body in edits.bodies or () if body is not None]
        if any_reference(named):
            edits = replace(edits, large=True)
            await self._name(named)
        twin = edits
        if edits.bodies is not None:
            twin = replace(edits, bodies=[body and self.uploads.in_model(body) for body in edits.bodies])
        known = [list(self._versions.get(one, {0: 0}).items()) for one in ids]
        index = -1 if versions == "present" else 0
        conditions: list[tuple[list[int] | None, Storage, Edits]] = [
            ([pairs[index][0] for pairs in known] if versions else None, self._model, twin),
            ([pairs[index][1] for pairs in known] if versions else None, self._real, edits),
        ]
        expected, codes = [
            listed(await storage.edit(self._topic, owner, replace(own, versions=values), self.now), len(ids))
            for values, storage, own in conditions
        ]
        assert codes == expected, f"edit answered {codes}, the model {expected}"

    async def cancel(self, picks: Sequence[int], *, owner: str) -> None:
        """Cancel."""
        await self._cancel(self._picked(picks), owner)

    async def cancel_batch(self, pick: int) -> None:
        """Cancel what is left of an earlier batch."""
        batch = self.batches[pick % len(self.batches)]
        await self._cancel(ids_of(batch), batch.owner)

    async def _cancel(self, ids: Sequence[str], owner: str) -> None:
        expected = listed(await self._model.cancel(self._topic, owner, ids, self.now), len(ids))
        codes = listed(await self._real.cancel(self._topic, owner, ids, self.now), len(ids))
        assert codes == expected, f"cancel answered {codes}, the model {expected}"

    def _picked(self, picks: Sequence[int]) -> list[str]:
        return [self.ids[pick % len(self.ids)] for pick in picks]

    # Large bodies

    async def upload(self, bucket: int, content: bytes) -> None:
        """Upload a body, for a message of some bucket."""
        await self.uploads.add(self._real, self._model, self._topic, bucket, content, self.now)

    async def reclaim(self) -> None:
        """Remove the bodies that nobody needs."""
        await self.uploads.reclaim(self._real, self._model, self._topic, self.now)

    async def _name(self, bodies: Sequence[bytes]) -> None:
        """Before messages get these bodies, see which are there."""
        await self.uploads.follow(self._real, self._model, self._topic, self.now)
        self.uploads.named(bodies, self.now)

    def _in_model(self, batch: CreateBatch) -> CreateBatch:
        return replace(batch, bodies=list(map(self.uploads.in_model, batch.bodies))) if batch.large else batch

    def _body(self, name: str) -> bytes:
        """The body of a name; histories are printed, so the large one is not spelled out in them."""
        uploaded = self.uploads.body(int(name[-1])) if name.startswith("upload") else None
        return uploaded or name.encode() * (limits.INLINE_BODY_BYTES_MAX if name == "large" else 1)

    # The consumer's side

    async def lease(self, *, consumer: str, ahead: int, lease_ms: int, buckets: Sequence[int], rows_max: int) -> None:
        """Lease from the storage; the model checks that these were next and leases the same."""
        request = LeaseRequest(
            buckets=buckets,
            consumer=consumer,
            until=self.now + ahead,
            expires=self.now + ahead + lease_ms,
            rows_max=rows_max,
            dead_letter=self._dead,
        )
        free = await self._model.leasable(self._topic, request, self.now)
        real = await self._real.lease(self._topic, request, self.now)
        if real is None:
            assert not free, f"nothing was leased, although {[m.id for m in free]} are due"
            return
        still = await self._real.get(self._topic, [m.id for m in free], self.now)
        died = [message for message, left in zip(free, still, strict=True) if left is None]
        assert len(died) == real.dead, f"{real.dead} were moved, {[m.id for m in died]} are gone"
        if len(real):
            check_shape(real, request, by_priority=self._topic.by_priority)
        keys = [*zip(real.ts, priorities_of(real), strict=True), *((m.ts, m.priority) for m in died)]
        keys.sort(key=(lambda key: key[::-1]) if self._topic.by_priority else None)
        assert keys == [(m.ts, m.priority) for m in free[: len(keys)]], "what was leased was not next"
        numbers = numbers_of(real)
        by_number = [real.ids()[numbers.index(number)] for number in range(len(real))]
        model = await self._model.lease_these(
            self._topic, by_number, request, self.now, dead=[message.id for message in died]
        )
        assert model is not None, f"{by_number} were leased, which may not be"
        assert _rows(real) == _rows(model)
        if len(real):
            self.leases.append(LeasePair(real, model))

    async def redrive(self, picks: Sequence[int]) -> None:
        """Move dead letters back."""
        there = [message.id for message in await self._browse(self._model, Filter(), limit=1_000, topic=self._dead)]
        ids = [[*there, "nobody"][pick % (len(there) + 1)] for pick in picks]
        expected = listed(await self._model.redrive(self._dead, self._topic, ids, self.now), len(ids))
        codes = listed(await self._real.redrive(self._dead, self._topic, ids, self.now), len(ids))
        assert codes == expected, f"redrive answered {codes}, the model {expected}"

    async def settle(
        self,
        kind: Settle,
        lease: LeasePair,
        *,
        rows: Sequence[RowRange] | None,
        stranger: bool,
        delay: int,
        lease_ms: int,
    ) -> None:
        """Settle rows by number, now and then by a consumer that does not hold them."""
        codes, expected = [
            await self._settle(storage, kind, one, rows, stranger=stranger, delay=delay, lease_ms=lease_ms)
            for storage, one in ((self._real, lease.real), (self._model, lease.model))
        ]
        assert codes == expected, f"{kind.name} answered {codes}, the model {expected}"

    async def _settle(
        self,
        storage: Storage,
        kind: Settle,
        lease: LeaseSet,
        rows: Sequence[RowRange] | None,
        *,
        stranger: bool,
        delay: int,
        lease_ms: int,
    ) -> list[Code]:
        consumer = "stranger" if stranger else lease.consumer
        topic, lease_id, now = self._topic, lease.lease_id, self.now
        count = len(lease) if rows is None else sum(end - start for start, end in rows)
        if kind is Settle.DELETE:
            answer = storage.delete(topic, lease_id, consumer, rows, now)
        elif kind is Settle.EXTEND:
            answer = storage.extend(topic, lease_id, consumer, rows, now + lease_ms, now)
        elif kind is Settle.RELEASE:
            answer = storage.release(topic, lease_id, consumer, rows, now + delay, now)
        elif kind is Settle.RELEASE_EACH:
            # Named row by row, since a storage that has forgotten the lease does not know how many it had.
            rows = rows or [(0, count)]
            times = [now + delay + place for place in range(count)]
            answer = storage.release(topic, lease_id, consumer, rows, times, now)
        elif kind is Settle.REJECT:
            answer = storage.reject(topic, lease_id, consumer, rows, self._dead, "no use", now)
        else:
            answer = storage.recall(topic, lease_id, consumer, rows, now)
        return await settled(answer, replace(lease, rows=None), rows)

    # Both sides at once

    async def transact(self, plans: Sequence[Plan], *, back: int) -> None:
        """Do steps together; with `back` under a name that may have been used before."""
        self._transactions = max(0, self._transactions + 1 - back)
        steps = [self._steps_of(plan) for plan in plans]
        await self._name([body for step, _ in steps if isinstance(step, CreateStep) for body in step.batch.bodies])
        name = ProducerSession(START_MS, _SESSIONS)
        real, model = (Transaction(name, self._transactions, [pair[side] for pair in steps]) for side in range(2))
        try:
            verdicts = [await self._real.transact(real, self.now)]
        except Conflict as refusal:
            # A store of several parts does what one of them can do, and says so of the rest.
            if refusal.code is not Code.DIFFERENT_STORES or self._real.capabilities.parts == 1:
                raise
            return
        verdicts.append(await self._model.transact(model, self.now))
        assert verdicts[0] == verdicts[1], f"transact answered {verdicts[0]}, the model {verdicts[1]}"

    def _steps_of(self, plan: Plan) -> tuple[Step, Step]:
        """One step as the storage and as the model know it; there is a message and a lease to name."""
        lease = self.leases[plan.pick % len(self.leases)] if plan.recent else self.leases[-1]
        row = plan.pick % lease.count
        rows, ts = [(row, row + 1)], self.now + plan.delay
        message_id = self.ids[plan.pick % len(self.ids)]
        real, model = lease.real, lease.model
        if plan.change is Change.DELETE:
            return (
                DeleteStep(self._topic, real.lease_id, real.consumer, rows),
                DeleteStep(self._topic, model.lease_id, model.consumer, rows),
            )
        if plan.change is Change.RELEASE:
            return (
                ReleaseStep(self._topic, real.lease_id, real.consumer, rows, ts),
                ReleaseStep(self._topic, model.lease_id, model.consumer, rows, ts),
            )
        step: Step
        if plan.change is Change.MOVE:
            step = EditStep(self._topic, plan.owner, Edits([message_id], ts=[ts]))
        elif plan.change is Change.CANCEL:
            step = CancelStep(self._topic, plan.owner, [message_id])
        else:
            batch = self._batch_of(plan, ts)
            return CreateStep(self._topic, batch), CreateStep(self._topic, self._in_model(batch))
        return step, step

    def _batch_of(self, plan: Plan, ts: int) -> CreateBatch:
        session = ProducerSession(START_MS, _SESSIONS)
        bucket = plan.pick % BUCKETS
        batch = CreateBatch(
            owner=plan.owner,
            session=session,
            sequence=self._made,
            ts=[ts],
            bodies=[self._body(plan.body)],
            ids=[plan.id] if plan.id else None,
            bucket=bucket,
        )
        batch.large = any_reference(batch.bodies)
        self._made += 1
        self.ids += [one for one in ids_of(batch) if one not in self.ids]
        return batch

    # Queries

    async def compare(self) -> None:
        """Everything that can be seen is the same in both."""
        self.uploads.look(self._model, self.now)
        buried = await self._browse(self._model, Filter(), limit=1_000, topic=self._dead)
        assert _plain(await self._browse(self._real, Filter(), limit=4, topic=self._dead)) == _plain(buried)
        expected = await self._browse(self._model, Filter(), limit=1_000)
        found = await self._browse(self._real, Filter(), limit=4)
        assert _plain(found) == _plain(expected)
        for mine, theirs in zip(expected, found, strict=True):
            self._check_version(mine, theirs)
        ids = self.ids[-20:]
        by_id = {message.id: message for message in found}
        got = await self._real.get(self._topic, ids, self.now)
        assert got == [by_id.get(one) for one in ids]
        await self._compare_holders(ids)
        for consumer in _CONSUMERS:
            assert await self._held(self._real, consumer) == await self._held(self._model, consumer)
        await self._compare_next_ts()

    async def compare_journal(self) -> None:
        """The journal alone tells of the messages that stand."""
        if not self._journal:
            return
        for record in await read_journal(self._real, self._journalled):
            self._journalled += 1
            assert record.sequence == self._journalled, f"record {record.sequence} instead of {self._journalled}"
            assert record.at_ms == self.now, "a record has the time of another change"
            self._replay.follow(events_of(record))
        for topic in (self._topic, self._dead):
            found = await self._browse(self._real, Filter(), limit=1_000, topic=topic)
            assert self._replay.standing(topic.name, self.now) == described(found, self.now)

    async def trim_journal(self) -> None:
        """Forget the records that were read."""
        if self._journal:
            await self._real.trim_journal(self._journalled)
            assert await self._real.journal(0, 1) == [], "what was trimmed is still there"

    def _check_version(self, mine: Message, theirs: Message) -> None:
        """One version of the model is one of the storage, for ever, and both are in one order.

        A new one need not be the greatest: what a back-off gave and the lease of the same call hid, a recall shows.
        """
        known = self._versions.setdefault(mine.id, {})
        if mine.version not in known:
            in_order = all((mine.version > model) == (theirs.version > real) for model, real in known.items())
            assert in_order, f"{mine.id} changed, its version did not follow"
        else:
            assert known[mine.version] == theirs.version, f"{mine.id} did not change, its version did"
            # The order of the dictionary is the order of last sight.
            del known[mine.version]
        known[mine.version] = theirs.version

    async def _compare_holders(self, ids: Sequence[str]) -> None:
        tokens = {pair.model.lease_id: pair.real.lease_id for pair in self.leases}
        expected = [
            replace(holder, lease_id=tokens[holder.lease_id]) if holder else None
            for holder in await self._model.holders(self._topic, ids, self.now)
        ]
        assert await self._real.holders(self._topic, ids, self.now) == expected

    async def _held(self, storage: Storage, consumer: str) -> dict[tuple[str, int], tuple[object, ...]]:
        """What the consumer holds, by id and row number; the lease ids differ by nature."""
        return {
            (row[0], number): (one.expires, *row[1:])
            for one in await storage.leases_of(self._topic, consumer, self.now)
            for number, row in _rows(one).items()
        }

    async def _compare_next_ts(self) -> None:
        for buckets in ([0], range(BUCKETS)):
            first = await self._model.next_ts(self._topic, buckets, self.now)
            bound = await self._real.next_ts(self._topic, buckets, self.now)
            if first is not None:
                assert bound is not None, "next_ts is None, although something is there"
                assert bound <= first, "next_ts lies behind the first message"

    async def compare_queries(self, delay: int, step: int) -> None:
        """Count, histogram and browse agree for each field of a filter and for a part of the timeline."""
        start = self.now + delay
        filters = [Filter(), Filter(start=start), Filter(end=start), Filter(start=start, end=start + 61_000)]
        filters += [Filter(status=status) for status in Status]
        filters += [Filter(status=status, start=start) for status in Status]
        filters += [Filter(owner=owner) for owner in _OWNERS]
        filters += [Filter(consumer=consumer, end=start) for consumer in _CONSUMERS]
        filters += [Filter(owner=_OWNERS[0], status=Status.AVAILABLE, consumer=_CONSUMERS[0])]
        filters += [Filter(priorities=(-1, 0)), Filter(headers=(("k", "v"),), start=start)]
        for where in filters:
            count = await self._real.count(self._topic, where, self.now)
            assert count == await self._model.count(self._topic, where, self.now), where
            drawn = await self._real.histogram(self._topic, where, step, self.now)
            assert drawn == await self._model.histogram(self._topic, where, step, self.now), where
            found = await self._browse(self._real, where, limit=3)
            assert _plain(found) == _plain(await self._browse(self._model, where, limit=1_000)), where

    async def _browse(
        self, storage: Storage, where: Filter, *, limit: int, topic: Topic | None = None
    ) -> list[Message]:
        messages: list[Message] = []
        cursor: bytes | None = None
        while True:
            page = await storage.browse(topic or self._topic, where, cursor, limit, self.now)
            messages += page.messages
            cursor = page.cursor
            if cursor is None:
                return messages
            assert page.messages, "an empty page has a cursor"


def _plain(messages: Sequence[Message]) -> list[Message]:
    """Without versions and the places of large bodies, whose numbers are each store's own."""
    return [replace(message, version=0, body=content_of(message.body)) for message in messages]


def _rows(lease: LeaseSet) -> dict[int, tuple[str, int, bytes, int, int, bytes]]:
    """Each row of a lease set by its number."""
    columns = zip(
        lease.ids(),
        lease.ts,
        map(content_of, lease.bodies),
        attempts_of(lease),
        priorities_of(lease),
        headers_of(lease),
        strict=True,
    )
    return dict(zip(numbers_of(lease), columns, strict=True))
