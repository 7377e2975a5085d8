"""R2: power cuts on a simulated disk. Random schedules check the commit log, and planted bugs check the schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dejaq.errors import DejaqError
from dejaq.storage.commit_log import reader, record
from dejaq.storage.commit_log.recovery import Recovery
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.testing.simulated_disk import SimulatedDisk
from tests.chaos.log_schedules import run_schedules
from tests.chaos.sizes import new_seed, size

SCHEDULES = size("R2", ci=10_000, full=1_000_000)
# A planted bug is found much earlier.
PLANTED_SCHEDULES = 20_000


def test_r2_what_was_acknowledged_survives_every_crash(record_property: Callable[[str, object], None]) -> None:
    """G1: after torn, reordered and dropped writes, the log has a prefix of all records, and every acknowledged one."""
    run_schedules(new_seed(), SCHEDULES)
    record_property("figure", f"{SCHEDULES:,} schedules on a simulated disk")


def _nothing(*_: object, **__: object) -> None:
    """Leave a step out."""


def _ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(log: CommitLog) -> None:
        log.durable = log.written

    patch.setattr(CommitLog, "_sync", sync)


def _no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedDisk, "sync_directory", _nothing)


def _no_crc_check(patch: pytest.MonkeyPatch) -> None:
    for module in (record, reader):
        patch.setattr(module, "matches", lambda *_: True)


def _no_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedDisk, "truncate", _nothing)


def _watermark_ignored(patch: pytest.MonkeyPatch) -> None:
    begin = Recovery.__init__

    def ignorant(self: Recovery, files: SimulatedDisk, *, applied: int, watermark: int) -> None:
        begin(self, files, applied=applied, watermark=0)

    patch.setattr(Recovery, "__init__", ignorant)


def _not_written_again(patch: pytest.MonkeyPatch) -> None:
    """Recovery trusts what it reads after a failed sync."""
    patch.setattr(SimulatedDisk, "overwrite", _nothing)


def _not_sticky(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "check", _nothing)


def _header_with_first_group(patch: pytest.MonkeyPatch) -> None:
    """A new file is not made durable before there is a record in it."""
    sync = SimulatedDisk.sync

    def lazy(disk: SimulatedDisk, name: str) -> None:
        if disk.size(name) > record.FILE_HEADER_BYTES:
            sync(disk, name)

    patch.setattr(SimulatedDisk, "sync", lazy)


def _frames_not_written(patch: pytest.MonkeyPatch) -> None:
    """The address of a frame is given out, and the frame is dropped."""
    append = CommitLog.append

    def dropping(log: CommitLog, operations: bytes, frames: Sequence[bytes] = ()) -> int:
        return append(log, operations, frames[:-1])

    patch.setattr(CommitLog, "append", dropping)


def _needed_files_removed(patch: pytest.MonkeyPatch) -> None:
    trim = CommitLog.trim

    def careless(log: CommitLog, below: int, *, files: object = None) -> None:
        trim(log, below)

    patch.setattr(CommitLog, "trim", careless)


BUGS = (
    *(_ack_before_sync, _no_directory_sync, _no_crc_check, _no_truncation, _watermark_ignored),
    *(_not_written_again, _not_sticky, _header_with_first_group, _frames_not_written, _needed_files_removed),
)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_r19_the_schedules_find_a_planted_bug(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """A generator of schedules has blind spots; each of these bugs must be found."""
    seed = new_seed()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, DejaqError)):
            run_schedules(seed, PLANTED_SCHEDULES)
