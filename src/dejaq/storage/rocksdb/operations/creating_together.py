"""Create together: the small batches of many producers become shared runs.

A run of one row costs as much as a run of a hundred: a key, an entry, a count, a journal record, and an object in
memory. Each batch keeps its name and its own answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dejaq.domain.batch import CreateBatch, Outcomes, RowRange
from dejaq.domain.ids import GENERATED_LENGTH
from dejaq.errors import Refused
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.operations import creating
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


def create_together(
    state: TopicState, incoming: Sequence[CreateBatch], now: int, batch: Batch
) -> list[Outcomes | Refused]:
    """Put the admitted rows of all batches into `batch`; returns the answer to each. No id may occur twice."""
    answers: list[Outcomes | Refused] = []
    gathered: dict[tuple[str, bool], _GatheredRows] = {}
    state.owners.forget(state.total, batch)
    ids_free, listed = _ids_free(state, incoming), _listed(state, incoming)
    for number, one in enumerate(incoming):
        try:
            outcomes = creating.decide(state, one, ids_free=ids_free[number])
        except Refused as refusal:
            answers.append(refusal)
            continue
        answers.append(outcomes)
        fresh = creating.note(state, one, outcomes, now, batch)
        if fresh and listed[number]:
            # An own id has the text of a generated one, which therefore is not listed.
            creating.store(state, one, fresh, now, batch)
        elif fresh:
            # The next batch is decided with this group among those that are known.
            state.owners.number(one.owner, batch)
            gathered.setdefault((one.owner, one.ids is None), _GatheredRows()).add(one, fresh)
    for (owner, generated), rows in gathered.items():
        all_of_them = rows.joined(owner, incoming[0])
        everything = [(0, len(rows.ts))]
        creating.store(state, all_of_them, everything, now, batch, rows.buckets if generated else None)
    return answers


def _ids_free(state: TopicState, incoming: Sequence[CreateBatch]) -> list[bool]:
    """Whether no message has an own id of a batch: one search for all batches."""
    ids = [message_id for one in incoming for message_id in one.ids or ()]
    # An id in the form of a generated id is found by other means.
    alike = GENERATED_LENGTH in set(map(len, ids))
    if not ids or (not alike and not state.index.may_have_any(ids)):
        return [True] * len(incoming)
    taken = {message_id for message_id, at in zip(ids, state.locate(ids), strict=True) if at is not None}
    return [one.ids is None or taken.isdisjoint(one.ids) for one in incoming]


def _listed(state: TopicState, incoming: Sequence[CreateBatch]) -> list[bool]:
    """Whether a generated id of a batch is the own id of another message."""
    ids = [message_id for one in incoming if one.ids is None for message_id in one.all_ids()]
    if not ids or not state.index.may_have_any(ids):
        return [False] * len(incoming)
    return [one.ids is None and state.index.may_have_any(one.all_ids()) for one in incoming]


@dataclass(slots=True)
class _GatheredRows:
    """Admitted rows of one producer group, with listed ids; `buckets` is filled for generated ids only."""

    ids: list[str] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    large: bool = False

    def add(self, one: CreateBatch, fresh: list[RowRange]) -> None:
        """Add rows of a batch."""
        self.large = self.large or one.large
        ids = one.all_ids()
        for start, end in fresh:
            count = end - start
            self.ids += ids[start:end]
            if one.ids is None:
                self.buckets += [one.bucket] * count
            self.ts += one.ts[start:end]
            self.bodies += one.bodies[start:end]
            self.priorities += one.priorities[start:end] if one.priorities is not None else [0] * count
            self.headers += one.headers[start:end] if one.headers is not None else [b""] * count

    def joined(self, owner: str, first: CreateBatch) -> CreateBatch:
        """The rows as a batch; its name says nothing, because each batch has recorded its own."""
        return CreateBatch(
            owner,
            first.session,
            first.sequence,
            self.ts,
            self.bodies,
            ids=self.ids,
            priorities=self.priorities if any(self.priorities) else None,
            headers=self.headers if any(self.headers) else None,
            large=self.large,
        )
