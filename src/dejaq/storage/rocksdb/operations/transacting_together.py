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
from dejaq.storage.transactions import Names, Transaction, Verdict

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
        # By topic and id, the messages that are created or deleted; the rows that are deleted, by topic and lease.
        self._named: set[tuple[int, str]] = set()
        self._gone: dict[tuple[int, int], int] = {}

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
                if any((number, message_id) in self._named for message_id in step.batch.all_ids()):
                    return True
            elif isinstance(step, Delete):
                gone = self._gone.get((number, step.lease_id), 0)
                if gone and gone & masks.of_ranges(step.rows or ()):
                    return True
        return False

    def _decide(self, transaction: Transaction, now: int) -> Verdict:
        """The verdict on a transaction. What it changes is noted, and stored at the end."""
        for step in transaction.steps:
            if step.topic.number not in self._states:
                raise applying.unknown(step.topic)
        if self._sequences.rows(transaction, 1):
            return Verdict(Code.ALREADY_EXISTS)
        self._sequences.check_room(transaction.session)
        names = Names()
        creates: list[tuple[Create, Outcomes]] = []
        deletes: list[tuple[Delete, LeaseChange]] = []
        for number, step in enumerate(transaction.steps):
            if isinstance(step, Create):
                outcomes, ids = self._creates[step.topic.number].decide(step.batch), step.batch.all_ids()
                refusal = names.refusal(number, step.topic, outcomes, enumerate(ids))
                creates.append((step, outcomes))
            else:
                assert isinstance(step, Delete)
                state = self._states[step.topic.number]
                change = LeaseChange(state, step.lease_id, step.consumer, step.rows, now)
                refusal = names.refusal(number, step.topic, change.outcomes, change.named())
                deletes.append((step, change))
            if refusal is not None:
                return refusal
        for made, outcomes in creates:
            self._creates[made.topic.number].note(made.batch, outcomes)
        for left, change in deletes:
            place = left.topic.number, left.lease_id
            self._deletes[place].append((change, left.handed_us))
            self._gone[place] = self._gone.get(place, 0) | change.held
        self._named |= names.named
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
