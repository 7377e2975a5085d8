"""Runs and entries of ids as frames of the commit log: what is read, kept and moved, and what damage does."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.errors import Code, StoreError
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.commit_log.reader import file_name
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES
from dejaq.storage.rocksdb.engine import committer, emptying, keys, log_keeper
from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.engine.frames import address_in, size_of
from dejaq.storage.rocksdb.engine.inspecting import check, inspect
from dejaq.storage.rocksdb.engine.starting import begin_copy
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.ids import id_entries, pieces, sorted_run
from dejaq.storage.rocksdb.timeline.ids.columns import ENTRY_BYTES
from dejaq.testing.waiting import eventually
from tests.integration.storage.killing import copied, killed

NOW = 1_800_000_000_000
LATER = NOW + 86_400_000
BUCKETS = 2
SMALL = LogSizes(40_000, 60_000, 1 << 30)


@pytest.fixture(autouse=True)
def small_merges_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few dozen ids make sorted runs of entries, of which some are frames."""
    monkeypatch.setattr(id_entries, "RECENT_ENTRIES", 24)
    monkeypatch.setattr(id_entries, "RECENT_RECORDS", 5)
    monkeypatch.setattr(id_entries, "FAN_IN", 3)
    monkeypatch.setattr(id_entries, "STEP_ENTRIES", 32)
    monkeypatch.setattr(sorted_run, "PIECE_ENTRIES", 8)
    monkeypatch.setattr(pieces, "FRAME_BYTES_MIN", 16 * ENTRY_BYTES)


class Stage:
    """A store, and the bodies that it must have."""

    def __init__(self, path: Path, sizes: LogSizes = SMALL, *, by_priority: bool = False) -> None:
        self.path, self.sizes = path, sizes
        self.noise = random.Random(3)
        self.by_priority = by_priority
        self.sequence = 0
        self.expected: dict[str, bytes] = {}
        # Messages of a change that was not acknowledged yet.
        self.uncertain: set[str] = set()

    async def begin(self) -> None:
        self.storage = RocksStorage(self.path, journal=True, log=self.sizes)
        await self.storage.open(NOW)
        topics = await self.storage.topics()
        if not topics:
            kind = TopicKind.PRIORITY if self.by_priority else TopicKind.TIMELINE
            settings = TopicSettings(buckets=BUCKETS, kind=kind)
            topics = [Topic("mail", await self.storage.next_topic_number(), settings, created_ms=NOW)]
            await self.storage.put_topic(topics[0], DIRECT_CALL)
        (self.topic,) = topics

    async def create(self, count: int, *, own: bool = True, ts: int = LATER) -> list[str]:
        batch = CreateBatch(
            "billing",
            ProducerSession(NOW, 7),
            self.sequence,
            ts=[ts] * count,
            bodies=[self.noise.randbytes(500) for _ in range(count)],
            ids=[f"m-{self.sequence + row}" for row in range(count)] if own else None,
            bucket=self.sequence % BUCKETS,
        )
        self.sequence += count
        ids = [batch.id_of(row) for row in range(count)]
        self.uncertain = set(ids)
        assert not (await apply_one(self.storage, Create(self.topic, batch), NOW, DIRECT_CALL)).codes
        self.expected |= dict(zip(ids, batch.bodies, strict=True))
        self.uncertain = set()
        return ids

    async def cancel(self, ids: list[str]) -> None:
        self.uncertain = set(ids)
        assert not (await apply_one(self.storage, Cancel(self.topic, "billing", ids), NOW, DIRECT_CALL)).codes
        for message_id in ids:
            del self.expected[message_id]
        self.uncertain = set()

    async def edit(self, message_id: str) -> None:
        self.uncertain = {message_id}
        body = self.noise.randbytes(1_200)
        edit = Edit(self.topic, "billing", Edits(ids=[message_id], bodies=[body]))
        assert not (await apply_one(self.storage, edit, NOW, DIRECT_CALL)).codes
        self.expected[message_id] = body
        self.uncertain = set()

    async def deliver(self, rows: int) -> list[str]:
        """Lease the next messages and delete them."""
        request = LeaseRequest(range(BUCKETS), "worker", LATER, LATER + 60_000, rows_max=rows)
        lease = await self.storage.lease(self.topic, request, LATER, DIRECT_CALL)
        assert lease is not None
        ids = lease.ids()
        assert dict(zip(ids, lease.bodies, strict=True)) == {one: self.expected[one] for one in ids}
        self.uncertain = set(ids)
        deletion = Delete(self.topic, lease.lease_id, "worker", None)
        assert not (await apply_one(self.storage, deletion, LATER, DIRECT_CALL)).codes
        for message_id in ids:
            del self.expected[message_id]
        self.uncertain = set()
        return ids

    async def found(self) -> dict[str, bytes]:
        """Every message by every way to read it."""
        page = await self.storage.browse(self.topic, Filter(), None, 10_000, NOW)
        browsed = {message.id: message.body for message in page.messages}
        by_id = await self.storage.get(self.topic, list(browsed), NOW)
        assert {one.id: one.body for one in by_id if one is not None} == browsed
        assert await self.scanned() == browsed
        return browsed

    async def scanned(self) -> dict[str, bytes]:
        snapshot = await self.storage.snapshot(self.topic, NOW)
        try:
            portions = [one async for one in snapshot.scan(range(BUCKETS), Filter(), bodies=True)]
        finally:
            snapshot.close()
        ids = [one for part in portions for stretch in part.stretches for one in stretch.span.expand()]
        return dict(zip(ids, (body for part in portions for body in part.bodies or ()), strict=True))

    def pointers(self) -> int:
        """How many runs are frames."""
        values = self.storage._database.scan(keys.RUN, keys.after(keys.RUN))
        return sum(address_in(value) is not None for _, value in values)

    def id_frames(self) -> int:
        """How many frames have entries of ids."""
        return len(list(self.storage._database.scan_keys(keys.ID_FRAME, keys.after(keys.ID_FRAME))))

    def id_frame_bytes(self) -> int:
        """Their bytes in the log."""
        frames = self.storage._database.scan(keys.ID_FRAME, keys.after(keys.ID_FRAME))
        return sum(FRAME_HEADER_BYTES + size_of(value) for _, value in frames)

    async def export(self) -> None:
        """As an exporter that has exported everything."""
        await self.storage.trim_journal(int(self.storage.stats()["journal_sequence"]))

    async def quiet(self) -> None:
        """Wait until the log keeper has nothing to do."""
        engine = self.storage._engine
        assert engine is not None
        await eventually(lambda: engine.keeper._working is None, within=10)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path / "data")
    await made.begin()
    yield made
    await made.storage.close()


