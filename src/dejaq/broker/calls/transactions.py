"""Transactions: steps of producers and consumers that the storage does together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dejaq import limits
from dejaq.broker.calls.replies import ReplyCalls
from dejaq.broker.delivery.recall import recall_and_retry
from dejaq.broker.delivery.settlements import handed_times, release_times, rows_of
from dejaq.broker.log.transacting import is_log_step, log_step_of, log_steps_done
from dejaq.broker.metrics import CANCELLED, CREATED, DELETED, EDITED, REFUSED, RELEASED, TRANSACTIONS, MetricSpec
from dejaq.broker.sessions.admission import (
    EditColumns,
    check_count,
    refuse_headers,
    refused_ids,
    versions_of,
)
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.batch import Outcomes, admit
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Release
from dejaq.domain.context import CallContext
from dejaq.domain.ids import COUNTER_MAX, ProducerSession
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, InvalidArgument, StoreError, Unavailable, error_of
from dejaq.protocol.columns import create_from_proto, session_from_proto
from dejaq.protocol.status import error_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import BeginsChanges
from dejaq.storage.transactions import LogStep, Step, Transaction, Verdict

# How many transactions of one call are begun in one go, while deliveries wait.
AT_ONCE = 16

_Answer = carrier.TransactResponse | BaseException


@dataclass(frozen=True, slots=True)
class CheckedTransaction:
    """A transaction of a client that the storage can do."""

    transaction: Transaction
    # The numbers of the steps in the request, in the order of the transaction: those of logs are behind the others.
    numbers: Sequence[int]


class Transactions:
    """Answers `Carrier.Transact`, and does transactions of the broker's own parts."""

    def __init__(self, broker: BrokerContext, replies: ReplyCalls) -> None:
        self._broker = broker
        self._replies = replies
        storage = broker.storage
        self._begin = storage.begin_transactions if isinstance(storage, BeginsChanges) else None

    async def transact(self, context: CallContext, request: carrier.TransactRequest) -> carrier.TransactResponse:
        """Do the steps of a client, or say which row of which step was refused."""
        self._broker.doctor.admit("transact")
        prepared = self._prepare(context, request)
        if isinstance(prepared, Verdict):
            return self._answer(prepared)
        return self._answer_to(prepared, await self.do(context, prepared.transaction))

    async def transact_many(
        self, context: CallContext, request: carrier.TransactManyRequest
    ) -> carrier.TransactManyResponse:
        """Do transactions of clients that wait for each other in nothing but the commit that they share."""
        self._broker.doctor.admit("transact")
        every, most = list(request.transactions), limits.TRANSACTIONS_PER_CALL_MAX
        if not 1 <= len(every) <= most:
            raise InvalidArgument(f"a call carries 1 to {most} transactions, not {len(every)}")
        doing: list[asyncio.Task[list[_Answer]]] = []
        for start in range(0, len(every), AT_ONCE):
            # Deliveries that are due meanwhile go first.
            doing.append(asyncio.ensure_future(self._transact_some(context, every[start : start + AT_ONCE])))
            await asyncio.sleep(0)
        response = carrier.TransactManyResponse()
        # All of them are waited for, also when one fails.
        for answers in await asyncio.gather(*doing, return_exceptions=True):
            if isinstance(answers, BaseException):
                raise answers
            for answer in answers:
                if isinstance(answer, carrier.TransactResponse):
                    response.answers.append(answer)
                elif isinstance(answer, DejaqError) and not isinstance(answer, StoreError):
                    response.answers.add(error=error_to_proto(answer))
                else:
                    # The storage or a fault of ours: the caller repeats all of them, under the same names.
                    raise answer
        return response

    async def _transact_some(self, context: CallContext, requests: Sequence[carrier.TransactRequest]) -> list[_Answer]:
        """The answer to each transaction, or its error. Messages that are held ahead of their time are not recalled."""
        prepared: list[CheckedTransaction | Verdict | DejaqError] = []
        for request in requests:
            try:
                prepared.append(self._prepare(context, request))
            except DejaqError as error:
                prepared.append(error)
        ready = [one.transaction for one in prepared if isinstance(one, CheckedTransaction)]
        verdicts = iter(await self._do_many(context, ready))
        return [self._outcome(one, verdicts) for one in prepared]

    def _outcome(
        self, prepared: CheckedTransaction | Verdict | DejaqError, verdicts: Iterator[Verdict | BaseException]
    ) -> _Answer:
        if isinstance(prepared, Verdict):
            return self._answer(prepared)
        if isinstance(prepared, DejaqError):
            return prepared
        verdict = next(verdicts)
        if isinstance(verdict, BaseException):
            return verdict
        if verdict.code is Code.LEASED:
            # The caller repeats it in a call of its own, which recalls messages.
            step = prepared.numbers[verdict.step]
            return carrier.TransactResponse(code=verdict.code.name, step=step, row=verdict.row, alone=True)
        return self._answer_to(prepared, verdict)

    def _prepare(self, context: CallContext, request: carrier.TransactRequest) -> CheckedTransaction | Verdict:
        """What the storage has to do, or why a row of a step is refused before."""
        # Also here, because each transaction of `TransactMany` is allowed or refused by itself.
        self._broker.guard.admit(context, "Carrier.Transact", request)
        now = self._broker.clock.now_ms()
        session = _session_of(request)
        if not 1 <= len(request.steps) <= limits.TRANSACTION_STEPS_MAX:
            raise InvalidArgument(
                f"a transaction has 1 to {limits.TRANSACTION_STEPS_MAX} steps, not {len(request.steps)}"
            )
        _check_size(request)
        steps: list[Step] = []
        log_steps: list[LogStep] = []
        numbers: list[int] = []
        log_numbers: list[int] = []
        for number, proto in enumerate(request.steps):
            if is_log_step(proto):
                log_steps.append(log_step_of(self._broker.logs, proto))
                log_numbers.append(number)
                continue
            topic = self._broker.catalog.live(proto.topic)
            step, refused = _step_of(proto, topic, session, now)
            if refused:
                row = min(refused)
                return Verdict(refused[row], number, row)
            steps.append(step)
            numbers.append(number)
        self._throttle(context, request.client, steps)
        names = (session, request.sequence, steps, request.acknowledged, request.check)
        return CheckedTransaction(Transaction(*names, log_steps=log_steps), [*numbers, *log_numbers])

    def _throttle(self, context: CallContext, client: str, steps: Sequence[Step]) -> None:
        """Count what an owner creates or changes in topics that bound it; raises OVERLOADED for a client above that."""
        for step in steps:
            if isinstance(step, Create | Edit | Cancel):
                creates, bodies = isinstance(step, Create), _bodies_of(step)
                self._broker.quotas.take(context, step.topic, _counted(step)[1], creates=creates, bodies=bodies)
        rows: dict[int, int] = {}
        topics: dict[int, Topic] = {}
        for step in steps:
            if step.topic.settings.client_rate and isinstance(step, Create | Edit | Cancel):
                topics[step.topic.number] = step.topic
                rows[step.topic.number] = rows.get(step.topic.number, 0) + _counted(step)[1]
        for number, topic in topics.items():
            self._broker.throttles.take(topic, client, rows[number])

    async def _do_many(
        self, context: CallContext, transactions: Sequence[Transaction]
    ) -> Sequence[Verdict | BaseException]:
        """Do transactions in one call to the storage where that is possible; the verdict on each, or its error."""
        begun = None
        if self._begin is not None and transactions:
            begun = self._begin(transactions, self._broker.clock.now_ms(), context)
        if begun is None:
            every = (self.do(context, one, recalling=False) for one in transactions)
            return await asyncio.gather(*every, return_exceptions=True)
        self._notify([step for one in transactions for step in one.steps])
        verdicts = await begun
        for transaction, verdict in zip(transactions, verdicts, strict=True):
            if isinstance(verdict, Verdict):
                self._complete(transaction, verdict)
        return verdicts

    async def do(self, context: CallContext, transaction: Transaction, *, recalling: bool = True) -> Verdict:
        """Do steps that were looked at before; messages that are held ahead of their time are called back for it."""
        broker = self._broker
        shared = broker.storage.capabilities.shared
        if not shared:
            # Pumps run while this one waits for the commit, so what is due at once is leased in the same one.
            self._notify(transaction.steps)
        verdict = await broker.storage.transact(transaction, broker.clock.now_ms(), context)
        retried = False
        for _ in transaction.steps:
            if verdict.code is not Code.LEASED or not recalling:
                break
            retried = True
            verdict = await self._recall_and_retry(context, transaction, verdict)
        self._complete(transaction, verdict)
        if verdict.code is Code.OK and (shared or retried):
            self._notify(transaction.steps)
        return verdict

    def _complete(self, transaction: Transaction, verdict: Verdict) -> None:
        """What the broker does after a transaction."""
        if verdict.code.succeeded:
            self._free_credit(transaction.steps)
        if verdict.code is Code.OK:
            self._done(transaction.steps)
            log_steps_done(self._broker.logs, transaction.log_steps)
        outcome = "done" if verdict.code is Code.OK else "repeated" if verdict.code.succeeded else "refused"
        self._broker.metrics.add(TRANSACTIONS, 1, outcome)

    def _answer_to(self, prepared: CheckedTransaction, verdict: Verdict) -> carrier.TransactResponse:
        if not verdict.code.succeeded:
            verdict = replace(verdict, step=prepared.numbers[verdict.step])
        return self._answer(verdict)

    def _answer(self, verdict: Verdict) -> carrier.TransactResponse:
        if not verdict.code.succeeded:
            self._broker.metrics.add(REFUSED, 1, verdict.code.name)
        return carrier.TransactResponse(code=verdict.code.name, step=verdict.step, row=verdict.row)

    async def _recall_and_retry(self, context: CallContext, transaction: Transaction, refused: Verdict) -> Verdict:
        """Ask consumers to let go of what one step changes and they hold ahead of its time, and try again."""
        broker, step = self._broker, transaction.steps[refused.step]
        if not isinstance(step, Edit | Cancel):
            raise Unavailable(f"a step of kind {type(step).__name__} was refused as LEASED")
        ids = step.edits.ids if isinstance(step, Edit) else step.ids
        found = [refused]

        async def redo(rows: list[int]) -> Outcomes:
            found.append(await broker.storage.transact(transaction, broker.clock.now_ms(), context))
            return Outcomes.all(len(rows), found[-1].code)

        await recall_and_retry(
            context,
            storage=broker.storage,
            clock=broker.clock,
            topic=step.topic,
            roster=broker.rosters.of(step.topic),
            ids=ids,
            outcomes=Outcomes.all(len(ids), Code.LEASED),
            redo=redo,
        )
        return found[-1]

    def _free_credit(self, steps: Sequence[Step]) -> None:
        """Consumers have room for what these steps have settled; also for a repeat, whose first answer may be lost."""
        for step in steps:
            if isinstance(step, Delete | Release):
                self._broker.rosters.of(step.topic).settled(step.consumer, step.lease_id, step.rows)

    def _done(self, steps: Sequence[Step]) -> None:
        for step in steps:
            metric, count = _counted(step)
            if isinstance(step, Create) and step.topic.settings.expires and step.batch.ids is not None:
                self._replies.arrived(step.topic, step.batch.ids)
            elif isinstance(step, Edit) and step.topic.settings.expires:
                self._replies.arrived(step.topic, step.edits.ids)
            self._broker.metrics.add(metric, count, step.topic.name)

    def _notify(self, steps: Sequence[Step]) -> None:
        """Wake the consumers of what the steps put on the timeline, each topic once."""
        first: dict[int, tuple[Topic, int]] = {}
        for step in steps:
            ts = min(_times_of(step), default=None)
            if ts is not None:
                number = step.topic.number
                first[number] = step.topic, min(ts, first[number][1]) if number in first else ts
        for topic, ts in first.values():
            self._broker.rosters.of(topic).notify(ts)


