"""Transact: steps over several topics in one write. All are decided before the first one alters anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

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
        decided: list[Outcomes] = []
        for number, step in enumerate(transaction.steps):
            if isinstance(step, CreateStep):
                images[step.topic.number].seen.check_room(step.batch.session, len(transaction.steps))
            outcomes, ids = _decide(images[step.topic.number], step, now)
            refusal = names.refusal(number, step.topic, outcomes, ids)
            if refusal is not None:
                return refusal
            decided.append(outcomes)
        for step, outcomes in zip(transaction.steps, decided, strict=True):
            if _apply(images[step.topic.number], step, now, batch, outcomes).failed:
                raise RuntimeError(f"a step that was allowed was refused: {type(step).__name__}")
    seen.add(transaction.session, transaction.sequence, [(0, 1)], now, batch)
    return Verdict()


def _decide(image: Image, step: Step, now: int) -> tuple[Outcomes, Iterator[tuple[int, str]]]:
    """What would become of each row, and the id of each row."""
    if isinstance(step, CreateStep):
        outcomes = creating.decide(image, step.batch)
        return outcomes, ((row, step.batch.id_of(row)) for row in range(len(step.batch)))
    if isinstance(step, EditStep):
        edits = step.edits
        return owning.decide(image, step.owner, edits.ids, now, edits.versions), iter(enumerate(edits.ids))
    if isinstance(step, CancelStep):
        return owning.decide(image, step.owner, step.ids, now), iter(enumerate(step.ids))
    settlement = _settlement(image, step, now)
    if isinstance(step, ReleaseStep):
        settling.times_of(settlement, step.ts)
    return settlement.outcomes, settlement.named()


def _apply(image: Image, step: Step, now: int, batch: Batch, decided: Outcomes) -> Outcomes:
    if isinstance(step, CreateStep):
        return creating.create(image, step.batch, now, batch, decided)
    if isinstance(step, EditStep):
        return owning.edit(image, step.owner, step.edits, now, batch)
    if isinstance(step, CancelStep):
        return owning.cancel(image, step.owner, step.ids, now, batch)
    settlement = _settlement(image, step, now)
    if isinstance(step, ReleaseStep):
        settling.release(settlement, step.ts, step.handed_us, batch)
    else:
        settling.delete(settlement, step.handed_us, batch)
    return settlement.outcomes


def _settlement(image: Image, step: DeleteStep | ReleaseStep, now: int) -> Settlement:
    return Settlement(image, step.lease_id, step.consumer, step.rows, now)