async def reopened(stage: Stage, path: Path) -> Stage:
    """Another store on a copy of the directory, as a kill would leave it."""
    again = Stage(path, stage.sizes)
    again.expected = stage.expected
    await again.begin()
    return again


@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("own", [False, True])
async def test_a_run_is_a_frame_and_is_read_before_and_after_it_is_written(
    tmp_path: Path, own: bool, by_priority: bool
) -> None:
    """G1: from memory while the disk is slow, from the log, after a kill, and after an orderly end."""
    stage = Stage(tmp_path / "data", by_priority=by_priority)
    await stage.begin()
    await stage.create(50, own=own)
    engine = stage.storage._engine
    assert engine is not None
    write, gate = engine.log.write, threading.Event()

    def slow_write() -> int:
        gate.wait(10)
        return write()

    engine.log.write = slow_write  # type: ignore[method-assign]
    creating = asyncio.ensure_future(stage.create(50, own=own))
    await eventually(lambda: stage.storage.stats()["log_pending"] == 1, within=5)
    state = stage.storage._states[stage.topic.number]
    runs = [state.runs.at(keys.place(key)) for key in state.database.scan_keys(keys.RUN, keys.after(keys.RUN))]
    assert sum(len(run.bodies) for run in runs) == 100
    gate.set()
    await creating
    assert stage.pointers() > 0
    assert await stage.found() == stage.expected
    await killed(tmp_path / "data", tmp_path / "killed")
    again = await reopened(stage, tmp_path / "killed")
    assert await again.found() == stage.expected
    await again.storage.close()
    await stage.storage.close()
    await stage.begin()
    assert await stage.found() == stage.expected
    await stage.deliver(100)
    # Entries of the messages that have gone are discarded by later changes.
    assert stage.storage.stats()["log_live_bytes"] == stage.id_frame_bytes()
    await stage.storage.close()


async def test_files_go_when_their_runs_are_gone(stage: Stage, tmp_path: Path) -> None:
    """A file of the log stays as long as a run in it exists, and no longer; nothing is copied for that."""
    for _ in range(10):
        await stage.create(40)
        await stage.export()
    assert stage.storage.stats()["log_files"] > 5
    assert await stage.found() == stage.expected
    while stage.expected:
        await stage.deliver(40)
    # Files that died since the tables were written last go after the next time, so changes go on meanwhile.
    for _ in range(20):
        await stage.create(150)
        await stage.export()
        await stage.quiet()
        if stage.storage.stats()["log_files"] < 5:
            break
    assert stage.storage.stats()["log_files"] < 5
    assert stage.storage.stats()["log_moved_bytes"] == 0
    await stage.quiet()
    await killed(tmp_path / "data", tmp_path / "killed")
    assert check(tmp_path / "killed")["problems"] == []
    again = await reopened(stage, tmp_path / "killed")
    assert await again.found() == stage.expected
    assert again.storage.stats()["log_live_bytes"] == stage.storage.stats()["log_live_bytes"]
    await again.storage.close()


