"""Transact together: small transactions that wait for each other become one change.

Each is decided by itself, in order, and has its own name and its own verdict. Then the rows that they delete from one
lease leave it together, and the messages that they create share runs, as those of single sends do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from dejaq.domain.batch import CreateBatch, Outcomes
from dejaq.domain.changes import Create, Delete
from dejaq.domain.topic import Durability
from dejaq.errors import Code, Refused
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.operations import applying, settling
from dejaq.storage.rocksdb.operations.creating_together import SharedCreates
from dejaq.storage.rocksdb.operations.pending_changes import SMALL_ROWS, Verdicts
from dejaq.storage.rocksdb.operations.settling import LeaseChange
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.session_sequences import SessionSequences
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.transactions import Names, Step, Transaction, Verdict

States = Mapping[int, TopicState]


def waits_for_others(transaction: Transaction) -> bool:
    """Whether a transaction is small and of a kind that is done with others: it deletes leased rows, and creates."""
    if transaction.log_steps:
        return False
    rows = 0
    for step in transaction.steps:
        settings = step.topic.settings
        if settings.durability is not Durability.FSYNC or settings.expiry_backoff:
            return False
        if isinstance(step, Create) and len(step.batch) and not step.batch.large:
            rows += len(step.batch)
        elif isinstance(step, Delete) and step.rows is not None:
            rows += sum([end - start for start, end in step.rows])
        else:
            return False
    return rows <= SMALL_ROWS


def transact_together(
    states: States, sequences: SessionSequences, every: Sequence[tuple[Transaction, int]], now: int, batch: Batch
) -> Verdicts:
    """Put the steps of each transaction into `batch`, or none of them; returns their verdicts.

    Each comes with the time of its arrival. Only the first ones are done, up to one that names a message that another
    one creates or deletes: it is done with another batch, when the database has this one.
    """
    with ExitStack() as block:
        block.enter_context(sequences.written_once(now, batch))
        for state in states.values():
            block.enter_context(state.runs.sharing())
            block.enter_context(state.sequences.written_once(now, batch))
        return _Together(states, sequences, now, batch).begin(every)


class _Together:
    """Transactions of which none names a message that another one creates or deletes."""

    def __init__(self, states: States, sequences: SessionSequences, now: int, batch: Batch) -> None:
        self._states, self._sequences, self._now, self._batch = states, sequences, now, batch
        self._creates: dict[int, SharedCreates] = {}
        # By topic and lease: the rows to delete, and the times at which user code got them.
        self._deletes: defaultdict[tuple[int, int], list[tuple[LeaseChange, Sequence[int]]]] = defaultdict(list)
        # By topic and id, the messages that are created; by topic and lease, the rows that are deleted.
        self._created: set[tuple[int, str]] = set()
        self._gone: dict[tuple[int, int], int] = {}
        # By topic, the ids of deleted messages, and the changes whose ids were not looked up yet.
        self._deleted: dict[int, set[str]] = {}
        self._unnamed: defaultdict[int, list[LeaseChange]] = defaultdict(list)

    def begin(self, every: Sequence[tuple[Transaction, int]]) -> Verdicts:
        """Do the first transactions, up to one that names a message of one before it; returns their verdicts."""
        creates: defaultdict[int, list[CreateBatch]] = defaultdict(list)
        for transaction, _ in every:
            for step in transaction.steps:
                if isinstance(step, Create) and step.topic.number in self._states:
                    creates[step.topic.number].append(step.batch)
        for number, batches in creates.items():
            self._creates[number] = SharedCreates(self._states[number], batches, self._now, self._batch)
        verdicts: Verdicts = []
        for transaction, now in every:
            if self._concerns(transaction):
                break
            try:
                verdicts.append(self._decide(transaction, now))
            except Refused as refusal:
                verdicts.append(refusal)
        for changes in self._deletes.values():
            self._delete(changes)
        for shared in self._creates.values():
            shared.store()
        return verdicts

    def _concerns(self, transaction: Transaction) -> bool:
        """Whether what was decided before and is not stored yet matters to a transaction."""
        for step in transaction.steps:
            number = step.topic.number
            if isinstance(step, Create):
                ids = step.batch.all_ids()
                if self._created and any((number, message_id) in self._created for message_id in ids):
                    return True
                if not self._deleted_of(number).isdisjoint(ids):
                    return True
            elif isinstance(step, Delete):
                gone = self._gone.get((number, step.lease_id), 0)
                if gone and gone & masks.of_ranges(step.rows or ()):
                    return True
        return False

    def _deleted_of(self, number: int) -> set[str]:
        """The messages of a topic that are deleted."""
        ids = self._deleted.setdefault(number, set())
        for change in self._unnamed.pop(number, ()):
            ids.update(message_id for _, message_id in change.named())
        return ids

    def _decide(self, transaction: Transaction, now: int) -> Verdict:
        """The verdict on a transaction. What it changes is noted, and stored at the end."""
        steps = transaction.steps
        for step in steps:
            if step.topic.number not in self._states:
                raise applying.unknown(step.topic)
        if self._sequences.rows(transaction, 1):
            return Verdict(Code.ALREADY_EXISTS)
        self._sequences.check_room(transaction.session)
        creates: list[tuple[Create, Outcomes]] = []
        deletes: list[tuple[Delete, LeaseChange]] = []
        decided: list[Outcomes] = []
        for step in steps:
            if isinstance(step, Create):
                decided.append(self._creates[step.topic.number].decide(step.batch))
                creates.append((step, decided[-1]))
            else:
                assert isinstance(step, Delete)
                change = LeaseChange(self._states[step.topic.number], step.lease_id, step.consumer, step.rows, now)
                decided.append(change.outcomes)
                deletes.append((step, change))
            if decided[-1].failed:
                break
        refusal = _refusal(steps[: len(decided)], decided, [change for _, change in deletes])
        if refusal is not None:
            return refusal
        for made, outcomes in creates:
            self._creates[made.topic.number].note(made.batch, outcomes)
            self._created.update([(made.topic.number, message_id) for message_id in made.batch.all_ids()])
        for left, change in deletes:
            place = left.topic.number, left.lease_id
            self._deletes[place].append((change, left.handed_us))
            self._gone[place] = self._gone.get(place, 0) | change.held
            self._unnamed[left.topic.number].append(change)
        self._sequences.add(transaction, [(0, 1)], self._now, self._batch)
        return Verdict()

    def _delete(self, changes: Sequence[tuple[LeaseChange, Sequence[int]]]) -> None:
        """Delete rows of one lease."""
        times: dict[int, int] = {}
        for change, handed_us in changes:
            rows = [row for start, end in change.asked for row in range(start, end)]
            known = handed_us if len(handed_us) == len(rows) else [handed_us[0] if handed_us else 0] * len(rows)
            times.update(zip(rows, known, strict=True))
        whole, *others = [change for change, _ in changes]
        whole.include(others)
        handed = [times[row] for row in sorted(times)] if any(times.values()) else []
        settling.delete(whole, handed, self._batch)


def _refusal(steps: Sequence[Step], decided: Sequence[Outcomes], deletes: Sequence[LeaseChange]) -> Verdict | None:
    """The first refused row of a transaction, or the first row that names a message again."""
    if len({step.topic.number for step in steps}) == len(steps) and all(map(_has_one_row, steps)):
        # No message can be named again.
        for number, outcomes in enumerate(decided):
            for row, code in outcomes.failed.items():
                return Verdict(code, number, row)
        return None
    names, changes = Names(), iter(deletes)
    for number, (step, outcomes) in enumerate(zip(steps, decided, strict=True)):
        ids = enumerate(step.batch.all_ids()) if isinstance(step, Create) else next(changes).named()
        refusal = names.refusal(number, step.topic, outcomes, ids)
        if refusal is not None:
            return refusal
    return None


def _has_one_row(step: Step) -> bool:
    if isinstance(step, Create):
        return len(step.batch) == 1
    return isinstance(step, Delete) and step.rows is not None and sum([end - start for start, end in step.rows]) == 1
