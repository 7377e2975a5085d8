"""Transact: steps over several topics in one write. All rows are decided before any step changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Release
from dejaq.errors import Code
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.log.store import RocksLogs
from dejaq.storage.rocksdb.operations import creating, owning, settling
from dejaq.storage.rocksdb.operations.settling import LeaseChange
from dejaq.storage.rocksdb.timeline.session_sequences import SessionSequences
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.transactions import Names, Step, Transaction, Verdict


def transact(
    states: Mapping[int, TopicState],
    sequences: SessionSequences,
    logs: RocksLogs,
    transaction: Transaction,
    now: int,
    batch: Batch,
) -> Verdict:
    """Put every step into `batch`, or nothing. `sequences` has the names of the transactions that were committed."""
    if sequences.rows(transaction, 1):
        return Verdict(Code.ALREADY_EXISTS)
    sequences.check_room(transaction.session)
    with ExitStack() as sharing:
        for state in states.values():
            sharing.enter_context(state.runs.sharing())
        names = Names()
        decided: list[_Decision] = []
        for number, step in enumerate(transaction.steps):
            decision = _decide(states[step.topic.number], step, now)
            refusal = names.refusal(number, step.topic, decision.outcomes, decision.ids)
            if refusal is not None:
                return refusal
            decided.append(decision)
        for number, log_step in enumerate(transaction.log_steps, len(transaction.steps)):
            refusal = logs.decide(log_step, number, now)
            if refusal is not None:
                return refusal
        for log_step in transaction.log_steps:
            logs.put(log_step, now, batch)
        for step, decision in zip(transaction.steps, decided, strict=True):
            if _apply(states[step.topic.number], step, now, batch, decision).failed:
                raise RuntimeError(f"a step that was allowed was refused: {type(step).__name__}")
    sequences.add(transaction, [(0, 1)], now, batch)
    return Verdict()


@dataclass(frozen=True, slots=True)
class _Decision:
    """The outcome that each row of a step would have, the id of each row, and the places of the messages of an owner's
    change.

    Each message is named only once, so that no other step moves it in between.
    """

    outcomes: Outcomes
    ids: Iterator[tuple[int, str]]
    located: owning.Located | None = None


def _decide(state: TopicState, step: Step, now: int) -> _Decision:
    if isinstance(step, Create):
        rows = ((row, step.batch.id_of(row)) for row in range(len(step.batch)))
        return _Decision(creating.decide(state, step.batch), rows)
    if isinstance(step, Edit | Cancel):
        ids, versions = (step.edits.ids, step.edits.versions) if isinstance(step, Edit) else (step.ids, step.versions)
        edits = step.edits if isinstance(step, Edit) else None
        located = state.locate(ids)
        outcomes = owning.decide(state, step.owner, ids, now, versions, edits=edits, located=located)
        return _Decision(outcomes, iter(enumerate(ids)), located)
    settlement = _settlement(state, step, now)
    if isinstance(step, Release):
        settling.times_of(settlement, step.ts)
    return _Decision(settlement.outcomes, settlement.named())


def _apply(state: TopicState, step: Step, now: int, batch: Batch, decided: _Decision) -> Outcomes:
    if isinstance(step, Create):
        return creating.create(state, step.batch, now, batch, decided.outcomes)
    if isinstance(step, Edit):
        return owning.edit(state, step.owner, step.edits, now, batch, located=decided.located)
    if isinstance(step, Cancel):
        return owning.cancel(state, step.owner, step.ids, now, batch, located=decided.located)
    settlement = _settlement(state, step, now)
    if isinstance(step, Release):
        settling.release(settlement, step.ts, step.handed_us, batch)
    else:
        settling.delete(settlement, step.handed_us, batch)
    return settlement.outcomes


def _settlement(state: TopicState, step: Delete | Release, now: int) -> LeaseChange:
    return LeaseChange(state, step.lease_id, step.consumer, step.rows, now)
