"""The exporter on a real store: when it writes, what it reports, and how it recovers from faults."""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dejaq.journal.exporter import SLOW_INTERVALS, Exporter
from dejaq.journal.extents import journal_extents
from dejaq.journal.names import SEGMENT_SUFFIX, named_files
from dejaq.journal.retention import RetentionPolicy
from dejaq.journal.verification import Fault, verify
from dejaq.storage.base import Storage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.model.replay import Replay, read_journal
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.journal.store import NOW, Work, events_in, exported, open_topic

WITHIN = 10.0


class Stage:
    """A store, random changes to it, and an exporter with a clock of its own."""

    def __init__(self, path: Path, storage: Storage) -> None:
        self.home = path
        self.directory = path / "journal"
        self.storage = storage
        self.clock = VirtualClock(NOW)
        self.problems: list[str | None] = []
        self.events = 0

    async def open(self, seed: int = 1) -> None:
        await self.storage.open(NOW)
        self.work = Work(self.storage, await open_topic(self.storage), seed)
        self.exporter = self.new_exporter()

    def new_exporter(self, policy: RetentionPolicy | None = None) -> Exporter:
        return Exporter(
            storage=self.storage,
            clock=self.clock,
            directory=self.directory,
            home=self.home,
            policy=policy,
            on_problem=self.problems.append,
            on_exported=self._count,
        )

    async def start(self) -> None:
        """Start the exporter, and wait until it has checked the store for the first time."""
        seen = len(self.problems)
        await self.exporter.start()
        await eventually(lambda: len(self.problems) > seen, within=WITHIN, what="the first check of the store")

    def _count(self, events: int) -> None:
        self.events += events

    async def caught_up(self) -> None:
        """Advance the clock by one second, and wait until every event is in a segment."""
        await self.clock.advance(1_000)
        await eventually(lambda: self.exporter.lag()[0] == 0, within=WITHIN, what="the journal is exported")

    async def passes_until(self, condition: Callable[[], bool]) -> None:
        """Advance the clock until the condition is true; the exporter may not be waiting yet at the first step."""

        async def look() -> bool:
            await self.clock.advance(1_000)
            return condition()

        await eventually(look, within=WITHIN)

    def check_story(self) -> None:
        """The segments are whole, and their events form one history from the beginning without a gap."""
        report = verify(self.directory)
        assert report.whole, report.findings
        rows = exported(self.directory)
        assert sorted({row["sequence"] for row in rows}) == list(range(1, rows[-1]["sequence"] + 1))
        Replay().follow(events_in(rows))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path, RocksStorage(tmp_path / "store", journal=True))
    await stage.open()
    yield stage
    await stage.exporter.stop()
    await stage.storage.close()


def segments(stage: Stage) -> int:
    return len(list(named_files(stage.directory, SEGMENT_SUFFIX)))