async def test_a_dropped_topic_needs_no_file(stage: Stage) -> None:
    await stage.create(100)
    assert stage.storage.stats()["log_live_bytes"] > 50_000
    await stage.storage.drop_topic(stage.topic, NOW, DIRECT_CALL)
    assert stage.storage.stats()["log_live_bytes"] == 0


async def test_an_old_file_that_is_mostly_dead_is_emptied(stage: Stage, tmp_path: Path) -> None:
    """One message that stays does not keep a file: it moves into the database, where every reader finds it."""
    for _ in range(12):
        await stage.create(4, own=False)
        await stage.cancel(await stage.create(60))
        await stage.export()
    await stage.create(100)
    await stage.export()
    await eventually(lambda: stage.storage.stats()["log_moved_bytes"] > 0, within=5, what="a file is emptied")
    await stage.quiet()
    assert await stage.found() == stage.expected
    # A run in memory does not know that it was moved; when it goes, it is not counted twice.
    while len(stage.expected) > 100:
        await stage.deliver(10)
    await stage.create(100)
    await stage.quiet()
    await killed(tmp_path / "data", tmp_path / "killed")
    assert check(tmp_path / "killed")["problems"] == []


async def test_messages_of_the_far_future_keep_no_more_log_than_the_limit(tmp_path: Path) -> None:
    """The files with the fewest live bytes are emptied; nothing is lost, now and after a start."""
    stage = Stage(tmp_path / "data", LogSizes(40_000, 60_000, 150_000))
    await stage.begin()
    for _ in range(20):
        await stage.create(40)
        await stage.export()
    await eventually(lambda: stage.storage.stats()["log_bytes"] < 250_000, within=10, what="the log is short")
    await stage.quiet()
    assert stage.storage.stats()["log_moved_bytes"] > 100_000
    # Entries were moved too, and their run knows that.
    assert list(stage.storage._database.scan_keys(keys.ID_PIECE, keys.after(keys.ID_PIECE)))
    assert await stage.found() == stage.expected
    await stage.storage.close()
    assert check(tmp_path / "data")["problems"] == []
    await stage.begin()
    assert await stage.found() == stage.expected
    assert len(await stage.deliver(100)) == 100
    await stage.storage.close()


async def test_a_view_reads_what_has_gone_since(stage: Stage) -> None:
    """A scan of a snapshot gets every body, also of runs whose file nobody else needs; then the files go."""
    for _ in range(6):
        await stage.create(40)
    then = dict(stage.expected)
    snapshot = await stage.storage.snapshot(stage.topic, NOW)
    while stage.expected:
        await stage.deliver(40)
    for _ in range(4):
        await stage.create(40)
        await stage.export()
    await stage.quiet()
    files = stage.storage.stats()["log_files"]
    portions = [one async for one in snapshot.scan(range(BUCKETS), Filter(), bodies=True)]
    assert sorted(body for part in portions for body in part.bodies or ()) == sorted(then.values())
    snapshot.close()
    await stage.create(40)
    await eventually(lambda: stage.storage.stats()["log_files"] < files, within=5, what="the files are removed")


async def test_a_checkpoint_has_the_runs_in_the_log(stage: Stage, tmp_path: Path) -> None:
    for _ in range(6):
        await stage.create(40)
    await stage.storage.checkpoint(tmp_path / "copy")
    then = dict(stage.expected)
    while stage.expected:
        await stage.deliver(40)
    for _ in range(4):
        await stage.create(40)
        await stage.export()
    await stage.quiet()
    begin_copy(tmp_path / "copy")
    copy = await reopened(stage, tmp_path / "copy")
    assert await copy.found() == then
    await copy.storage.close()
    assert check(tmp_path / "copy")["problems"] == []


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