def _session_of(request: carrier.TransactRequest) -> ProducerSession:
    session = session_from_proto(request.session)
    if request.sequence > COUNTER_MAX:
        raise InvalidArgument("the sequence of a session is a 32-bit counter")
    return session


def _check_size(request: carrier.TransactRequest) -> None:
    rows = size = 0
    for step in request.steps:
        match step.WhichOneof("change"):
            case "create":
                rows += len(step.create.ts)
                size += sum(map(len, step.create.bodies))
            case "edit":
                rows += len(step.edit.ids)
                size += sum(map(len, step.edit.bodies))
            case "cancel":
                rows += len(step.cancel.ids)
            case "append":
                # The messages of batches of logs are bounded by their bytes.
                size += len(step.append.records)
    if rows > limits.BATCH_COUNT_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{rows} messages in one transaction; at most {limits.BATCH_COUNT_MAX}")
    if size > limits.BATCH_BYTES_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{size} bytes in one transaction; at most {limits.BATCH_BYTES_MAX}")


def _step_of(proto: carrier.Step, topic: Topic, session: ProducerSession, now: int) -> tuple[Step, dict[int, Code]]:
    """A step as the storage takes it, and its rows that no storage may take."""
    change = proto.WhichOneof("change")
    longest = limits.CONSUMER_NAME_CHARS_MAX if change == "settle" else limits.GROUP_CHARS_MAX
    if not 1 <= len(proto.actor) <= longest:
        raise InvalidArgument(f"a step names its producer group or consumer in 1 to {longest} characters")
    if change == "create":
        named = proto.create.session
        session = session_from_proto(named) if named else session
        batch = create_from_proto(proto.create, owner=proto.actor, now=now, session=session)
        admit(batch, topic.settings, now)
        if batch.headers is not None:
            refuse_headers(batch.headers, batch.refused)
        return Create(topic, batch), batch.refused
    if change == "edit":
        changes = EditColumns.from_proto(proto.edit, now=now)
        edits = changes.edits(list(range(len(changes.ids))))
        return Edit(topic, proto.actor, edits), changes.refused(topic.settings, now)
    if change == "cancel":
        ids = list(proto.cancel.ids)
        check_count(len(ids))
        return Cancel(topic, proto.actor, ids, versions_of(proto.cancel)), refused_ids(ids)
    if change == "settle":
        return _settle_step(proto, topic, now), {}
    raise InvalidArgument("a step needs a change: create, edit, cancel or settle")


