"""Planted bugs of the runs that are frames of the commit log, and of backlogs of many runs."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.broker.sessions.changes import SessionChanges
from dejaq.storage.commit_log import reader
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.storage.rocksdb.bodies import row_groups
from dejaq.storage.rocksdb.engine import emptying
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.engine.frame_uses import FrameUses
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.far import finder, group_search, run_parts, stored_run
from dejaq.storage.rocksdb.timeline.far.packed_run import EqualCells
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.window import Window
from tests.regressions.bugs import Bug

FRAMES = "tests/integration/storage/test_run_frames.py"
COLUMNS = "tests/unit/broker/rights/test_quotas.py::test_bytes_count_however_a_frame_is_read"
USES = "tests/unit/storage/rocksdb/test_frame_uses.py"


def drop_a_frame() -> None:
    """The database gets the address of a frame that the log does not get."""
    append = CommitLog.append

    def dropping(log: CommitLog, operations: bytes, frames: Sequence[bytes] = ()) -> int:
        return append(log, operations, frames[1:])

    CommitLog.append = dropping  # type: ignore[method-assign]


def remove_files_with_runs() -> None:
    """A file is removed as soon as the database has been flushed past it."""
    FrameUses.is_free = lambda uses, file, flushed: True  # type: ignore[method-assign]


def accept_a_damaged_frame() -> None:
    """The bytes at an address are treated as the frame, whatever their checksum is."""
    reader.read_frame = lambda data, length: data[FRAME_HEADER_BYTES:]


def ignore_open_views() -> None:
    """A file that only an open snapshot reads is removed."""
    RocksDatabase.viewed = lambda database, file: False  # type: ignore[method-assign]


def count_what_was_moved() -> None:
    """A run that was moved out of a file is taken off the count of the file once more when its message goes."""
    FrameUses.moved = lambda uses, file, offset: None  # type: ignore[method-assign]


def move_what_has_gone() -> None:
    """A run that was removed is copied out of its file too, and so comes back."""
    unchecked = emptying._frames_of

    def always(record: emptying.LogRecord) -> object:
        for frame in unchecked(record):
            yield frame._replace(pointer=_Anything())

    emptying._frames_of = always  # type: ignore[assignment]


def let_rows_leave_one_by_one() -> None:
    """However late rows are, and however many runs there are, each lease takes a row or two from each run."""
    Window.order_slack = lambda window, ts, now: 0  # type: ignore[method-assign]


class _Anything(bytes):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


def take_rows_for_consecutive() -> None:
    """The rows of a lease that are in one run are numbered as if no row of another consumer lay between them."""
    LeasePart.lease_row = lambda part, row: part.offset + row - part.start  # type: ignore[method-assign]


def take_cells_for_equal() -> None:
    """A column of a stored run is read by position although its cells have several lengths."""
    row_groups._width_of = lambda ids: len(ids.wire) // len(ids)


def take_values_for_cells() -> None:
    """A column of a run is copied as a matrix although its values have several lengths."""
    EqualCells.are_equal = lambda cells: True  # type: ignore[method-assign]


def accept_damaged_rows() -> None:
    """A group of rows of a run is read without its checksum."""
    stored_run.rows_at = lambda database, place, groups, part: run_parts._bytes_at(
        database, place, part.start, part.length
    )


def accept_damaged_groups() -> None:
    """Groups that are read together are read without their checksums."""
    group_search.crc32 = DamagedCheck.of  # type: ignore[assignment]


class DamagedCheck(int):
    """A checksum that is equal to any other."""

    @classmethod
    def of(cls, part: object) -> DamagedCheck:
        """That of anything."""
        return cls()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def charge_decoded_bodies() -> None:
    """A quota counts only the bodies that were decoded with the frame."""
    throttle = SessionChanges._throttle
    SessionChanges._throttle = (  # type: ignore[method-assign]
        lambda changes, command, frame, columns: throttle(changes, command, frame, None)
    )


def take_ids_for_different() -> None:
    """Ids that were not decoded are never compared with each other."""
    RocksStorage.look_at = lambda storage, ids: setattr(ids, "are_distinct", True)  # type: ignore[method-assign]


def change_rows_that_left_meanwhile() -> None:
    """Rows that were found before other changes are taken as they were."""
    finder._still_there = lambda state, rows: rows


BUGS = {
    "quotas_count_only_decoded_bodies": Bug(charge_decoded_bodies, COLUMNS),
    "ids_that_are_cells_are_never_compared": Bug(take_ids_for_different, COLUMNS),
    "rows_that_left_meanwhile_are_changed": Bug(
        change_rows_that_left_meanwhile,
        "tests/unit/storage/rocksdb/test_far_rows.py::test_other_tasks_run_while_many_ids_are_read_or_changed",
    ),
    "damaged_groups_are_accepted": Bug(
        accept_damaged_groups,
        "tests/unit/storage/rocksdb/test_far_rows.py::test_damage_is_found_before_a_row_is_answered",
    ),
    "rows_between_others_are_taken_for_consecutive": Bug(
        take_rows_for_consecutive,
        "tests/unit/storage/rocksdb/test_shared_runs.py"
        "::test_rows_keep_their_numbers_when_some_are_settled_and_after_a_restart",
    ),
    "cells_of_several_lengths_are_taken_for_equal": Bug(
        take_cells_for_equal,
        "tests/unit/storage/rocksdb/test_row_groups.py::test_a_row_is_found_in_its_group",
    ),
    "values_of_several_lengths_are_copied_as_a_matrix": Bug(
        take_values_for_cells,
        "tests/unit/storage/rocksdb/test_row_groups.py::test_bodies_that_look_like_a_column_are_no_column",
    ),
    "damaged_rows_are_accepted": Bug(
        accept_damaged_rows,
        "tests/unit/storage/rocksdb/test_row_groups.py::test_damage_is_found_in_the_group_of_the_row_and_nowhere_else",
    ),
    "a_frame_is_dropped": Bug(
        drop_a_frame, f"{FRAMES}::test_a_run_is_a_frame_and_is_read_before_and_after_it_is_written"
    ),
    "files_with_runs_are_removed": Bug(
        remove_files_with_runs, f"{FRAMES}::test_messages_of_the_far_future_keep_no_more_log_than_the_limit"
    ),
    "a_damaged_frame_is_accepted": Bug(
        accept_a_damaged_frame, f"{FRAMES}::test_r11_a_damaged_run_is_found_when_it_is_read_and_by_the_check"
    ),
    "open_views_are_ignored": Bug(ignore_open_views, f"{FRAMES}::test_a_view_reads_what_has_gone_since"),
    "what_was_moved_is_counted_twice": Bug(
        count_what_was_moved,
        f"{USES}::test_a_run_that_was_moved_is_not_released_again_by_its_object_in_memory",
    ),
    "late_rows_leave_one_by_one": Bug(
        let_rows_leave_one_by_one,
        "tests/unit/storage/rocksdb/test_crowd.py::test_late_rows_of_many_runs_leave_in_slices",
    ),
    "what_has_gone_is_moved": Bug(move_what_has_gone, f"{FRAMES}::test_a_kill_at_any_point_loses_nothing"),
}
