"""Planted bugs of the journal, the pipeline and the Spark connector."""

from __future__ import annotations

from typing import Any

from tests.regressions.bugs import Bug


def _gaps_between_first_and_last_only() -> None:
    from dejaq.pipeline.lake import gaps
    from dejaq.pipeline.lake.ranges import Ranges

    missing = Ranges.missing

    def between(self: Ranges, first: int, last: int) -> tuple[tuple[int, int], ...]:
        return missing(self, self.pairs[0][0], self.pairs[-1][1]) if self.pairs else ()

    gaps.Ranges.missing = between  # type: ignore[method-assign]


def _a_stream_over_holes() -> None:
    from pyspark_dejaq.journal import JournalStreamReader

    JournalStreamReader._without_holes = lambda self, start, end: end  # type: ignore[method-assign]


def _a_vanished_segment_always_fails() -> None:
    from dataclasses import replace

    from pyspark_dejaq.journal import JournalStreamReader

    read = JournalStreamReader.read
    JournalStreamReader.read = lambda self, part: read(  # type: ignore[method-assign]
        self,
        replace(part, fail_on_data_loss=True),  # type: ignore[type-var]
    )


def _cancels_without_a_name() -> None:
    from dejaq.protocol.v1 import carrier_pb2 as carrier
    from pyspark_dejaq.rows import Rows

    frame = Rows.frame

    def unnamed(self: Rows, *args: Any) -> carrier.ClientFrame:
        made = frame(self, *args)
        made.cancel.ClearField("session")
        return made

    Rows.frame = unnamed  # type: ignore[method-assign]


def _attempts_share_a_file() -> None:
    from pathlib import Path

    from pyspark_dejaq.outcomes import OutcomeFiles

    OutcomeFiles._aside = (  # type: ignore[method-assign]
        lambda self, directory, what: Path(directory) / f".{what}-{self._name}.tmp"
    )


def _the_first_line_is_the_cause() -> None:
    from dejaq.pipeline.spark import failures

    failures._python_cause = lambda lines: ""


def _a_snapshot_left_early_keeps_its_place() -> None:
    from dejaq.broker.calls.snapshots import Snapshots

    Snapshots._make_room = lambda self: None  # type: ignore[method-assign]


def _each_task_connects() -> None:
    from pyspark_dejaq import reading, worker

    reading.transport_to = worker.connect


def _queries_share_a_snapshot() -> None:
    from dejaq.protocol.v1 import carrier_pb2 as carrier
    from pyspark_dejaq import reading

    opened = reading._open

    def once(transport: Any, request: carrier.SnapshotRequest, timeout: float) -> carrier.SnapshotResponse:
        if request.name:
            request.name = request.name.partition("-")[0]
        return opened(transport, request, timeout)

    reading._open = once


def _statuses_count_twice() -> None:
    from pyspark_dejaq import options

    options._listed = lambda values, name: tuple(
        part.strip() for part in values.get(name, "").split(",") if part.strip()
    )


def _ts_wins_over_due() -> None:
    from pyspark_dejaq import rows

    rows._times = lambda batch, names: (rows._epoch_ms(batch["ts" if "ts" in names else "due"]), None)


def _columns_of_a_read_are_unknown() -> None:
    from pyspark_dejaq import rows

    rows._READ_ONLY = frozenset()


def _a_damaged_body_ends_the_forwarder() -> None:
    from dejaq.forward import topic

    topic._parcel = lambda lease: topic.Parcel(id=lease.id, body=lease.body, token=lease)


def _an_added_segment_is_no_fault() -> None:
    from dejaq.journal.verification import _Chain

    _Chain._check_unsigned = lambda self, signed, start, last: None  # type: ignore[method-assign]


def _forwarders_share_a_group() -> None:
    from dejaq.forward import addresses

    addresses._group_to = lambda target: "dejaq-forward"


def _the_python_of_the_path() -> None:
    import shutil
    import sys

    shutil.which = lambda *args, **more: sys.executable  # type: ignore[assignment]


def _every_segment_is_looked_at() -> None:
    from dejaq.journal.retention import RetentionPolicy

    surplus = RetentionPolicy.surplus
    RetentionPolicy.surplus = lambda self, older, *args: surplus(self, list(older), *args)  # type: ignore[method-assign]


def _a_segment_a_second() -> None:
    from dejaq.journal.exporter import Exporter

    Exporter._is_slow = lambda self: False  # type: ignore[method-assign]


def _the_highest_lateness_is_cut_off() -> None:
    from matplotlib.axes import Axes

    Axes.set_ylim = lambda self, *args, **more: None  # type: ignore[method-assign,assignment]