async def test_the_exporter_does_not_look_at_every_topic(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares figures several times per second, and those of the whole store grow with the topics."""

    def no_figures() -> None:
        raise AssertionError("the exporter asked for the figures of the whole store")

    monkeypatch.setattr(stage.storage, "stats", no_figures)
    await stage.start()
    await stage.work.step()
    await stage.caught_up()
    assert segments(stage) == 1
    assert stage.problems == [None] * len(stage.problems)


async def test_events_are_in_a_segment_after_a_second_and_removed_from_the_store(stage: Stage) -> None:
    await stage.start()
    for _ in range(5):
        await stage.work.step()
    assert stage.exporter.lag()[0] >= 5
    assert stage.exporter.lag()[1] > 0
    await stage.caught_up()
    assert segments(stage) == 1
    await stage.work.step()
    await stage.caught_up()
    assert segments(stage) == 2
    await eventually(lambda: stage.exporter.lag() == (0, 0), within=WITHIN)
    assert await stage.storage.journal(0, 1) == []
    stage.check_story()
    assert stage.events == len(exported(stage.directory))
    assert stage.exporter.figures.segments == 2
    assert stage.exporter.figures.segment_bytes == verify(stage.directory).bytes
    assert stage.problems[-1] is None


async def test_events_from_before_the_start_are_exported(stage: Stage) -> None:
    for _ in range(3):
        await stage.work.step()
    await stage.start()
    await eventually(lambda: stage.exporter.lag()[0] == 0, within=WITHIN)
    stage.check_story()


async def test_stopping_exports_the_rest(stage: Stage) -> None:
    await stage.start()
    await stage.caught_up()
    for _ in range(3):
        await stage.work.step()
    await stage.exporter.stop()
    assert await stage.storage.journal(0, 1) == []
    stage.check_story()
    stage.exporter = stage.new_exporter()


async def test_an_exporter_continues_where_another_stopped(stage: Stage) -> None:
    for _ in range(3):
        await stage.start()
        await stage.work.step()
        await stage.exporter.stop()
        stage.exporter = stage.new_exporter()
    assert segments(stage) == 3
    stage.check_story()


async def test_more_events_than_a_segment_may_have_become_several_segments(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejaq.journal.exporter.SEGMENT_BYTES", 2_000)
    monkeypatch.setattr("dejaq.journal.exporter.STEP_BYTES", 500)
    for _ in range(30):
        await stage.work.step()
    await stage.start()
    await eventually(lambda: stage.exporter.lag()[0] == 0, within=WITHIN)
    assert segments(stage) > 3
    stage.check_story()


async def test_a_directory_that_cannot_be_written_is_reported_and_no_event_is_lost(stage: Stage) -> None:
    await stage.start()
    await stage.work.step()
    await stage.caught_up()
    aside = stage.home / "aside"
    stage.directory.rename(aside)
    stage.directory.write_text("in the way")
    await stage.work.step()
    await stage.passes_until(lambda: stage.problems[-1] is not None)
    assert "wait in the store" in str(stage.problems[-1])
    assert await read_journal(stage.storage) != []
    # In one step: between two steps, the exporter could create the directory itself.
    link = stage.home / "link"
    link.symlink_to(aside)
    link.replace(stage.directory)
    await stage.passes_until(lambda: stage.problems[-1] is None)
    assert await stage.storage.journal(0, 1) == []
    stage.check_story()


async def test_an_exporter_that_cannot_begin_reports_it(stage: Stage) -> None:
    stage.directory.write_text("in the way")
    with pytest.raises(FileExistsError):
        await stage.exporter.start()


async def test_the_export_of_a_store_continues_after_a_failure(stage: Stage) -> None:
    await stage.start()
    await stage.work.step()
    await stage.storage.close()
    await stage.clock.advance(1_000)
    await eventually(lambda: stage.problems and stage.problems[-1] is not None, within=WITHIN)
    await stage.storage.open(NOW)
    await stage.work.step()
    await stage.clock.advance(5_000)
    await eventually(lambda: stage.problems[-1] is None, within=WITHIN)
    await stage.caught_up()
    stage.check_story()


async def test_a_store_restored_from_a_backup_begins_a_new_origin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    stage = Stage(tmp_path, RocksStorage(store, journal=True))
    await stage.open()
    await stage.start()
    await stage.work.step()
    await stage.exporter.stop()
    await stage.storage.close()
    shutil.copytree(store, tmp_path / "backup")
    for seed in (2, 3):
        stage = Stage(tmp_path, RocksStorage(store, journal=True))
        await stage.open(seed)
        await stage.start()
        await stage.work.create(2)
        await stage.work.create(seed)
        await stage.exporter.stop()
        await stage.storage.close()
        if seed == 2:
            shutil.rmtree(store)
            (tmp_path / "backup").rename(store)
    report = verify(stage.directory)
    assert report.whole, report.findings
    assert len(report.origins) == 2
    rows = exported(stage.directory)
    assert len({(row["origin"], row["sequence"], row["row"]) for row in rows}) == len(rows)
    assert set(stage.work.created) <= {row["id"] for row in rows}
    assert "as after restoring a backup" in caplog.text
    # P1: the records before its first one are not missing in the new origin, because the old origin has them.
    assert sorted(extent.begin for extent in journal_extents(stage.directory).values()) == [1, 2]


async def test_records_that_are_missing_from_the_store_are_reported(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.start()
    await stage.work.create(1)
    await stage.caught_up()
    await stage.work.create(1)
    await stage.storage.trim_journal(2)
    await stage.work.create(1)
    with caplog.at_level(logging.ERROR):
        await stage.caught_up()
    assert "records 2 to 2 of the journal are gone" in caplog.text
    assert [finding.fault for finding in verify(stage.directory).findings] == [Fault.MISSING]


async def test_old_segments_are_dropped_as_time_passes(stage: Stage) -> None:
    stage.exporter = stage.new_exporter(RetentionPolicy(age_ms_max=5_000))
    await stage.start()
    for _ in range(3):
        await stage.work.create(2)
        await stage.caught_up()
    assert segments(stage) == 3
    await stage.passes_until(lambda: segments(stage) == 1)
    report = verify(stage.directory)
    assert report.whole, report.findings
    assert report.origins.popitem()[1] == (3, 3)


async def test_a_store_with_little_work_makes_fewer_segments_after_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D25: a broker with one message per second wrote one segment per second, 86,400 per day."""
    monkeypatch.setattr("dejaq.journal.exporter.SMALL_IN_A_ROW", 5)
    stage.exporter = stage.new_exporter()
    await stage.start()
    for _ in range(5):
        await stage.work.create(1)
        await stage.caught_up()
    await stage.work.create(1)
    await stage.passes_until(lambda: segments(stage) == 6)
    before = segments(stage)
    for _ in range(SLOW_INTERVALS):
        await stage.work.create(1)
        await stage.clock.advance(1_000)
        # The work that the exporter has to do now is done in its thread.
        for _ in range(10):
            await stage.exporter._in_thread(int)
    await stage.passes_until(lambda: stage.exporter.lag()[0] == 0)
    assert segments(stage) - before <= 2
    stage.check_story()


async def test_the_memory_store_can_be_exported_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path, MemoryStorage(journal=True))
    await stage.open()
    await stage.start()
    for _ in range(20):
        await stage.work.step()
    await stage.exporter.stop()
    stage.check_story()
