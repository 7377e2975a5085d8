"""Planted bugs of the storage."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Change
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused, StoreError, Unavailable
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.rocksdb import store
from dejaq.storage.rocksdb.bodies.large import LargeBodies
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.created_ids import RocksCreatedIds
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.engine.watermark import Mark, Watermark
from dejaq.storage.rocksdb.operations import leasing
from dejaq.storage.rocksdb.operations.loading import RowLoader
from dejaq.storage.rocksdb.operations.writing import ChangeWriter
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline import index, kept_runs, lease
from dejaq.storage.rocksdb.timeline.ids import sorted_run
from dejaq.storage.rocksdb.timeline.ids.id_entries import IdEntries
from dejaq.storage.rocksdb.timeline.ids.sorted_run import RunWriter
from dejaq.storage.rocksdb.timeline.kept_runs import KeptRuns
from dejaq.storage.rocksdb.timeline.levels.columns import MergedColumns
from dejaq.storage.rocksdb.timeline.levels.moved_rows import MovedRows
from dejaq.storage.rocksdb.timeline.memory.budget import Budget
from dejaq.storage.rocksdb.timeline.owners import Owners
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.rocksdb.timeline.window import FreeRows, Source, Window
from tests.regressions.bugs import Bug

CONFORMANCE = "tests/conformance/test_conformance.py::test_storage"
DOCTOR = "tests/unit/broker/test_doctor.py"
COUNTED = "tests/unit/storage/rocksdb/test_counted_memory.py"
MEMORY = "tests/unit/storage/rocksdb/test_memory.py"
BOUNDS = "tests/unit/storage/rocksdb/test_bounds.py"
IDS = "tests/unit/storage/rocksdb/test_ids.py"
LEVELS = "tests/unit/storage/rocksdb/test_levels.py"
MERGING = "tests/unit/storage/rocksdb/test_merging.py"
DAMAGE = "tests/integration/storage/test_damage.py"
FIRST_START = "tests/integration/storage/test_first_start.py"
STICKY = "tests/integration/storage/test_sticky_failure.py"


def forget_a_failed_sync() -> None:
    """D14: the committer continues after a sync that failed."""
    sync = Committer._sync

    def forget(committer: Committer) -> StoreError | None:
        failure = sync(committer)
        committer._broken = committer._log.failure = None
        if failure is not None:
            committer.applied = committer._log.written
        return failure

    Committer._sync = forget  # type: ignore[method-assign]


def keep_half_a_change() -> None:
    """D14: an error between the change in memory and the write does not fail the store."""

    @contextlib.contextmanager
    def altering(storage: RocksStorage) -> Iterator[None]:
        yield

    ChangeWriter.altering = altering  # type: ignore[method-assign]


def build_settlements_while_they_are_done() -> None:
    """D11: one delete that cannot be settled ends the call after the deletes before it are done."""

    async def apply(
        storage: RocksStorage, changes: Sequence[Change], now: int, context: CallContext
    ) -> list[Outcomes | Refused]:
        return [await apply_one(storage, change, now, context) for change in changes]

    async def apply_one(storage: RocksStorage, change: Change, now: int, context: CallContext) -> Outcomes:
        (answer,) = await whole(storage, (change,), now, context)
        if isinstance(answer, Refused):
            raise answer
        return answer

    whole = RocksStorage.apply
    RocksStorage.apply = apply  # type: ignore[method-assign]


def settle_at_the_end_of_a_lease() -> None:
    """PostgreSQL's statement for the usual delete accepts a lease that ends now, which `decide_by_consumer` refuses."""
    SQL["delete_all"] = SQL["delete_all"].replace("m.ts + 0 > $6", "m.ts + 0 >= $6")


def raise_for_terms_of_a_lease() -> None:
    """The embedded store raises an error for invalid lease terms only if a message is due."""
    leasing.decide_lease_terms = lambda **_: Code.OK  # type: ignore[attr-defined]


