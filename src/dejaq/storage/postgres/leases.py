"""Leasing and deleting on PostgreSQL: the calls of several consumers share statements, and leases are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes, whole
from dejaq.domain.changes import Delete, Recall
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Durability, Topic
from dejaq.errors import InvalidArgument, Refused
from dejaq.storage.grouping import attempt
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.joint_calls import JointCalls, NotTogether
from dejaq.storage.postgres.keys import LeaseKeys
from dejaq.storage.postgres.operations import applying, joint_leasing, leasing, settling
from dejaq.storage.postgres.operations.change import TopicTransaction
from dejaq.storage.postgres.operations.leasing import Joined

# Leases over more buckets run by themselves: their rows are read in one order, only as far as needed.
JOINT_BUCKETS_MAX = 4
_LEASES_KNOWN_MAX = 10_000
# While many consumers make calls, statements begin so far apart. Most leases are made well before messages are due.
GATHER_SECONDS = 0.02

Result = TypeVar("Result")
Granted = tuple[LeaseSet, LeaseKeys]
# An answer for each change of a call.
Settled = list[Outcomes | Refused]


@dataclass(frozen=True, slots=True)
class _LeaseAtServer:
    topic: Topic
    request: LeaseRequest
    now: int
    context: CallContext
    joined: Joined | None

    @property
    def kind(self) -> Hashable:
        if self.joined is not None or self.topic.by_priority or len(self.request.buckets) > JOINT_BUCKETS_MAX:
            return None
        dead_letter = self.request.dead_letter
        return (self.topic, self.context.principal, None if dead_letter is None else dead_letter.number)

    @property
    def caller(self) -> Hashable:
        return self.request.consumer

    @property
    def needs(self) -> frozenset[Hashable]:
        # Calls for the same buckets run one after the other, so that none skips locked rows.
        return frozenset((self.topic.number, bucket) for bucket in self.request.buckets)


@dataclass(frozen=True, slots=True)
class _DeleteAtServer:
    """Deletes of one consumer; with a removal for each if this process knows the leases."""

    topic: Topic
    deletes: Sequence[Delete]
    removals: Sequence[settling.Removal] | None
    now: int
    context: CallContext

    @property
    def kind(self) -> Hashable:
        return None if self.removals is None else ("delete", self.topic, self.context.principal)

    @property
    def caller(self) -> Hashable:
        return self.deletes[0].consumer

    @property
    def needs(self) -> frozenset[Hashable]:
        # Two statements that remove rows of the same leases would wait for each other's commit, or deadlock.
        return frozenset(one.lease_id for one in self.deletes)


@dataclass(frozen=True, slots=True)
class _RecallAtServer:
    change: Recall
    now: int
    context: CallContext

    @property
    def kind(self) -> Hashable:
        return ("recall", self.change.topic, self.context.principal)

    @property
    def caller(self) -> Hashable:
        return self.change.consumer

    @property
    def needs(self) -> frozenset[Hashable]:
        return frozenset((self.change.lease_id,))


@dataclass(frozen=True, slots=True)
class _NextTime:
    topic: Topic
    buckets: Sequence[int]

    kind = "next"
    needs = frozenset[Hashable]()

    @property
    def caller(self) -> Hashable:
        return (self.topic.number, *self.buckets[:1])


class Change(Protocol):
    """Runs work as one change of a topic."""

    def __call__(
        self,
        topic: Topic,
        now: int,
        context: CallContext,
        work: Callable[[TopicTransaction], Awaitable[Result]],
        *,
        rows: int = 0,
    ) -> Awaitable[Result]:
        """`work` leaves `rows` dead rows in the tables."""


class PostgresLeases:
    """Creates leases, deletes their rows, and knows the rows of the leases of this process."""

    def __init__(
        self,
        database: PostgresDatabase,
        change: Change,
        begin: Callable[[PostgresLink, Topic, int, CallContext], TopicTransaction],
        written: Callable[[int, int, int], None],
    ) -> None:
        """`begin` makes a change that commits by itself; `written` records its bytes, rows and time."""
        self._database = database
        self._change = change
        self._begin = begin
        self._written = written
        # A cache of what this process wrote and read last. The statements check it.
        self._known: OrderedDict[int, tuple[int, LeaseKeys]] = OrderedDict()
        self._lease_calls = JointCalls(self._lease_each, self._lease_one, gather_seconds=GATHER_SECONDS)
        self._settle_calls = JointCalls(self._settle_each, self._settle_one, gather_seconds=GATHER_SECONDS)
        self._next_calls = JointCalls(self._next_each, self._next_one, gather_seconds=GATHER_SECONDS)

    def forget(self) -> None:
        """Forget the rows of all leases."""
        self._known.clear()

    # Leasing

    async def lease(
        self, topic: Topic, request: LeaseRequest, now: int, context: CallContext, joined: Joined | None
    ) -> LeaseSet | None:
        """Lease the due messages."""
        self._database.check_working()
        if topic.by_priority:
            request = replace(request, until=now)
        if not leasing.allowed(request, now):
            return None
        return await self._lease_calls.run(_LeaseAtServer(topic, request, now, context, joined))

    async def _lease_one(self, call: _LeaseAtServer) -> LeaseSet | None:
        granted = await self._change(
            call.topic, call.now, call.context, lambda change: leasing.lease(change, call.request, call.joined)
        )
        return self._given(call, granted)

    async def _lease_each(self, calls: Sequence[_LeaseAtServer]) -> Sequence[LeaseSet | None]:
        """Lease for several consumers in one change; raises `NotTogether`."""
        first, now = calls[0], max(call.now for call in calls)
        requests = [call.request for call in calls]
        granted = await self._change(
            first.topic, now, first.context, lambda change: joint_leasing.lease_each(change, requests)
        )
        return [self._given(call, one) for call, one in zip(calls, granted, strict=True)]

    def _given(self, call: _LeaseAtServer, granted: Granted | None) -> LeaseSet | None:
        if granted is None:
            return None
        lease, keys = granted
        if len(keys):
            self._remember(call.topic.number, lease.lease_id, keys)
        self._written(0, len(lease), call.now)
        return lease

    def _remember(self, topic: int, lease_id: int, keys: LeaseKeys) -> None:
        self._known[lease_id] = (topic, keys)
        if len(self._known) > _LEASES_KNOWN_MAX:
            self._known.popitem(last=False)

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """The remaining rows of a consumer's live leases, which may be of another process."""
        found = partial(self._remember, topic.number)
        return await self._database.look(lambda link: leasing.leases_of(link, topic, consumer, now, found))

    async def keys_of(self, change: TopicTransaction, topic: Topic, lease_id: int) -> Sequence[str] | None:
        """The keys of a lease by row number; the keys of leases from this process are in memory."""
        known = self._known.get(lease_id)
        if known is not None:
            return known[1].listed() if known[0] == topic.number else None
        text: str | None = await change.link.value("lease_keys", topic.number, lease_id)
        return LeaseKeys.unpack(text).listed() if text is not None else None

    # The next time

    async def next_ts(self, topic: Topic, buckets: Sequence[int]) -> int | None:
        """The time at which something in the buckets may become due."""
        return await self._next_calls.run(_NextTime(topic, buckets))

    async def _next_one(self, call: _NextTime) -> int | None:
        return await self._database.read(lambda link: leasing.next_ts(link, call.topic, call.buckets))

    async def _next_each(self, calls: Sequence[_NextTime]) -> Sequence[int | None]:
        asked = [(call.topic, call.buckets) for call in calls]
        return await self._database.read(lambda link: joint_leasing.next_each(link, asked))

    # Settling

    async def _settle_each(self, calls: Sequence[_DeleteAtServer | _RecallAtServer]) -> Sequence[Settled]:
        """Do several calls of one kind in one change; raises `NotTogether`."""
        recalls = [call for call in calls if isinstance(call, _RecallAtServer)]
        return await (self._recall_each(recalls) if recalls else self._delete_each(calls))  # type: ignore[arg-type]

    async def _settle_one(self, call: _DeleteAtServer | _RecallAtServer) -> Settled:
        if isinstance(call, _DeleteAtServer):
            return await self._delete_one(call)
        return [await attempt(self._recall_one(call))]

    async def recall(self, change: Recall, now: int, context: CallContext) -> Outcomes | Refused:
        """Recall rows of a lease."""
        (answer,) = await self._settle_calls.run(_RecallAtServer(change, now, context))
        return answer

    async def _recall_each(self, calls: Sequence[_RecallAtServer]) -> Sequence[Settled]:
        first, now = calls[0], max(call.now for call in calls)

        async def recall(changing: TopicTransaction) -> list[Settled]:
            try:
                rows = [await applying.settlement_of(changing, call.change, self.keys_of) for call in calls]
            except Refused:
                raise NotTogether from None
            await settling.recall(changing, *zip(rows, [call.change.expires for call in calls], strict=True))
            return [[settlement.outcomes] for settlement in rows]

        return await self._change(first.change.topic, now, first.context, recall)

    async def _recall_one(self, call: _RecallAtServer) -> Outcomes:
        change = call.change
        return await self._change(
            change.topic, call.now, call.context, lambda changing: applying.apply(changing, change, self.keys_of)
        )

    async def delete(self, deletes: Sequence[Delete], now: int, context: CallContext) -> Settled:
        """Remove rows of leases of one consumer: in one statement when all are held, otherwise row by row."""
        topic = deletes[0].topic
        answers = await self._settle_calls.run(_DeleteAtServer(topic, deletes, self._removals(deletes), now, context))
        for one, answer in zip(deletes, answers, strict=True):
            if one.rows is None and isinstance(answer, Outcomes) and not answer.codes:
                self._known.pop(one.lease_id, None)
        return answers

    def _removals(self, deletes: Sequence[Delete]) -> list[settling.Removal] | None:
        """What to remove, if this process created the leases; None when the rows must be read."""
        topic = deletes[0].topic
        if topic.settings.durability is Durability.RELAXED:
            return None
        removals: list[settling.Removal] = []
        for one in deletes:
            number, keys = self._known.get(one.lease_id, (0, None))
            if keys is None or number != topic.number:
                return None
            try:
                spans = keys.cut(whole(one.rows, len(keys)))
            except InvalidArgument:
                return None
            removal = settling.Removal(one.lease_id, one.consumer, spans, one.handed_us, len(keys))
            if len(one.handed_us) not in (0, 1, removal.count):
                return None
            removals.append(removal)
        return removals

    async def _delete_each(self, calls: Sequence[_DeleteAtServer]) -> Sequence[Settled]:
        """Remove the rows of several calls in one statement; raises `NotTogether` when one of them is not held."""
        first, now = calls[0], max(call.now for call in calls)
        every = [call.removals or () for call in calls]
        await self._remove(first.topic, [one for removals in every for one in removals], now, first.context)
        return [[Outcomes(removal.lease_rows) for removal in removals] for removals in every]

    async def _delete_one(self, call: _DeleteAtServer) -> Settled:
        if call.removals is not None:
            try:
                await self._remove(call.topic, call.removals, call.now, call.context)
            except NotTogether:
                pass
            else:
                return [Outcomes(removal.lease_rows) for removal in call.removals]

        async def remove(change: TopicTransaction) -> Settled:
            return [await attempt(applying.apply(change, one, self.keys_of)) for one in call.deletes]

        rows = sum(end - start for one in call.deletes for start, end in one.rows or ())
        return await self._change(call.topic, call.now, call.context, remove, rows=rows)

    async def _remove(self, topic: Topic, removals: Sequence[settling.Removal], now: int, context: CallContext) -> None:
        size = 0

        async def remove(link: PostgresLink) -> None:
            nonlocal size
            size = await settling.delete_all(self._begin(link, topic, now, context), removals)

        await self._database.once(remove)
        self._written(size, sum(removal.count for removal in removals), now)
