"""The reference storage: one Python object per message. Every other backend must give the same answers.

It is also for users' tests. Its contents exist as long as the object: `close` and `open` keep them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Edit, Redrive
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused
from dejaq.storage.base import Capabilities
from dejaq.storage.memory import leasing, owning
from dejaq.storage.memory.answering import MemoryQueries
from dejaq.storage.memory.deciding import decide_step
from dejaq.storage.memory.logs import MemoryLogs
from dejaq.storage.memory.settling import settle
from dejaq.storage.memory.state import MemoryState
from dejaq.storage.memory.timeline import Timeline
from dejaq.storage.transactions import Names, Transaction, Verdict


class MemoryStorage(MemoryQueries):
    """A `Storage` in this process's memory; with `journal` it records every change.

    Its contents are lost when the process ends. It begins with the contents of `state`, or empty.
    """

    def __init__(self, state: MemoryState | None = None, *, journal: bool = False) -> None:
        self.state = state or MemoryState(journal=journal)
        self.bodies = self.state.bodies
        self.logs = MemoryLogs(self.state)

    def _timeline(self, topic: Topic) -> Timeline:
        return self.state.timeline(topic)

    @property
    def capabilities(self) -> Capabilities:
        """Neither durable nor shared."""
        return Capabilities(name="memory", durable=False, shared=False, shares_bodies=True)

    @property
    def identity(self) -> str:
        """No other broker shares this store."""
        return ""

    @property
    def failure(self) -> str | None:
        """The reason why the store cannot be used: it is not open."""
        return None if self.state.open else "the memory store is not open"

    @property
    def corrupt(self) -> bool:
        """Always False, because there are no files."""
        return False

    async def open(self, now: int) -> None:
        """Make the store usable; its earlier contents are still there."""
        self.state.open = True

    async def close(self) -> None:
        """Refuse everything until the next `open`."""
        self.state.open = False

    async def recover(self, now: int) -> None:
        """Open the store again."""
        self.state.open = True

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, in any state, by number."""
        self.state.check_open()
        return [self.state.topics[number] for number in sorted(self.state.topics)]

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        """Create or replace the record of a topic."""
        self.state.check_open()
        self.state.topics[topic.number] = topic
        self.state.topic_number = max(self.state.topic_number, topic.number)

    async def next_topic_number(self) -> int:
        """A number that no topic of this store ever had."""
        self.state.check_open()
        self.state.topic_number += 1
        return self.state.topic_number

    async def drop_topic(self, topic: Topic, now: int, context: CallContext) -> None:
        """Remove a topic, its messages and everything stored for them."""
        self.state.check_open()
        self.state.journal.begin(context)
        if self.state.topics.pop(topic.number, None) is not None:
            self.state.journal.dropped(topic)
            self.state.journal.commit(now)
        self.state.timelines.pop(topic.number, None)
        self.logs.drop(topic)

    # Changes

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        """Apply each change separately; nothing is awaited, so no caller sees a part of a change."""
        self.state.journal.begin(context)
        return [self._attempt(change, now) for change in changes]

    def _attempt(self, change: Change, now: int) -> Outcomes | Refused:
        self.state.check_open()
        try:
            return self._apply(change, now)
        except Refused as refusal:
            return refusal

    def _apply(self, change: Change, now: int) -> Outcomes:
        match change:
            case Create():
                return owning.create(self.state, change, now)
            case Edit():
                return owning.edit(self.state, change, now)
            case Cancel():
                return owning.cancel(self.state, change, now)
            case Redrive():
                return owning.redrive(self.state, change, now)
            case _:
                return settle(self.state, change, now)

    # Consumer

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        """Lease what is free and due, earliest first, then lower priority first."""
        self.state.journal.begin(context)
        return leasing.lease(self.state, topic, request, now)

    async def lease_these(
        self, topic: Topic, ids: Sequence[str], request: LeaseRequest, now: int, *, dead: Sequence[str] = ()
    ) -> LeaseSet | None:
        """Lease exactly these messages, in this order, and move `dead`; None when `request` does not allow one."""
        self.state.journal.begin(DIRECT_CALL)
        return leasing.lease_these(self.state, topic, ids, request, now, dead=dead)

    async def leasable(self, topic: Topic, request: LeaseRequest, now: int) -> list[Message]:
        """Every message that `request` might lease or move, without its row and byte limits, in order."""
        self.state.journal.begin(DIRECT_CALL)
        return leasing.leasable(self.state, topic, request, now)

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """The earliest position of any message in `buckets`, a lease's end included."""
        return self.state.timeline(topic).earliest(buckets)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Does nothing: everything is in memory."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """The remaining rows of the live leases of `consumer`, one set for each end that its rows have."""
        return leasing.leases_of(self.state, topic, consumer, now)

    # Transactions

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        """Apply all steps, or none. No await gives control to other tasks, so no caller sees a part."""
        self.state.journal.begin(context)
        used = self.state.transactions.used_sequences(transaction.session, now)
        used.acknowledge(transaction.acknowledged)
        if used.rows(transaction.sequence, 1, transaction.check):
            return Verdict(Code.ALREADY_EXISTS)
        used.check_room()
        for step in transaction.steps:
            # Before anything is decided, because it changes versions.
            if step.topic.settings.expiry_backoff:
                self.state.expire_leases(step.topic, self.state.timeline(step.topic), now)
        self.state.journal.commit(now)
        names = Names()
        for number, step in enumerate(transaction.steps):
            outcomes, ids = decide_step(self.state.timeline(step.topic), step, now)
            refusal = names.refusal(number, step.topic, outcomes, ids)
            if refusal is not None:
                return refusal
        for number, log_step in enumerate(transaction.log_steps, len(transaction.steps)):
            refusal = self.logs.decide(log_step, number, now)
            if refusal is not None:
                return refusal
        for log_step in transaction.log_steps:
            self.logs.apply(log_step, now)
        with self.state.journal.one_record(now):
            for step in transaction.steps:
                if isinstance(step, Create):
                    owning.create(self.state, step, now, decided=True)
                else:
                    self._apply(step, now)
        used.use(transaction.sequence, transaction.sequence + 1)
        used.remember(transaction.sequence, transaction.check)
        return Verdict()

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records after a sequence."""
        self.state.check_open()
        return self.state.journal.read(after, bytes_max)

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records up to a sequence."""
        self.state.check_open()
        self.state.journal.trim(up_to)

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return self.journal_stats()

    def journal_stats(self) -> dict[str, float]:
        """Those of the journal."""
        return self.state.journal.stats()