def make_the_database_before_the_first_mark() -> None:
    """D9: no mark is written before the database exists that says that nothing was acknowledged yet."""
    Watermark.begin = lambda watermark: Mark(0, "", 0)  # type: ignore[method-assign]


def forget_which_change_found_a_body() -> None:
    """D10: a body is removed with its last message, even if another message was about to refer to it."""

    def keep(bodies: LargeBodies, batch: Batch, number: int, until: int) -> None:
        body = bodies._bodies[number]
        body.keep_until = max(body.keep_until, until)

    LargeBodies.keep = keep  # type: ignore[method-assign]


def drop_runs_that_are_offered() -> None:
    """D5: the window by time drops runs that it only offers to the order of priority."""

    def retreat(window: Window, key: bytes) -> list[Run]:
        def goes(source: Source) -> bool:
            return isinstance(source, FreeRows) and source.run.bucket == window._bucket and source.run.key >= key

        dropped = [source.run for _, _, source in window._heap if goes(source)]
        window._heap = [entry for entry in window._heap if not goes(entry[2])]
        heapq.heapify(window._heap)
        window.move_cursor(key)
        return dropped

    Window.retreat = retreat  # type: ignore[method-assign]


def believe_any_manifest() -> None:
    """A damaged manifest is opened as far as RocksDB can read it."""
    store.check_manifest = lambda path, mark: None  # type: ignore[attr-defined]


def name_batches_by_ids_and_times() -> None:
    """D12: the Spark writer does not include the bodies in the name of a batch."""
    from pyspark_dejaq import writing
    from pyspark_dejaq.rows import Rows

    name = writing._name
    writing._name = lambda scope, rows: name(scope, Rows(ids=rows.ids, ts=rows.ts))


def forget_dropped_runs() -> None:
    retreat = Window.retreat

    def drop(self: Window, key: bytes) -> list[Run]:
        fresh = self._fresh
        dropped = retreat(self, key)
        self._fresh, self._peeked = fresh, None
        return dropped

    Window.retreat = drop


def close_without_care() -> None:
    def abandon(self: RocksStorage, database: RocksDatabase) -> None:
        database.close()

    RocksStorage._abandon = abandon


def take_damage_for_an_outage() -> None:
    """U4: a broker with a damaged storage looks to its clients like a broker that does not answer."""
    from dejaq.broker import doctor, services
    from dejaq.broker.sessions import session

    for module in (doctor, services, session):
        module.cannot_serve = lambda error: Unavailable(details=str(error))  # type: ignore[attr-defined]


def report_damage_only_to_the_failed_call() -> None:
    """U4: a query that reads damaged data fails, and the store continues."""
    RocksStorage._meet = lambda storage, error: None  # type: ignore[method-assign]


def bring_back_without_a_pause() -> None:
    """U4: a storage that fails again and again is reopened without a pause."""
    from dejaq.broker import doctor

    doctor.RELAPSE_SECONDS = -1.0  # type: ignore[misc]


def leave_snapshots_open() -> None:
    """D7: abandoned snapshots are removed only when the next snapshot is opened."""
    from dejaq.broker.calls.snapshots import Snapshots

    async def run(snapshots: Snapshots) -> None:
        return None

    Snapshots.run = run  # type: ignore[method-assign]


def remember_settled_leases() -> None:
    """D23: the end times of settled leases stay in memory until they pass."""
    lease._ENDS_MIN = 10**9  # type: ignore[misc]

    def schedule(book: lease.LeaseBook, one: lease.LeaseState, expires: int) -> None:
        heapq.heappush(book._ends, (expires, one.id))

    lease.LeaseBook.schedule = schedule  # type: ignore[method-assign]


def count_only_what_is_on_disk() -> None:
    """D20: the memory for rows is counted as the bytes of their records."""
    kept_runs.bytes_of_run = lambda run: run.size  # type: ignore[assignment]


def read_without_a_limit() -> None:
    """D21: a lease reads eight steps of each bucket, however much memory is used."""
    Budget.exhausted = property(lambda budget: False)  # type: ignore[assignment, method-assign]


