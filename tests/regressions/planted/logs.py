"""Planted bugs of log topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dejaq.domain.topic import Topic
from dejaq.storage.log.base import LogSlice, OffsetCommit, StoredBatch
from dejaq.storage.rocksdb.log import reading, segment_keeper, store, trimming
from dejaq.storage.rocksdb.log.compacting import LatestOffsets
from dejaq.storage.rocksdb.log.moving import SegmentWork
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.rocksdb.log.store import RocksLogs
from dejaq.storage.segments import reading as of_segments
from dejaq.storage.segments.writer import SegmentWriter
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


def move_within_windows() -> None:
    """Batches become segments although they can still be rolled back."""
    move = segment_keeper.move

    async def move_all(work: SegmentWork, state: LogState, bucket: LogBucket) -> Any:
        bucket.stable = bucket.durable
        return await move(work, state, bucket)

    segment_keeper.move = move_all
    LogBucket.movable = lambda self: self.unmoved


def leave_a_batch_out_of_a_segment() -> None:
    add = SegmentWriter.add

    def add_most(self: SegmentWriter, batch: StoredBatch) -> None:
        if batch.base == 0:
            add(self, batch)
        else:
            self.end = batch.end

    SegmentWriter.add = add_most


def read_segments_in_another_order() -> None:
    read = of_segments.read

    def read_backwards(*arguments: Any, **rest: Any) -> LogSlice:
        found = read(*arguments, **rest)
        return LogSlice(tuple(reversed(found.batches)), found.next)

    of_segments.read = read_backwards


def compact_the_latest_too() -> None:
    is_superseded = LatestOffsets.is_superseded
    LatestOffsets.is_superseded = lambda self, key, offset: is_superseded(self, key, offset - 1)


def remove_a_segment_too_early() -> None:
    """The segment goes that still has batches behind the first offset."""
    put = trimming.put

    def put_and_remove(state: LogState, database: Any, bucket: LogBucket, *rest: Any) -> Any:
        gone = put(state, database, bucket, *rest)
        return [*gone, *bucket.segments[:1]]

    trimming.put = put_and_remove


SEGMENTS_CHECK = "tests/conformance/test_logs.py::test_logs[rocksdb_segments-{}]"
COMPACTION = "tests/integration/storage/test_log_compaction.py"

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
    "a_batch_is_moved_before_its_window_has_passed": Bug(
        move_within_windows, SEGMENTS_CHECK.format("reading.a_rollback_takes_a_batch_out")
    ),
    "a_segment_has_a_hole_in_its_offsets": Bug(
        leave_a_batch_out_of_a_segment, SEGMENTS_CHECK.format("appending.offsets_are_dense")
    ),
    "a_segment_is_read_in_another_order": Bug(
        read_segments_in_another_order, SEGMENTS_CHECK.format("appending.one_call_keeps_its_order")
    ),
    "a_compaction_removes_the_latest_message_of_a_key": Bug(
        compact_the_latest_too, f"{COMPACTION}::test_the_latest_message_of_each_key_stays[0-100000]"
    ),
    "a_segment_is_removed_before_its_retention": Bug(
        remove_a_segment_too_early, SEGMENTS_CHECK.format("retaining.old_batches_are_removed")
    ),
}
