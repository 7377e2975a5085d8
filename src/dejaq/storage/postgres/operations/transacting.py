"""Atomic steps: every row of every step is decided while it is locked, then one commit applies all steps."""

from __future__ import annotations

from collections.abc import Iterable

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Create, Delete, Edit, Release
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError
from dejaq.storage.log.base import check_bucket
from dejaq.storage.postgres.connection.failures import Overtaken
from dejaq.storage.postgres.keys import id_of
from dejaq.storage.postgres.log import appending, grouping
from dejaq.storage.postgres.log.appending import TimedAppend
from dejaq.storage.postgres.operations import applying, creating, owning, settling
from dejaq.storage.postgres.operations.applying import KeysOf
from dejaq.storage.postgres.operations.change import TopicTransaction
from dejaq.storage.postgres.operations.leasing import expire_leases
from dejaq.storage.transactions import LogAppendStep, Names, Step, Transaction, Verdict, first_refused
from dejaq.storage.used_sequences import UsedSequences


class RefusedTransaction(DejaqError):
    """A transaction is refused; its begun changes are undone."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(code=verdict.code)
        self.verdict = verdict


def topics_to_expire(transaction: Transaction) -> list[Topic]:
    """The topics whose messages wait after the end of a lease."""
    topics = {step.topic.number: step.topic for step in transaction.steps}
    return [topic for topic in topics.values() if topic.settings.expiry_backoff]


async def transact(change: TopicTransaction, transaction: Transaction, keys_of: KeysOf) -> Verdict:
    """Apply all steps; raises `RefusedTransaction` when one cannot be applied."""
    name = transaction.session.pack()
    packed = await change.link.value("take_name", name, change.now)
    used = UsedSequences.unpack(packed)
    used.acknowledge(transaction.acknowledged)
    if used.rows(transaction.sequence, 1, transaction.check):
        change.gathered.noted = True
        return Verdict(Code.ALREADY_EXISTS)
    used.check_room()
    for topic in topics_to_expire(transaction):
        # Before anything is decided, because it changes versions.
        await expire_leases(change.on(topic))
    names = Names()
    for number, step in enumerate(transaction.steps):
        outcomes, ids = await _decide(change.on(step.topic), step, keys_of)
        refusal = names.refusal(number, step.topic, outcomes, ids)
        if refusal is not None:
            raise RefusedTransaction(refusal)
    await _do_log_steps(change, transaction)
    change.gathered.decided = True
    for step in transaction.steps:
        outcomes = await applying.apply(change.on(step.topic), step, keys_of)
        if outcomes.failed:
            raise Overtaken("another change took a row between the decision and the change of a step")
    used.use(transaction.sequence, transaction.sequence + 1)
    used.remember(transaction.sequence, transaction.check)
    await change.link.execute("put_seen", 0, name, used.pack())
    change.gathered.noted = True
    return Verdict()


async def _do_log_steps(change: TopicTransaction, transaction: Transaction) -> None:
    """Do the steps on logs; raises `RefusedTransaction`. The offsets of a group are locked when they are decided."""
    link = change.link
    for number, step in enumerate(transaction.log_steps, len(transaction.steps)):
        if isinstance(step, LogAppendStep):
            code = step.refusal(change.now)
            refusal = None if code is None else Verdict(code, number)
            if refusal is None:
                await appending.append(link, step.topic, [TimedAppend(step.batch, change.now)])
        else:
            for one in step.commits:
                check_bucket(step.topic, one.bucket)
            codes = await grouping.commit(link, step.topic, step.group, step.commits, change.now)
            refusal = first_refused(codes, number)
        if refusal is not None:
            raise RefusedTransaction(refusal)


async def _decide(change: TopicTransaction, step: Step, keys_of: KeysOf) -> tuple[Outcomes, Iterable[tuple[int, str]]]:
    """The outcome that each row would have, and the rows with their ids."""
    if isinstance(step, Create):
        batch = step.batch
        return await creating.decide(change, batch), ((row, batch.id_of(row)) for row in range(len(batch)))
    if isinstance(step, Delete | Release):
        settlement = await applying.settlement_of(change, step, keys_of)
        if isinstance(step, Release):
            settling.check_times(settlement, step.ts)
        await settling.lock(change, settlement)
        held = [(settlement.rows[place], id_of(settlement.keys[place])) for place in settlement.held]
        return settlement.outcomes, held
    ids = step.edits.ids if isinstance(step, Edit) else step.ids
    versions = step.edits.versions if isinstance(step, Edit) else step.versions
    edits = step.edits if isinstance(step, Edit) else None
    return await owning.decide(change, step.owner, ids, versions, edits=edits), enumerate(ids)