def _a_task_waits_without_end() -> None:
    from dejaq.protocol import blocking

    run = blocking.BlockingTransport.run

    def longer(self: Any, work: Any, seconds: float | None = None) -> Any:
        # Even with the bug the wait has an end, so that this process ends.
        try:
            return run(self, work, 10.0)
        except TimeoutError:
            if seconds is not None and seconds < 10.0:
                raise AssertionError("the wait was not ended in time") from None
            raise

    blocking.BlockingTransport.run = longer  # type: ignore[method-assign]


BUGS: dict[str, Bug] = {
    "p1_the_audit_looks_for_gaps_between_first_and_last_only": Bug(
        _gaps_between_first_and_last_only,
        "tests/unit/pipeline/test_gaps.py::test_each_missing_record_is_named",
    ),
    "p2_the_stream_goes_on_behind_a_hole": Bug(
        _a_stream_over_holes,
        "tests/unit/pipeline/test_journal_stream.py::test_the_stream_waits_for_a_late_segment",
    ),
    "p10_a_vanished_segment_always_fails": Bug(
        _a_vanished_segment_always_fails,
        "tests/unit/pipeline/test_journal_stream.py::test_a_missing_segment_is_skipped_only_without_fail_on_data_loss",
    ),
    "p3_a_batch_of_cancels_has_no_name": Bug(
        _cancels_without_a_name,
        "tests/integration/connector/test_writing.py::test_an_unknown_id_is_not_found_however_often_the_task_is_tried",
    ),
    "p9_attempts_of_a_task_share_a_temporary_file": Bug(
        _attempts_share_a_file,
        "tests/integration/connector/test_writing.py::test_two_attempts_of_a_task_at_one_time_each_write_a_whole_file",
    ),
    "p5_the_first_line_is_the_cause": Bug(
        _the_first_line_is_the_cause,
        "tests/unit/pipeline/test_failures.py::test_the_cause_is_named",
    ),
    "p4_a_snapshot_left_early_keeps_its_place": Bug(
        _a_snapshot_left_early_keeps_its_place,
        "tests/unit/broker/test_snapshots.py::test_a_snapshot_that_was_left_early_is_replaced",
    ),
    "p6_each_task_opens_a_connection_of_its_own": Bug(
        _each_task_connects,
        "tests/integration/connector/test_reading.py::test_many_small_tasks_share_a_connection",
    ),
    "p7_all_queries_of_a_relation_share_a_snapshot": Bug(
        _queries_share_a_snapshot,
        "tests/integration/connector/test_reading.py::test_each_query_of_one_relation_sees_the_topic_as_it_is_then",
    ),
    "p8_a_status_counts_as_often_as_it_is_named": Bug(
        _statuses_count_twice,
        "tests/integration/connector/test_reading.py::test_a_status_that_is_named_twice_duplicates_no_row",
    ),
    "p12_ts_wins_over_another_due": Bug(
        _ts_wins_over_due,
        "tests/spark/test_options.py::test_a_row_has_one_time_by_either_column",
    ),
    "p12_the_columns_of_a_read_cannot_be_written": Bug(
        _columns_of_a_read_are_unknown,
        "tests/spark/test_options.py::test_a_frame_that_was_read_can_be_written",
    ),
    "d15_a_damaged_body_ends_the_forwarder": Bug(
        _a_damaged_body_ends_the_forwarder,
        "tests/integration/forward/test_forward.py::test_a_damaged_body_is_refused_and_the_rest_is_moved",
    ),
    "u13_an_added_segment_is_no_fault": Bug(
        _an_added_segment_is_no_fault,
        "tests/unit/journal/test_verification.py::test_a_segment_that_was_added_without_a_manifest_is_found",
    ),
    "u21_all_forwarders_share_a_group": Bug(
        _forwarders_share_a_group,
        "tests/integration/forward/test_forward.py::test_a_stream_is_forwarded_completely_to_each_target",
    ),
    "d17_the_python_of_the_path_runs_the_workers": Bug(
        _the_python_of_the_path,
        "tests/spark/test_options.py::test_the_workers_use_an_environment_that_is_not_activated",
    ),
    "d25_every_segment_is_looked_at": Bug(
        _every_segment_is_looked_at,
        "tests/unit/journal/test_retention.py::test_only_the_segments_to_drop_are_checked",
    ),
    "d25_a_slow_store_makes_a_segment_a_second": Bug(
        _a_segment_a_second,
        "tests/integration/journal/test_exporter.py::test_a_store_with_little_work_makes_fewer_segments_after_a_while",
    ),
    "u23_the_highest_lateness_is_cut_off": Bug(
        _the_highest_lateness_is_cut_off,
        "tests/unit/pipeline/test_plots.py::test_no_lateness_is_cut_off",
    ),
    "a_task_waits_for_a_frozen_broker_without_end": Bug(
        _a_task_waits_without_end,
        "tests/integration/connector/test_reading.py::test_the_wait_for_a_frozen_broker_has_an_end",
    ),
}