def keep_whole_leases() -> None:
    """D22: a run stays in memory as it is until its last row is settled."""
    KeptRuns.shrink = lambda runs, run: None  # type: ignore[method-assign]


def read_due_rows_in_one_step() -> None:
    """The first lease reads everything that is due before others run."""

    async def read(loader: RowLoader, state: TopicState, buckets: Sequence[int], until: int) -> None:
        pass

    RowLoader.read_due = read  # type: ignore[method-assign]


def remember_producer_groups() -> None:
    """D24: the producer groups of a topic are never removed."""
    Owners.forget = lambda owners, messages, batch: None  # type: ignore[method-assign]


def remember_ids_of_gone_runs() -> None:
    """D24: a generation of ids is removed as a whole or not at all."""

    def forget(ids: index.Index, place: bytes) -> None:
        young = ids._young.pop(place)
        generation = young.generation
        ids._budget.ids -= len(young.ids)
        generation.runs -= 1
        if not generation.runs:
            ids._generations.remove(generation)

    index.Index._forget = forget  # type: ignore[method-assign]


def remember_topics_in_metrics() -> None:
    """D24: the metrics keep the numbers of deleted topics."""
    from dejaq.broker.metrics import Metrics

    Metrics.choose_topics = lambda metrics, known: None  # type: ignore[method-assign]


def keep_rows_of_broken_connections() -> None:
    """D27: every broken connection leaves a row permanently."""
    from dejaq.storage.postgres.connection.database import PostgresDatabase

    PostgresDatabase._break = lambda database, link: link.connection.terminate()  # type: ignore[method-assign]


def keep_the_slot_of_a_stalled_client() -> None:
    """D26: a download or upload keeps its slot for as long as the client wants."""
    from dejaq.broker.calls.slots import Slot

    Slot.lost = property(lambda slot: False)  # type: ignore[assignment, method-assign]


def load_a_topic_that_is_gone() -> None:
    """Loading never ends, because each check of a dropped topic creates a new state for it."""

    async def load(storage: RocksStorage, topic: Topic, buckets: Sequence[int], until: int) -> None:
        for bucket in (*buckets, keys.SPREAD):
            while storage._failure is None and storage._state(topic).load_near(bucket, until):  # noqa: ASYNC110
                await asyncio.sleep(0)

    RocksStorage.load = load  # type: ignore[method-assign]


def remember_created_ids_in_memory() -> None:
    """U7: the store remembers a created id only until it is closed."""
    RocksCreatedIds.written = lambda created: None  # type: ignore[method-assign]
    RocksCreatedIds.add = lambda created, ids, now, batch: created._new.update(ids)  # type: ignore[method-assign]


def leave_created_ids_behind() -> None:
    """U7: a bucket moves to another shard without the ids that were created in it."""
    from dejaq.storage.postgres.sharding import moving

    async def copy(here: object, there: object, places: Sequence[int]) -> None:
        return None

    moving._copy_created = copy


def count_the_rows_of_single_minutes_only() -> None:
    """G1: counts leave out the messages whose minutes were written as a list."""
    for name in ("minutes", "counts_by_step"):
        SQL[name] = SQL[name].replace("FROM count_list WHERE topic = $1", "FROM count_list WHERE topic = -$1")


def edit_what_belongs_to_others() -> None:
    """One statement changes all messages of an edit, a move or a cancellation, also those of other owners."""
    for name, place in (("edit_all", 7), ("move_all", 5), ("cancel_all", 4)):
        SQL[name] = SQL[name].replace(f"m.owner = ${place}", f"${place}::text IS NOT NULL")


def refuse_a_whole_group_of_creates() -> None:
    """One taken id refuses all batches that waited at the same time."""
    from dejaq.storage.postgres.create_queue import CreateQueue

    created = CreateQueue._is_created

    async def is_created(queue: CreateQueue, group: Any, until_ready: Any = None) -> bool:
        if len(group.plans) > 1:
            await queue._create_all(group, until_ready)
            return True
        return await created(queue, group, until_ready)

    CreateQueue._is_created = is_created  # type: ignore[method-assign]


