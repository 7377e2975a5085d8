"""The transactions of the embedded store: small ones wait for each other, every other one has a write of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Refused
from dejaq.storage.rocksdb.operations import transacting
from dejaq.storage.rocksdb.operations.pending_changes import Verdicts
from dejaq.storage.rocksdb.operations.queueing import ProducerQueue
from dejaq.storage.rocksdb.operations.topics import RocksTopics
from dejaq.storage.rocksdb.operations.transacting_together import transact_together, waits_for_others
from dejaq.storage.rocksdb.timeline.session_sequences import SessionSequences
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.transactions import Transaction, Verdict


class RocksTransactions(RocksTopics):
    """The calls of a `RocksStorage` that do transactions."""

    _producers: ProducerQueue
    _transactions: SessionSequences

    def _check_known(self, topic: Topic) -> None:
        raise NotImplementedError

    def _forget_sessions(self, now: int) -> None:
        raise NotImplementedError

    def _delay_expired(self, state: TopicState, now: int, context: CallContext) -> None:
        raise NotImplementedError

    def begin_transactions(
        self, transactions: Sequence[Transaction], now: int, context: CallContext
    ) -> asyncio.Future[list[Verdict | Refused]] | None:
        """Begin small transactions that delete leased rows and create messages; None if one of them is another."""
        if not self._producers.free or not all(map(waits_for_others, transactions)):
            return None
        self._check_working()
        self._forget_sessions(now)
        return self._pending.add_transactions(transactions, now, context)

    def _transact_together(
        self, every: Sequence[tuple[Transaction, int]], context: CallContext
    ) -> tuple[Verdicts, asyncio.Future[None] | None]:
        """Do the first of these transactions in one write."""
        self._check_working()
        topics = {step.topic.number for transaction, _ in every for step in transaction.steps}
        states = {number: self._states[number] for number in topics if number in self._states}
        now = max([arrived for _, arrived in every])
        work = partial(transact_together, states, self._transactions, every, now)
        return self._writer.apply(list(states.values()), now, context, work)

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        """Apply all steps in one write, or none; a repeat changes nothing, not even rows of expired leases."""
        await self._producers.make_room(transaction.steps)
        if waits_for_others(transaction):
            self._check_working()
            self._forget_sessions(now)
            (answer,) = await self._pending.add_transactions((transaction,), now, context)
            if isinstance(answer, Refused):
                raise answer
            return answer
        await self.logs.make_ready(transaction.log_steps)
        for step in transaction.steps:
            self._check_known(step.topic)
        self._forget_sessions(now)
        states = {step.topic.number: self._state(step.topic) for step in transaction.steps}
        if not self._transactions.rows(transaction, 1):
            for state in states.values():
                self._delay_expired(state, now, context)
        change = partial(transacting.transact, states, self._transactions, self.logs, transaction, now)
        waits = bool(transaction.log_steps)
        verdict, durable = self._writer.apply(list(states.values()), now, context, change, waits=waits)
        await self.logs.until_shown(transaction.log_steps, durable)
        return verdict
