"""R2 and R4 for the segments of logs: power cuts on a simulated disk, and kills at each named point."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dejaq.storage.rocksdb.engine import inspecting
from dejaq.storage.segments.writer import LogSegment, SegmentWriter
from tests.chaos import segment_child
from tests.chaos.segment_schedules import SegmentSchedule, run_segment_schedules
from tests.chaos.sizes import new_seed, size
from tests.memory_disk import tmp_path  # noqa: F401

SCHEDULES = size("R2", ci=1_500, full=200_000)
PLANTED_SCHEDULES = 10_000
ROOT = Path(__file__).resolve().parents[2]
POINTS = ("segment_written", "after_segment", "segments_rewritten", "segments_removed", "files_removed")
ROUNDS = size("R4", ci=1, full=20)


def test_r2_no_batch_is_lost_while_segments_are_written(record_property: Callable[[str, object], None]) -> None:
    run_segment_schedules(new_seed(), SCHEDULES)
    record_property("figure", f"{SCHEDULES:,} schedules on a simulated disk")


def _file_not_synced(patch: pytest.MonkeyPatch) -> None:
    finish = SegmentWriter.finish

    def lazy(self: SegmentWriter, **rest: object) -> LogSegment:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(self._files), "sync", lambda *_: None)
            return finish(self, **rest)  # type: ignore[arg-type]

    patch.setattr(SegmentWriter, "finish", lazy)


def _name_not_synced(patch: pytest.MonkeyPatch) -> None:
    finish = SegmentWriter.finish

    def lazy(self: SegmentWriter, **rest: object) -> LogSegment:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(self._files), "sync_directory", lambda *_: None)
            return finish(self, **rest)  # type: ignore[arg-type]

    patch.setattr(SegmentWriter, "finish", lazy)


def _removed_before_the_record(patch: pytest.MonkeyPatch) -> None:
    commit = SegmentSchedule._commit

    def early(self: SegmentSchedule, changes: object, frames: list[bytes]) -> None:
        kept = {one.base for one in self.index.segments}
        gone = [key for kind, key, _ in changes if kind and key[:1] == b"S"]  # type: ignore[attr-defined]
        named = {one.base: one.number for one in self.index.segments}
        self.files.remove([named[int(key[1:])] for key in gone if int(key[1:]) in kept])
        commit(self, changes, frames)  # type: ignore[arg-type]

    patch.setattr(SegmentSchedule, "_commit", early)


def _last_batch_forgotten(patch: pytest.MonkeyPatch) -> None:
    finish = SegmentWriter.finish

    def forgetful(self: SegmentWriter, **rest: object) -> LogSegment:
        del self._batches[1:]
        return finish(self, **rest)  # type: ignore[arg-type]

    patch.setattr(SegmentWriter, "finish", forgetful)


BUGS = (_file_not_synced, _name_not_synced, _removed_before_the_record, _last_batch_forgotten)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_r19_the_schedules_find_a_planted_bug_of_segments(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    seed = new_seed()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            run_segment_schedules(seed, PLANTED_SCHEDULES)


@pytest.mark.parametrize("point", POINTS)
def test_r4_a_kill_loses_no_batch(point: str, tmp_path: Path) -> None:  # noqa: F811
    """After each kill, a check finds nothing wrong, every acknowledged batch is there, and the latest of each key."""
    chance = random.Random(new_seed())
    for _ in range(ROUNDS):
        environment = {**os.environ, "DEJAQ_CRASH_AT": f"storage.{point}:{chance.randrange(1, 12)}"}
        command = [sys.executable, "-m", "tests.chaos.segment_child", str(tmp_path)]
        child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        assert child.returncode == -signal.SIGKILL, f"{point} did not kill the process: {child.stderr}"
        acknowledged = max(
            (int(line) for line in child.stdout.splitlines(keepends=True) if line[-1:] == "\n"), default=0
        )
        assert inspecting.check(tmp_path)["problems"] == []
        asyncio.run(segment_child.verify(tmp_path, acknowledged))
