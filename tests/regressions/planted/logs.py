"""Planted bugs of log topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dejaq.domain.topic import Topic
from dejaq.storage.log.base import LogSlice, OffsetCommit
from dejaq.storage.rocksdb.log import reading, store
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.rocksdb.log.store import RocksLogs
from tests.regressions.bugs import Bug

CHECK = "tests/conformance/test_logs.py::test_logs[rocksdb-{}]"


def leave_a_hole() -> None:
    append = store.append

    def append_and_skip(state: LogState, *rest: Any) -> Any:
        answers = append(state, *rest)
        for bucket in state.buckets:
            bucket.next += bucket.next > bucket.durable
        return answers

    store.append = append_and_skip


def read_in_another_order() -> None:
    read = reading.read_tail

    def read_backwards(*arguments: Any, **rest: Any) -> LogSlice | None:
        found = read(*arguments, **rest)
        return None if found is None else LogSlice(tuple(reversed(found.batches)), found.next)

    reading.read_tail = read_backwards


def read_what_was_rolled_back() -> None:
    read = reading.read_tail
    reading.read_tail = lambda *arguments, committed: read(*arguments, committed=False)


def accept_an_old_claim() -> None:
    commit = RocksLogs.commit

    async def commit_anyway(
        self: RocksLogs, topic: Topic, group: str, commits: Sequence[OffsetCommit], *rest: Any
    ) -> Any:
        held = (await self.groups(topic)).get(group, {})
        current = [replace(one, claim=held[one.bucket].claim) if one.bucket in held else one for one in commits]
        return await commit(self, topic, group, current, *rest)

    RocksLogs.commit = commit_anyway


def close_windows_at_once() -> None:
    settle = LogBucket.settle

    def settle_all(self: LogBucket, now: int) -> int:
        self.windows.clear()
        return settle(self, now)

    LogBucket.settle = settle_all


BUGS = {
    "a_hole_in_the_offsets": Bug(leave_a_hole, CHECK.format("appending.offsets_are_dense")),
    "batches_are_read_in_another_order": Bug(read_in_another_order, CHECK.format("appending.one_call_keeps_its_order")),
    "a_committed_reader_gets_a_batch_that_was_rolled_back": Bug(
        read_what_was_rolled_back, CHECK.format("reading.a_rollback_takes_a_batch_out")
    ),
    "a_commit_under_an_old_claim_is_accepted": Bug(
        accept_an_old_claim, CHECK.format("grouping.an_old_claim_commits_nothing")
    ),
    "a_rollback_window_ends_at_once": Bug(
        close_windows_at_once, CHECK.format("reading.a_window_holds_committed_readers")
    ),
}
