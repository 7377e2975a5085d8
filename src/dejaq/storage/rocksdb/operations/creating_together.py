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
    creates = SharedCreates(state, incoming, now, batch)
    with state.sequences.written_once(now, batch):
        for one in incoming:
            try:
                outcomes = creates.decide(one)
            except Refused as refusal:
                answers.append(refusal)
                continue
            answers.append(outcomes)
            creates.note(one, outcomes)
    creates.store()
    return answers


class SharedCreates:
    """The batches of one topic that share runs: each is decided and noted in order, and then all are stored.

    No id may occur twice.
    """

    def __init__(self, state: TopicState, incoming: Sequence[CreateBatch], now: int, batch: Batch) -> None:
        self._state, self._now, self._batch = state, now, batch
        self._gathered: dict[tuple[str, bool], _GatheredRows] = {}
        state.owners.forget(state.total, batch)
        self._taken = _taken_ids(state, incoming)
        # Whether a generated id of a batch may be the own id of another message.
        generated = [message_id for one in incoming if one.ids is None for message_id in one.all_ids()]
        self._some_listed = bool(generated) and state.index.may_have_any(generated)

    def decide(self, one: CreateBatch) -> Outcomes:
        """The outcome of each row of a batch; nothing is changed yet."""
        return creating.decide(self._state, one, ids_free=one.ids is None or self._taken.isdisjoint(one.ids))

    def note(self, one: CreateBatch, outcomes: Outcomes) -> None:
        """Remember the name and the ids of a batch, and keep its admitted rows for `store`."""
        state = self._state
        fresh = creating.note(state, one, outcomes, self._now, self._batch)
        if fresh and self._some_listed and one.ids is None and state.index.may_have_any(one.all_ids()):
            # An own id has the text of a generated one, which therefore is not listed.
            creating.store(state, one, fresh, self._now, self._batch)
        elif fresh:
            # The next batch is decided with this group among those that are known.
            state.owners.number(one.owner, self._batch)
            self._gathered.setdefault((one.owner, one.ids is None), _GatheredRows(one)).add(one, fresh)

    def store(self) -> None:
        """Store the rows that were noted."""
        for (owner, generated), rows in self._gathered.items():
            everything = [(0, len(rows.ts))]
            buckets = rows.buckets if generated else None
            creating.store(self._state, rows.joined(owner), everything, self._now, self._batch, buckets)


def _taken_ids(state: TopicState, incoming: Sequence[CreateBatch]) -> set[str]:
    """The own ids of all batches that some message has: one search for all of them."""
    ids = [message_id for one in incoming for message_id in one.ids or ()]
    # An id in the form of a generated id is found by other means.
    alike = GENERATED_LENGTH in set(map(len, ids))
    if not ids or (not alike and not state.index.may_have_any(ids)):
        return set()
    return {message_id for message_id, at in zip(ids, state.locate(ids), strict=True) if at is not None}


@dataclass(slots=True)
class _GatheredRows:
    """Admitted rows of one producer group, with listed ids; `buckets` is filled for generated ids only."""

    first: CreateBatch
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

    def joined(self, owner: str) -> CreateBatch:
        """The rows as a batch; its name says nothing, because each batch has recorded its own."""
        return CreateBatch(
            owner,
            self.first.session,
            self.first.sequence,
            self.ts,
            self.bodies,
            ids=self.ids,
            priorities=self.priorities if any(self.priorities) else None,
            headers=self.headers if any(self.headers) else None,
            large=self.large,
        )
