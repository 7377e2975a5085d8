"""Transact: steps over several topics in one write. All are decided before the first one alters anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from dejaq.domain.batch import Outcomes
from dejaq.errors import Code
from dejaq.storage.rocksdb import creating, owning, settling
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.image import Image
from dejaq.storage.rocksdb.seen import Seen
from dejaq.storage.rocksdb.settling import Settlement
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


def transact(images: Mapping[int, Image], seen: Seen, transaction: Transaction, now: int, batch: Batch) -> Verdict:
    """Put every step into `batch`, or nothing. `seen` knows the names of the transactions that were done."""
    if seen.rows(transaction.session, transaction.sequence, 1):
        return Verdict(Code.ALREADY_EXISTS)
    seen.check_room(transaction.session, 1)
    with ExitStack() as sharing:
        for image in images.values():
            sharing.enter_context(image.sharing_runs())
        names = Names()
        decided: list[_Decision] = []
        for number, step in enumerate(transaction.steps):
            if isinstance(step, CreateStep):
                images[step.topic.number].seen.check_room(step.batch.session, len(transaction.steps))
            decision = _decide(images[step.topic.number], step, now)
            refusal = names.refusal(number, step.topic, decision.outcomes, decision.ids)
            if refusal is not None:
                return refusal
            decided.append(decision)
        for step, decision in zip(transaction.steps, decided, strict=True):
            if _apply(images[step.topic.number], step, now, batch, decision).failed:
                raise RuntimeError(f"a step that was allowed was refused: {type(step).__name__}")
    seen.add(transaction.session, transaction.sequence, [(0, 1)], now, batch)
    return Verdict()


@dataclass(frozen=True, slots=True)
class _Decision:
    """What would become of each row of a step, the id of each row, and where messages are that an owner changes.

    A message is named once, so that no other step moves it in between.
    """

    outcomes: Outcomes
    ids: Iterator[tuple[int, str]]
    located: owning.Located | None = None


def _decide(image: Image, step: Step, now: int) -> _Decision:
    if isinstance(step, CreateStep):
        rows = ((row, step.batch.id_of(row)) for row in range(len(step.batch)))
        return _Decision(creating.decide(image, step.batch), rows)
    if isinstance(step, EditStep | CancelStep):
        ids, versions = (
            (step.edits.ids, step.edits.versions) if isinstance(step, EditStep) else (step.ids, step.versions)
        )
        edits = step.edits if isinstance(step, EditStep) else None
        located = image.locate(ids)
        outcomes = owning.decide(image, step.owner, ids, now, versions, edits=edits, located=located)
        return _Decision(outcomes, iter(enumerate(ids)), located)
    settlement = _settlement(image, step, now)
    if isinstance(step, ReleaseStep):
        settling.times_of(settlement, step.ts)
    return _Decision(settlement.outcomes, settlement.named())


def _apply(image: Image, step: Step, now: int, batch: Batch, decided: _Decision) -> Outcomes:
    if isinstance(step, CreateStep):
        return creating.create(image, step.batch, now, batch, decided.outcomes)
    if isinstance(step, EditStep):
        return owning.edit(image, step.owner, step.edits, now, batch, located=decided.located)
    if isinstance(step, CancelStep):
        return owning.cancel(image, step.owner, step.ids, now, batch, located=decided.located)
    settlement = _settlement(image, step, now)
    if isinstance(step, ReleaseStep):
        settling.release(settlement, step.ts, step.handed_us, batch)
    else:
        settling.delete(settlement, step.handed_us, batch)
    return settlement.outcomes


def _settlement(image: Image, step: DeleteStep | ReleaseStep, now: int) -> Settlement:
    return Settlement(image, step.lease_id, step.consumer, step.rows, now)
