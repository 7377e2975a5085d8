"""Planted bugs of the queries of the embedded store."""

from __future__ import annotations

from dejaq.storage.rocksdb.reading import histograms
from dejaq.storage.rocksdb.reading.counting import CountReading
from dejaq.storage.rocksdb.reading.leased import CopiedLease, LeaseReading
from dejaq.storage.rocksdb.reading.touching import RunsTouching, Times
from tests.regressions.bugs import Bug


def read_runs_for_each_minute() -> None:
    read = RunsTouching.times_of

    def read_again(self: RunsTouching, key: bytes, stored: bytes, gone: int) -> Times:
        read(self, key, stored, gone)
        return read(self, key, stored, gone)

    RunsTouching.times_of = read_again


def count_without_what_changes_meanwhile() -> None:
    CountReading._changed = lambda self, minute, delta: None


def forget_leases_of_the_moment() -> None:
    class Forgetful(LeaseReading):
        def taken(self) -> list[CopiedLease]:
            return []

    histograms.LeaseReading = Forgetful


BUGS = {
    "each_divided_minute_reads_its_runs_again": Bug(
        read_runs_for_each_minute, "tests/unit/storage/rocksdb/test_tallying.py::test_each_run_is_read_once"
    ),
    "changes_during_a_histogram_are_missed": Bug(
        count_without_what_changes_meanwhile,
        "tests/unit/storage/rocksdb/test_query_steps.py::test_changes_behind_the_reader_are_counted",
    ),
    "leased_rows_are_counted_as_free": Bug(
        forget_leases_of_the_moment,
        "tests/unit/storage/rocksdb/test_query_steps.py::test_counts_by_group_and_status_stay_exact",
    ),
}
