"""Atomic steps: every row of every step is decided while it is locked, then all are done in one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from dejaq.domain.batch import Outcomes
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError
from dejaq.storage import ranges
from dejaq.storage.postgres import creating, owning, settling
from dejaq.storage.postgres.change import Change
from dejaq.storage.postgres.failures import Overtaken
from dejaq.storage.postgres.keys import id_of
from dejaq.storage.postgres.leasing import lapse
from dejaq.storage.steps import (
    CancelStep,
    CreateStep,
    DeleteStep,
    EditStep,
    Names,
    ReleaseStep,
    Step,
    Transaction,
    Verdict,
)

# The keys of a lease by row number; None where it is forgotten.
KeysOf = Callable[[Change, Topic, int], Awaitable[Sequence[str] | None]]


class RefusedTransaction(DejaqError):
    """A transaction is refused; what was begun is undone."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(code=verdict.code)
        self.verdict = verdict


def lapsing(transaction: Transaction) -> list[Topic]:
    """The topics whose messages wait behind the end of a lease."""
    topics = {step.topic.number: step.topic for step in transaction.steps}
    return [topic for topic in topics.values() if topic.settings.expiry_backoff]


async def transact(change: Change, transaction: Transaction, keys_of: KeysOf) -> Verdict:
    """Do all steps; raises `RefusedTransaction` when one cannot be done."""
    name = transaction.session.pack()
    packed = await change.link.value("take_name", name, change.now)
    seen = creating.unpack(packed)
    if ranges.within(seen, transaction.sequence, 1):
        change.gathered.noted = True
        return Verdict(Code.ALREADY_EXISTS)
    for topic in lapsing(transaction):
        # Before anything is decided, since it changes versions.
        await lapse(change.on(topic))
    names = Names()
    for number, step in enumerate(transaction.steps):
        outcomes, ids = await _decide(change.on(step.topic), step, keys_of)
        refusal = names.refusal(number, step.topic, outcomes, ids)
        if refusal is not None:
            raise RefusedTransaction(refusal)
    for step in transaction.steps:
        outcomes = await _apply(change.on(step.topic), step, keys_of)
        if outcomes.failed:
            raise Overtaken("what a step needs was taken between its decision and its doing")
    ranges.insert(seen, transaction.sequence, transaction.sequence + 1)
    await change.link.execute("put_seen", 0, name, creating.pack(seen))
    change.gathered.noted = True
    return Verdict()


async def _decide(change: Change, step: Step, keys_of: KeysOf) -> tuple[Outcomes, Iterable[tuple[int, str]]]:
    """What would become of each row, and the rows with their ids."""
    if isinstance(step, CreateStep):
        batch = step.batch
        return await creating.decide(change, batch), ((row, batch.id_of(row)) for row in range(len(batch)))
    if isinstance(step, DeleteStep | ReleaseStep):
        settlement = await _settlement(change, step, keys_of)
        if isinstance(step, ReleaseStep):
            settling.check_times(settlement, step.ts)
        await settling.lock(change, settlement)
        held = [(settlement.rows[place], id_of(settlement.keys[place])) for place in settlement.held]
        return settlement.outcomes, held
    ids = step.edits.ids if isinstance(step, EditStep) else step.ids
    versions = step.edits.versions if isinstance(step, EditStep) else step.versions
    edits = step.edits if isinstance(step, EditStep) else None
    return await owning.decide(change, step.owner, ids, versions, edits=edits), enumerate(ids)


async def _apply(change: Change, step: Step, keys_of: KeysOf) -> Outcomes:
    if isinstance(step, CreateStep):
        return (await creating.create(change, step.batch))[0]
    if isinstance(step, EditStep):
        return await owning.edit(change, step.owner, step.edits)
    if isinstance(step, CancelStep):
        return await owning.cancel(change, step.owner, step.ids)
    settlement = await _settlement(change, step, keys_of)
    if isinstance(step, DeleteStep):
        await settling.delete(change, settlement, step.handed_us)
    else:
        await settling.release(change, settlement, step.ts, step.handed_us)
    return settlement.outcomes


async def _settlement(change: Change, step: DeleteStep | ReleaseStep, keys_of: KeysOf) -> settling.Settlement:
    keys = await keys_of(change, step.topic, step.lease_id)
    return settling.Settlement.of(step.lease_id, step.consumer, step.rows, keys)