def forget_ids_with_their_messages() -> None:
    """U7: an id given by the user is free as soon as its message is removed, whatever the topic's settings say."""
    from dejaq.storage.postgres.operations import deduplicating

    deduplicating.has_window = lambda topic, batch: False


def lose_a_row_in_a_merge() -> None:
    """A merge leaves out the last row of each piece, and removes it where it was."""
    positions = MergedColumns.positions

    def lose(columns: MergedColumns, start: int, end: int, without: Any) -> list[int]:
        rows = positions(columns, start, end, without)
        return rows[:-1] if len(rows) > 1 else rows

    MergedColumns.positions = lose  # type: ignore[method-assign]


def double_rows_in_a_merge() -> None:
    """A merge leaves the rows also where they were."""
    replace_rows = TopicState.replace_rows

    def double(state: TopicState, batch: Batch, sources: object, merged: Any, **places: Any) -> None:
        replace_rows(state, batch, (), merged, **places)

    TopicState.replace_rows = double  # type: ignore[method-assign, assignment]


def change_versions_in_a_merge() -> None:
    """A row has the number of its merged run as version."""
    Run.version_at = lambda run, row: run.number  # type: ignore[method-assign]


def merge_what_was_cancelled() -> None:
    """A row that is cancelled after it was read for a merge comes back with the merged run."""
    positions = MergedColumns.positions

    def every_position(columns: MergedColumns, start: int, end: int, without: object) -> list[int]:
        return positions(columns, start, end, {})

    MergedColumns.positions = every_position  # type: ignore[method-assign, assignment]


def forget_where_rows_moved() -> None:
    """A merge does not record its runs, and the ids of their rows are found no more."""
    MovedRows.runs_of = lambda moved, number, ts: iter(())  # type: ignore[method-assign]


def forget_moved_rows_at_a_restart() -> None:
    """What a merge moved is known only until the next start."""
    MovedRows.load = lambda moved: None  # type: ignore[method-assign]


def spread_counted_ids_by_their_hash() -> None:
    """The bucket of a generated id in a merged run of a priority topic is that of its hash."""
    TopicState._buckets_of = lambda state, run, ids: state.index.buckets_of(ids)  # type: ignore[method-assign]


def take_one_id_for_another() -> None:
    """The hash of an id stands for the id itself."""
    Run.id_at = lambda run, row: SameId()  # type: ignore[method-assign, assignment, return-value]


