"""Small creates, deletes, transactions and changes by id wait for each other: what arrives during one sync is applied
together, and shares the next.

A change that is written during a sync waits for the end of that sync and then for one of its own. A change that waits
is therefore not slower if it is applied only when the first of the two ends. Together they cost one write, one record
of the journal and one update of the counts, and creates share runs.

Nothing overtakes them where that could be seen: before a topic is read, or changed in another way, what waits for it is
applied. A lease applies what is due by its time, and every delete if a lease has ended meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Durability, Topic
from dejaq.errors import Refused
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.timeline.far.pending_by_id import ApplyChanges, ChangeGroup, PendingById
from dejaq.storage.transactions import Transaction, Verdict

# A batch with more rows has runs of its own.
SMALL_ROWS = 64
# So many creates, rows or bytes of one topic, frames with deletes, or transactions, that wait are applied at once: to
# apply them is one step of the event loop.
ROWS_MAX = 1_024
CREATES_MAX = 128
# So many creates of all topics do not wait for the end of a sync.
ALL_CREATES_MAX = 256
BYTES_MAX = 512 * 1024
DELETES_MAX = 32
TRANSACTIONS_MAX = 16
# What one step costs, in us: the creates of another topic, a create, another row of a create, a frame with deletes. A
# step has one topic, or several that cost less than this together. The costs are constants, and not measured each time,
# so that a repeat does the same.
STEP_US = 1_000
_TOPIC_US, _CREATE_US, _ROW_US, _DELETES_US = 80, 8, 1, 20

Answers = Sequence[Outcomes | Refused]
Answer = asyncio.Future[list[Outcomes | Refused]]


@dataclass(slots=True)
class PendingGroup:
    """Creates in one topic, of one caller as the journal knows it, that are applied together."""

    topic: Topic
    context: CallContext
    creates: list[Create] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    # Each id occurs once.
    ids: set[str] = field(default_factory=set)
    now: int = 0
    # The earliest time of all messages, and the sizes together.
    first_ts: int = 0
    rows: int = 0
    bytes: int = 0

    def add(self, create: Create, answer: Answer, ids: Sequence[str], now: int) -> None:
        """Add a create."""
        first = min(create.batch.ts)
        self.first_ts = min(self.first_ts, first) if self.creates else first
        self.creates.append(create)
        self.answers.append(answer)
        self.ids.update(ids)
        self.now = max(self.now, now)
        self.rows += len(create.batch)
        self.bytes += sum(map(len, create.batch.bodies))

    @property
    def is_full(self) -> bool:
        """Whether no more creates fit into one step."""
        return len(self.creates) >= CREATES_MAX or self.rows >= ROWS_MAX or self.bytes >= BYTES_MAX

    @property
    def cost_us(self) -> int:
        """What it takes to apply them, roughly."""
        return _TOPIC_US + _CREATE_US * len(self.creates) + _ROW_US * self.rows


@dataclass(slots=True)
class PendingDeletes:
    """Deletes of one frame, and the time at which they arrived."""

    changes: Sequence[Change]
    now: int
    context: CallContext
    answer: Answer

    def concerns(self, number: int) -> bool:
        """Whether it deletes messages of the topic of this number."""
        return any(change.topic.number == number for change in self.changes)


@dataclass(slots=True)
class PendingTransactions:
    """Transactions of one call, and the time at which they arrived."""

    transactions: Sequence[Transaction]
    now: int
    context: CallContext
    answer: asyncio.Future[list[Verdict | Refused]]
    # The numbers of their topics, and the earliest time of a message that they create in each topic.
    topics: set[int]
    first_ts: dict[int, int]

    @classmethod
    def of(cls, transactions: Sequence[Transaction], now: int, context: CallContext) -> PendingTransactions:
        """Some transactions, which are not answered yet."""
        topics: set[int] = set()
        first_ts: dict[int, int] = {}
        for transaction in transactions:
            for step in transaction.steps:
                number = step.topic.number
                topics.add(number)
                if isinstance(step, Create):
                    first = min(step.batch.ts)
                    first_ts[number] = min(first, first_ts.get(number, first))
        return cls(transactions, now, context, asyncio.get_running_loop().create_future(), topics, first_ts)


# What is applied in one write: the answers to each frame of deletes and to each group of creates, and what is to be
# durable before them.
Applied = tuple[tuple[Sequence[Answers], Sequence[Answers]], asyncio.Future[None] | None]
ApplyTogether = Callable[[Sequence[PendingDeletes], Sequence[PendingGroup]], Applied]
# Some transactions, each with the time of its arrival, of which the first ones are done in one write: their verdicts,
# and what is to be durable before them.
Verdicts = list[Verdict | Refused]
TransactTogether = Callable[
    [Sequence[tuple[Transaction, int]], CallContext], tuple[Verdicts, asyncio.Future[None] | None]
]


def is_small(create: Create) -> bool:
    """Whether a create waits for others."""
    return len(create.batch) <= SMALL_ROWS


def deletes_few(changes: Sequence[Change]) -> bool:
    """Whether changes are deletes of few rows, which wait for others."""
    rows = 0
    for change in changes:
        if not isinstance(change, Delete) or change.rows is None:
            return False
        rows += sum([end - start for start, end in change.rows])
    return rows <= SMALL_ROWS


class PendingChanges:
    """The changes that wait. `apply` and `transact` do those of one caller, as the journal knows it, in one write."""

    def __init__(
        self, committer: Committer, apply: ApplyTogether, transact: TransactTogether, change: ApplyChanges
    ) -> None:
        self._committer = committer
        self._by_id = PendingById(change)
        self._apply = apply
        self._transact = transact
        self._loop = asyncio.get_running_loop()
        # By the number of the topic and the caller.
        self._groups: dict[tuple[int, str], PendingGroup] = {}
        self._deletes: list[PendingDeletes] = []
        self._calls: list[PendingTransactions] = []
        # How many transactions these calls have; how many creates and rows all groups have.
        self._transactions = 0
        self._creates = self._rows = 0
        # Whether the next step is expected.
        self._expected = False

    def add(self, create: Create, now: int, context: CallContext) -> Answer:
        """Have a create applied soon; returns its answer."""
        topic, batch = create.topic, create.batch
        place = topic.number, context.principal.recorded
        group = self._groups.get(place)
        ids = batch.all_ids()
        taken = group is not None and not group.ids.isdisjoint(ids)
        if taken or (self._by_id and self._by_id.names_any(topic.number, ids)):
            # The second create with an id is decided when the first one is done.
            self.flush(topic.number)
            group = None
        self._expect_turn()
        if group is None:
            group = self._groups[place] = PendingGroup(topic, context)
        answer: Answer = self._loop.create_future()
        group.add(create, answer, ids, now)
        self._creates, self._rows = self._creates + 1, self._rows + len(batch)
        if group.is_full:
            self.flush(topic.number)
        elif self._creates >= ALL_CREATES_MAX or self._rows >= ROWS_MAX:
            self._expect_flush()
        return answer

    def add_deletes(self, changes: Sequence[Change], now: int, context: CallContext) -> Answer:
        """Have the deletes of a frame applied soon; returns their answers."""
        self._expect_turn()
        answer: Answer = self._loop.create_future()
        self._deletes.append(PendingDeletes(changes, now, context, answer))
        if len(self._deletes) >= DELETES_MAX or any(_is_relaxed(change.topic) for change in changes):
            self.flush()
        return answer

    def add_transactions(
        self, transactions: Sequence[Transaction], now: int, context: CallContext
    ) -> asyncio.Future[list[Verdict | Refused]]:
        """Have transactions done soon; returns their verdicts."""
        self._expect_turn()
        call = PendingTransactions.of(transactions, now, context)
        self._calls.append(call)
        self._transactions += len(transactions)
        if self._transactions >= TRANSACTIONS_MAX:
            self.flush()
        return call.answer

    def add_by_id(self, change: Edit | Cancel, now: int, context: CallContext) -> Answer:
        """Have an edit or a cancel applied soon, behind the creates that wait; returns its answer."""
        if self._by_id.names_of(change):
            self.flush(change.topic.number)
        self._expect_turn()
        answer: Answer = self._loop.create_future()
        if self._by_id.add(change, answer, now, context):
            self.flush()
        return answer

    @property
    def _empty(self) -> bool:
        return not (self._groups or self._deletes or self._calls or self._by_id)

    def _expect_turn(self) -> None:
        if self._empty:
            self._loop.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        """Apply what waits, unless a sync is in progress, whose end does it."""
        relaxed = any(_is_relaxed(group.topic) for group in self._groups.values())
        if relaxed or not self._committer.syncing:
            self.begin_flush()

    def begin_flush(self) -> None:
        """Apply some of what waits, oldest first, and the rest in later steps of the event loop."""
        if self._expected:
            return
        groups, cost = dict[tuple[int, str], PendingGroup](), _DELETES_US * len(self._deletes)
        for place, group in self._groups.items():
            cost += group.cost_us
            if groups and cost > STEP_US:
                break
            groups[place] = group
        if len(groups) == len(self._groups):
            self.flush()
            return
        for place in groups:
            del self._groups[place]
        deletes, self._deletes = self._deletes, []
        self._count()
        self._expect_flush()
        self._apply_by_caller(deletes, groups.values())

    def _expect_flush(self) -> None:
        if not self._expected:
            self._expected = True
            self._loop.call_soon(self._continue_flush)

    def _continue_flush(self) -> None:
        self._expected = False
        self.begin_flush()

    def earliest(self, topic: Topic, stored: int | None) -> int | None:
        """The earliest time of what waits for a topic, or that of what is stored."""
        if not self._groups and not self._calls and not self._by_id:
            return stored
        times = [group.first_ts for group in self._of(topic.number)]
        times += [call.first_ts[topic.number] for call in self._calls if topic.number in call.first_ts]
        times += self._by_id.earliest(topic)
        return min(times if stored is None else [stored, *times], default=None)

    def flush_due(self, topic: Topic, until: int) -> None:
        """Apply what waits for a topic, if a message of it is due by `until`."""
        first = self.earliest(topic, None)
        if first is not None and first <= until:
            self.flush(topic.number)

    def flush_deletes(self, number: int) -> None:
        """Apply what waits for a topic, if a delete or a transaction does."""
        if any(one.concerns(number) for one in self._deletes) or any(number in one.topics for one in self._calls):
            self.flush(number)

    def _of(self, number: int) -> list[PendingGroup]:
        return [group for (topic, _), group in self._groups.items() if topic == number]

    def flush(self, number: int | None = None) -> None:
        """Apply what waits, for the topic of this number or for all of them."""
        if self._empty:
            return
        if number is None:
            groups, self._groups = list(self._groups.values()), {}
            deletes, self._deletes = self._deletes, []
            calls, self._calls = self._calls, []
        else:
            groups = self._of(number)
            self._groups = {place: group for place, group in self._groups.items() if place[0] != number}
            deletes = [one for one in self._deletes if one.concerns(number)]
            self._deletes = [one for one in self._deletes if not one.concerns(number)]
            calls = [one for one in self._calls if number in one.topics]
            self._calls = [one for one in self._calls if number not in one.topics]
        self._transactions = sum([len(one.transactions) for one in self._calls])
        self._count()
        self._apply_by_caller(deletes, groups)
        transacting: defaultdict[str, list[PendingTransactions]] = defaultdict(list)
        for call in calls:
            transacting[call.context.principal.recorded].append(call)
        for some in transacting.values():
            self._transact_together(some)
        for changing in self._by_id.take(number):
            self._change_together(changing)

    def _count(self) -> None:
        self._creates = sum([len(group.creates) for group in self._groups.values()])
        self._rows = sum([group.rows for group in self._groups.values()])

    def _apply_by_caller(self, deletes: Iterable[PendingDeletes], groups: Iterable[PendingGroup]) -> None:
        callers: dict[tuple[str, bool], tuple[list[PendingDeletes], list[PendingGroup]]] = {}
        for one in deletes:
            relaxed = all(_is_relaxed(change.topic) for change in one.changes)
            callers.setdefault((one.context.principal.recorded, relaxed), ([], []))[0].append(one)
        for group in groups:
            caller = group.context.principal.recorded, _is_relaxed(group.topic)
            callers.setdefault(caller, ([], []))[1].append(group)
        for mine, made in callers.values():
            self._apply_together(mine, made)

    def _apply_together(self, deletes: Sequence[PendingDeletes], groups: Sequence[PendingGroup]) -> None:
        waiting = [one.answer for one in deletes] + [answer for group in groups for answer in group.answers]
        try:
            (deleted, created), durable = self._apply(deletes, groups)
        except Exception as cause:  # noqa: BLE001  each caller raises it
            _fail(waiting, cause)
            return
        _give_when(
            durable, waiting, [list(answer) for answer in deleted] + [[one] for group in created for one in group]
        )

    def _change_together(self, group: ChangeGroup) -> None:
        try:
            answers, durable = self._by_id.change(group)
        except Exception as cause:  # noqa: BLE001  each caller raises it
            _fail(group.answers, cause)
            return
        _give_when(durable, group.answers, answers)

    def _transact_together(self, calls: Sequence[PendingTransactions]) -> None:
        """Do transactions in one write, or in several where one names a message of another one."""
        waiting = [call.answer for call in calls]
        left = [(transaction, call.now) for call in calls for transaction in call.transactions]
        verdicts: Verdicts = []
        durable = None
        try:
            while left:
                some, durable = self._transact(left, calls[0].context)
                verdicts += some
                left = left[len(some) :]
        except Exception as cause:  # noqa: BLE001  each caller raises it
            _fail(waiting, cause)
            return
        answers = iter(verdicts)
        _give_when(durable, waiting, [[next(answers) for _ in call.transactions] for call in calls])


def _is_relaxed(topic: Topic) -> bool:
    """Whether callers of a topic do not wait for a sync."""
    return topic.settings.durability is not Durability.FSYNC


def answer_when(durable: asyncio.Future[None] | None, answers: list[Outcomes | Refused]) -> Answer:
    """A future that has these answers when `durable` is done."""
    answer: Answer = asyncio.get_running_loop().create_future()
    _give_when(durable, [answer], [answers])
    return answer


def _give_when(
    durable: asyncio.Future[None] | None, waiting: Sequence[asyncio.Future[Any]], answers: Sequence[Sequence[object]]
) -> None:
    if durable is None:
        _give(waiting, answers)
    else:
        durable.add_done_callback(_Giving(waiting, answers))


class _Giving:
    """Gives answers when a future is done."""

    def __init__(self, waiting: Sequence[asyncio.Future[Any]], answers: Sequence[Sequence[object]]) -> None:
        self._waiting, self._answers = waiting, answers

    def __call__(self, durable: asyncio.Future[None]) -> None:
        if durable.cancelled():
            _fail(self._waiting, asyncio.CancelledError())
        elif (cause := durable.exception()) is not None:
            _fail(self._waiting, cause)
        else:
            _give(self._waiting, self._answers)


def _give(waiting: Sequence[asyncio.Future[Any]], answers: Sequence[Sequence[object]]) -> None:
    for one, answer in zip(waiting, answers, strict=True):
        if not one.done():
            one.set_result(answer)


def _fail(waiting: Sequence[asyncio.Future[Any]], cause: BaseException) -> None:
    for one in waiting:
        if not one.done():
            one.set_exception(cause)
            # Its caller may have been cancelled.
            one.exception()
