"""Planted bugs in what creates, deletes, transactions and changes by id do that wait for each other."""

from __future__ import annotations

import asyncio
import unittest.mock
from collections.abc import Mapping

from dejaq.domain.changes import Cancel, Create, Edit
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.operations import transacting_together
from dejaq.storage.rocksdb.operations.pending_changes import PendingChanges
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.far.pending_by_id import PendingById
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from tests.regressions.bugs import Bug

PENDING_BY_ID = "tests/unit/storage/rocksdb/test_pending_by_id.py"
PENDING_CREATES = "tests/unit/storage/rocksdb/test_pending_creates.py"
PENDING_TRANSACTIONS = "tests/unit/storage/rocksdb/test_pending_transactions.py"


def let_an_id_occur_twice_in_a_group() -> None:
    """Of two creates with one id that arrive together, both are stored."""
    add = PendingChanges.add

    def twice(pending: PendingChanges, create: Create, now: int, context: CallContext) -> object:
        answer = add(pending, create, now, context)
        for group in pending._groups.values():
            group.ids.clear()
        return answer

    PendingChanges.add = twice  # type: ignore[assignment, method-assign]


def decide_transactions_on_the_state_before_all_of_them() -> None:
    """Of transactions that are done together, none sees what one before it deletes or creates."""
    transacting_together._Together._concerns = lambda together, transaction: False  # type: ignore[method-assign]


def let_changes_overtake_creates() -> None:
    """What arrives behind a create does not see it while it waits."""
    state_of = RocksStorage._state

    def overtake(storage: RocksStorage, topic: Topic, *, waiting: bool = True) -> TopicState:
        with unittest.mock.patch.object(storage._pending, "flush"):
            return state_of(storage, topic, waiting=waiting)

    def at_once(pending: PendingChanges, change: Edit | Cancel, now: int, context: CallContext) -> object:
        answer = asyncio.get_running_loop().create_future()
        pending._by_id.add(change, answer, now, context)
        for group in pending._by_id.take(None):
            pending._change_together(group)
        return answer

    RocksStorage._state = overtake  # type: ignore[method-assign]
    PendingChanges.add_by_id = at_once  # type: ignore[assignment, method-assign]


def let_changes_of_one_message_be_one_change() -> None:
    """A change of a message for which another one waits is joined with it."""
    PendingById.names_of = lambda pending, change: False  # type: ignore[method-assign]


def give_each_turn_a_run() -> None:
    """Creates that arrive during a sync do not wait for its end."""
    Committer.syncing = property(lambda committer: False)  # type: ignore[assignment]


BUGS: Mapping[str, Bug] = {
    "an_id_occurs_twice_in_a_group": Bug(
        let_an_id_occur_twice_in_a_group, f"{PENDING_CREATES}::test_the_first_of_two_creates_with_one_id_wins"
    ),
    "transactions_that_are_done_together_see_nothing_of_each_other": Bug(
        decide_transactions_on_the_state_before_all_of_them,
        f"{PENDING_TRANSACTIONS}::test_each_transaction_has_its_own_verdict",
    ),
    "changes_overtake_creates_that_wait": Bug(
        let_changes_overtake_creates, f"{PENDING_CREATES}::test_what_follows_a_create_sees_it"
    ),
    "changes_of_one_message_are_one_change": Bug(
        let_changes_of_one_message_be_one_change,
        f"{PENDING_BY_ID}::test_changes_have_the_answers_of_the_memory_store",
    ),
    "single_sends_of_a_sync_have_a_run_each": Bug(
        give_each_turn_a_run, f"{PENDING_CREATES}::test_creates_that_arrive_during_a_sync_wait_for_its_end"
    ),
}