class SameId(str):
    """An id that is equal to any other."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def keep_entries_of_deleted_ids() -> None:
    """An entry stays when its id leaves."""
    IdEntries.remove = lambda *_: None  # type: ignore[method-assign]


def finish_half_a_run_of_ids() -> None:
    """A start takes a run of entries that a crash interrupted for a complete one, and its sources too."""
    RunWriter.begin = lambda writer, batch: batch.put(  # type: ignore[method-assign]
        keys.numbered(keys.ID_RUN, writer._topic, writer.number), sorted_run._RECORD.pack(writer._level, 0)
    )


BUGS = {
    "d20_rows_count_as_on_disk": Bug(
        count_only_what_is_on_disk, f"{COUNTED}::test_d20_what_is_counted_is_what_the_process_takes[singles]"
    ),
    "d21_a_lease_reads_without_a_limit": Bug(
        read_without_a_limit, f"{MEMORY}::test_d21_a_lease_reads_no_more_than_the_memory_for_rows"
    ),
    "d22_a_slow_row_keeps_its_lease": Bug(
        keep_whole_leases, f"{MEMORY}::test_d22_one_slow_row_does_not_keep_the_others_of_its_lease"
    ),
    "the_first_lease_reads_in_one_step": Bug(
        read_due_rows_in_one_step, f"{MEMORY}::test_the_first_lease_after_a_restart_lets_others_run"
    ),
    "a_merge_forgets_where_rows_moved": Bug(forget_where_rows_moved, f"{LEVELS}::test_merging_is_seen_by_nobody"),
    "a_restart_forgets_where_rows_moved": Bug(
        forget_moved_rows_at_a_restart, f"{LEVELS}::test_merging_is_seen_by_nobody"
    ),
    "counted_ids_are_spread_by_their_hash": Bug(
        spread_counted_ids_by_their_hash, f"{MERGING}::test_consumers_of_some_buckets_divide_merged_runs[False]"
    ),
    "an_id_is_taken_for_another": Bug(
        take_one_id_for_another, f"{IDS}::test_ids_with_the_same_hash_are_different_messages"
    ),
    "entries_of_deleted_ids_stay": Bug(
        keep_entries_of_deleted_ids, f"{IDS}::test_entries_are_found_whatever_was_merged"
    ),
    "half_a_run_of_ids_is_complete": Bug(
        finish_half_a_run_of_ids, f"{IDS}::test_entries_are_found_whatever_was_merged"
    ),
    "a_merge_loses_a_row": Bug(lose_a_row_in_a_merge, f"{LEVELS}::test_merging_is_seen_by_nobody"),
    "a_merge_doubles_rows": Bug(double_rows_in_a_merge, f"{LEVELS}::test_merging_is_seen_by_nobody"),
    "a_merge_changes_versions": Bug(change_versions_in_a_merge, f"{LEVELS}::test_merging_is_seen_by_nobody"),
    "a_merge_brings_back_what_was_cancelled": Bug(
        merge_what_was_cancelled,
        f"{LEVELS}::test_what_is_cancelled_before_its_piece_is_written_stays_cancelled",
    ),
    "created_ids_are_remembered_in_memory": Bug(
        remember_created_ids_in_memory, f"{CONFORMANCE}[rocksdb-restart.created_ids_survive]"
    ),
    "created_ids_are_left_behind": Bug(
        leave_created_ids_behind,
        "tests/integration/storage/test_deduplication.py::test_a_bucket_that_moves_takes_its_created_ids_with_it",
    ),
    "ids_are_forgotten_with_their_messages": Bug(
        forget_ids_with_their_messages, f"{CONFORMANCE}[postgres-deduplication.an_id_stays_taken_after_delivery]"
    ),
    "a_failed_sync_is_forgotten": Bug(
        forget_a_failed_sync, f"{STICKY}::test_a_batch_that_waits_while_a_sync_fails_is_not_acknowledged"
    ),
    "half_a_change_is_kept": Bug(keep_half_a_change, f"{STICKY}::test_a_change_that_cannot_be_built_fails_the_store"),
    "a_bad_deletion_ends_the_call": Bug(
        build_settlements_while_they_are_done,
        f"{CONFORMANCE}[rocksdb-settle.a_bad_delete_among_good_ones_is_refused_alone]",
    ),
    "the_first_mark_comes_last": Bug(
        make_the_database_before_the_first_mark,
        f"{FIRST_START}::test_a_first_start_that_is_killed_at_any_point_is_completed_by_the_next",
    ),
    "who_found_a_body_is_forgotten": Bug(
        forget_which_change_found_a_body,
        f"{CONFORMANCE}[rocksdb-large.a_body_that_was_found_outlives_its_last_message]",
    ),
    "what_is_ready_is_let_go_of": Bug(
        drop_runs_that_are_offered,
        f"{CONFORMANCE}[rocksdb_on_disk-priorities.what_is_ready_stays_so_when_the_clock_steps_back]",
    ),
    "any_manifest_is_believed": Bug(
        believe_any_manifest, f"{DAMAGE}::test_r11_a_manifest_with_an_unreadable_record_is_refused"
    ),
    "a_batch_is_named_by_ids_and_times": Bug(
        name_batches_by_ids_and_times,
        "tests/unit/pipeline/test_batch_names.py::test_batches_that_differ_in_anything_have_different_names",
    ),
    "a_dropped_run_of_the_same_change_is_forgotten": Bug(
        forget_dropped_runs,
        "tests/unit/storage/rocksdb/test_next_ts.py::test_the_first_message_is_never_before_next_ts",
    ),
    "a_failed_close_hides_the_damage": Bug(
        close_without_care,
        f"{DAMAGE}::test_r11_a_damaged_store_whose_database_cannot_be_closed_is_refused_all_the_same",
    ),
    "damage_is_an_outage": Bug(
        take_damage_for_an_outage,
        f"{DOCTOR}::test_damage_has_its_own_code_and_clients_do_not_retry",
    ),
    "damage_is_kept_to_who_met_it": Bug(
        report_damage_only_to_the_failed_call,
        "tests/integration/storage/test_damage_found_later.py::test_damage_that_a_query_finds_stops_the_store",
    ),
    "a_storage_comes_back_without_a_pause": Bug(
        bring_back_without_a_pause,
        f"{DOCTOR}::test_a_storage_that_fails_repeatedly_is_reopened_less_and_less_often",
    ),
    "snapshots_are_left_open": Bug(
        leave_snapshots_open,
        "tests/unit/broker/test_snapshots.py::test_a_snapshot_whose_reader_left_is_closed_after_some_time",
    ),
    "settled_leases_are_remembered": Bug(
        remember_settled_leases, f"{BOUNDS}::test_the_end_times_of_settled_leases_are_removed"
    ),
    "producer_groups_are_remembered": Bug(
        remember_producer_groups,
        f"{BOUNDS}::test_producer_groups_of_an_empty_topic_are_removed_and_others_are_limited",
    ),
    "ids_of_gone_runs_are_remembered": Bug(
        remember_ids_of_gone_runs,
        f"{BOUNDS}::test_a_few_runs_that_stay_do_not_keep_all_ids_of_their_generation",
    ),
    "topics_are_remembered_in_metrics": Bug(
        remember_topics_in_metrics,
        "tests/unit/broker/test_metrics.py::test_the_metrics_of_deleted_topics_are_removed",
    ),
    "lists_of_counts_are_left_out": Bug(
        count_the_rows_of_single_minutes_only,
        "tests/integration/storage/test_postgres_counts.py::test_a_change_at_many_minutes_writes_one_list",
    ),
    "messages_of_others_are_edited_in_one_statement": Bug(
        edit_what_belongs_to_others,
        f"{CONFORMANCE}[postgres-agreement.an_owner_changes_what_the_decision_allows]",
    ),
    "a_taken_id_refuses_the_whole_group": Bug(
        refuse_a_whole_group_of_creates,
        "tests/integration/storage/test_postgres_creates.py::test_an_id_that_is_taken_refuses_only_its_own_batch",
    ),
    "rows_of_broken_connections_are_kept": Bug(
        keep_rows_of_broken_connections,
        "tests/integration/storage/test_postgres_faults.py::test_rows_of_broken_connections_are_removed",
    ),
    "who_stands_still_keeps_its_place": Bug(
        keep_the_slot_of_a_stalled_client,
        "tests/unit/broker/test_slots.py::test_a_client_that_stops_reading_loses_its_slot",
    ),
    "a_lease_is_settled_at_its_end": Bug(
        settle_at_the_end_of_a_lease,
        f"{CONFORMANCE}[postgres-agreement.a_consumer_changes_what_the_decision_allows]",
    ),
    "terms_of_a_lease_raise": Bug(
        raise_for_terms_of_a_lease, f"{CONFORMANCE}[rocksdb-agreement.a_lease_takes_what_the_decision_allows]"
    ),
    "a_topic_that_is_gone_is_loaded": Bug(
        load_a_topic_that_is_gone,
        f"{CONFORMANCE}[rocksdb-topics.a_topic_that_was_dropped_is_loaded_in_no_time]",
    ),
}