def remove(path: Path, _: int) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, cut, remove])
async def test_r11_a_damaged_run_is_found_when_it_is_read_and_by_the_check(
    tmp_path: Path, damage: Callable[[Path, int], None]
) -> None:
    """A start does not read what is in tables already; a read of the run gets STORE_CORRUPT, and never other bytes."""
    stage = Stage(tmp_path / "data")
    await stage.begin()
    for _ in range(4):
        await stage.create(40)
    await stage.storage.close()
    shown = inspect(tmp_path / "data")
    first = tmp_path / "data" / "commit" / shown["log_files"][0]["file"]
    assert shown["log_files"][0]["runs"] > 0
    assert shown["log_live_bytes"] == sum(file["live_bytes"] for file in shown["log_files"]) > 60_000
    assert check(tmp_path / "data")["problems"] == []
    damage(first, first.read_bytes().index(stage.expected["m-7"]))
    assert any(first.name in problem for problem in check(tmp_path / "data")["problems"])
    await stage.begin()
    with pytest.raises(StoreError) as found:
        await stage.found()
    assert found.value.code is Code.STORE_CORRUPT
    assert stage.storage.corrupt
    await stage.storage.close()


async def test_r11_damaged_entries_are_found_when_they_are_read_and_by_the_check(tmp_path: Path) -> None:
    """A message whose entry is damaged is not taken for one that does not exist."""
    stage = Stage(tmp_path / "data")
    await stage.begin()
    for _ in range(8):
        await stage.create(40)
    assert stage.id_frames()
    _, pointer = next(stage.storage._database.scan(keys.ID_FRAME, keys.after(keys.ID_FRAME)))
    address = address_in(pointer)
    assert address is not None
    await stage.storage.close()
    file = tmp_path / "data" / "commit" / file_name(address.file)
    flip(file, address.offset + FRAME_HEADER_BYTES + 5)
    assert any(file.name in problem for problem in check(tmp_path / "data")["problems"])
    await stage.begin()
    with pytest.raises(StoreError) as found:
        await stage.storage.get(stage.topic, list(stage.expected), NOW)
    assert found.value.code is Code.STORE_CORRUPT
    assert stage.storage.corrupt
    await stage.storage.close()


async def test_entries_that_are_gone_free_the_log(stage: Stage) -> None:
    """Also those of runs that were merged, and of a topic that is emptied."""
    for _ in range(12):
        await stage.create(40)
    assert stage.id_frames()
    before = stage.storage.stats()["log_live_bytes"]
    await stage.cancel(sorted(stage.expected))
    for _ in range(40):
        await stage.cancel(await stage.create(1))
    assert not stage.id_frames()
    assert stage.storage.stats()["log_live_bytes"] < before / 100


@pytest.mark.parametrize("seed", range(4))
async def test_a_kill_at_any_point_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """G1: while files are emptied and removed, every state that a kill may leave has every message and its body."""
    stage = Stage(tmp_path / "data", LogSizes(20_000, 30_000, 60_000))
    # How often there is a kill does not change what else is done.
    chance, copies = random.Random(seed), random.Random(seed)
    kills: dict[str, list[tuple[Path, dict[str, bytes], set[str]]]] = {}

    def kill(point: str) -> None:
        taken = kills.setdefault(point, [])
        path = tmp_path / f"{point}-{len(taken)}"
        if len(taken) < 4 and (not taken or copies.random() < 0.2) and copied(tmp_path / "data", path):
            taken.append((path, dict(stage.expected), set(stage.uncertain)))

    for module in (committer, emptying, log_keeper):
        monkeypatch.setattr(module, "crash_at", kill)
    await stage.begin()
    had_entries = False
    for _ in range(25):
        await stage.create(chance.choice([5, 40]), own=chance.random() < 0.7)
        had_entries |= stage.id_frames() > 0
        known = sorted(stage.expected)
        await stage.cancel(chance.sample(known, min(len(known), chance.choice([1, 30]))))
        if stage.expected:
            await stage.edit(chance.choice(sorted(stage.expected)))
        if chance.random() < 0.5 and stage.expected:
            await stage.deliver(chance.choice([3, 30]))
        if chance.random() < 0.7:
            await stage.export()
    await stage.quiet()
    for module in (committer, emptying, log_keeper):
        monkeypatch.setattr(module, "crash_at", lambda _: None)
    assert had_entries
    assert await stage.found() == stage.expected
    await stage.storage.close()
    assert check(tmp_path / "data")["problems"] == []
    assert kills.keys() >= {"storage.before_move", "storage.after_move", "storage.files_removed"}
    for taken in kills.values():
        for path, expected, uncertain in taken:
            assert check(path)["problems"] == [], path
            again = await reopened(stage, path)
            found = await again.found()
            assert {one: body for one, body in found.items() if one not in uncertain} == {
                one: body for one, body in expected.items() if one not in uncertain
            }, path
            await again.storage.close()
            shutil.rmtree(path)