def _settle_step(proto: carrier.Step, topic: Topic, now: int) -> Step:
    settle = proto.settle
    ranges = rows_of(settle)
    handed = handed_times(settle, ranges)
    if settle.kind == carrier.DELETE:
        return Delete(topic, settle.lease, proto.actor, ranges, handed)
    if settle.kind == carrier.RELEASE:
        times = release_times(topic, settle, ranges, now)
        return Release(topic, settle.lease, proto.actor, ranges, times, handed)
    raise InvalidArgument("within a transaction a lease is settled by delete or release")


def _counted(step: Step) -> tuple[MetricSpec, int]:
    if isinstance(step, Create):
        return CREATED, len(step.batch)
    if isinstance(step, Edit):
        return EDITED, len(step.edits.ids)
    if isinstance(step, Cancel):
        return CANCELLED, len(step.ids)
    rows = 1 if step.rows is None else sum(end - start for start, end in step.rows)
    return (DELETED if isinstance(step, Delete) else RELEASED), rows


def _bodies_of(step: Create | Edit | Cancel) -> Sequence[bytes]:
    """The bodies that a step stores."""
    if isinstance(step, Create):
        return step.batch.bodies
    edited = step.edits.bodies if isinstance(step, Edit) else None
    return [body for body in edited or () if body is not None]


def _times_of(step: Step) -> Iterator[int]:
    """The times at which a step puts something on the timeline."""
    if isinstance(step, Create):
        yield from step.batch.ts
    elif isinstance(step, Edit):
        yield from (ts for ts in step.edits.ts or () if ts is not None)
    elif isinstance(step, Release):
        yield from (step.ts,) if isinstance(step.ts, int) else step.ts
