"""Scattered batches are stored as wide runs, and merging them changes nothing that anybody can see."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Recall
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.reading.touching import RunsTouching
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.far.packed_run import PackedRun
from dejaq.storage.rocksdb.timeline.ids import id_entries
from dejaq.storage.rocksdb.timeline.ids.hashing import hash_column
from dejaq.storage.rocksdb.timeline.levels import merger
from dejaq.storage.rocksdb.timeline.levels.columns import Encoded, MergedColumns
from dejaq.storage.rocksdb.timeline.levels.scatter import is_scattered
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.testing.waiting import patient

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
BUCKETS = 4
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
SMALL = LevelSettings(merge_runs=4, merge_runs_max=8, near_runs=3, piece_rows=50)
# Everything that belongs to messages.
TABLES = (
    *(keys.RUN, keys.GONE, keys.EXTENT, keys.DIRECTORY, keys.INDEX, keys.YOUNG, keys.LEASE, keys.TERMS),
    *(keys.PLACE, keys.ID_CHANGES, keys.MOVED, keys.MOVED_TIMES, keys.MERGED_PIECE),
)


class Stage:
    """A store, and what must be in it."""

    def __init__(self, path: Path, levels: LevelSettings = SMALL, *, seed: int = 1) -> None:
        self._path, self._levels = path, levels
        self.chance = random.Random(seed)
        self.now = NOW
        self.sequence = 0
        self.expected: dict[str, tuple[int, bytes, int]] = {}
        # Whether all ids have one length, and all bodies: then they are merged as bytes.
        self.even = False

    async def begin(self) -> None:
        self.storage = RocksStorage(self._path, journal=True, levels=self._levels)
        await self.storage.open(self.now)
        if not await self.storage.topics():
            await self.storage.put_topic(TOPIC, DIRECT_CALL)

    async def restart(self) -> None:
        await self.storage.close()
        await self.begin()

    async def create(self, count: int, *, own: bool, spread_ms: int = DAY_MS, group: str = "o") -> list[str]:
        ts = sorted(self.now + self.chance.randrange(1, spread_ms) for _ in range(count))
        if own:
            self.chance.shuffle(ts)
        batch = CreateBatch(
            owner=group,
            session=ProducerSession(NOW, 5),
            sequence=self.sequence,
            ts=ts,
            bodies=[self.chance.randbytes(20 if self.even else self.chance.choice([0, 3, 20])) for _ in range(count)],
            ids=[f"own-{self.sequence + row:0{6 * self.even}}" for row in range(count)] if own else None,
            bucket=self.chance.randrange(BUCKETS),
            priorities=None if own else [0] * count,
        )
        self.sequence += count
        assert not (await apply_one(self.storage, Create(TOPIC, batch), self.now, DIRECT_CALL)).codes
        ids = [batch.id_of(row) for row in range(count)]
        for row, message_id in enumerate(ids):
            self.expected[message_id] = ts[row], batch.bodies[row], 0
        return ids

    async def cancel(self, ids: list[str]) -> None:
        assert not (await apply_one(self.storage, Cancel(TOPIC, "o", ids), self.now, DIRECT_CALL)).codes
        for message_id in ids:
            del self.expected[message_id]

    async def move(self, message_id: str, ts: int) -> None:
        edits = Edits(ids=[message_id], ts=[ts])
        assert not (await apply_one(self.storage, Edit(TOPIC, "o", edits), self.now, DIRECT_CALL)).codes
        self.expected[message_id] = ts, *self.expected[message_id][1:]

    async def lease(self, rows_max: int = 1_000, buckets: tuple[int, ...] = tuple(range(BUCKETS))) -> LeaseSet | None:
        request = LeaseRequest(buckets, "c", self.now, self.now + DAY_MS, rows_max)
        return await self.storage.lease(TOPIC, request, self.now, DIRECT_CALL)

    async def messages(self) -> dict[str, Message]:
        found: dict[str, Message] = {}
        cursor: bytes | None = None
        times: list[int] = []
        while True:
            page = await self.storage.browse(TOPIC, Filter(), cursor, 77, self.now)
            for message in page.messages:
                assert message.id not in found
                found[message.id] = message
                times.append(message.ts)
            cursor = page.cursor
            if cursor is None:
                assert times == sorted(times)
                return found

    async def check(self) -> dict[str, Message]:
        """Every way to look finds the same, and what is expected."""
        found = await self.messages()
        held = {one: message for one, message in found.items() if message.lock_consumer}
        free = {one: message for one, message in found.items() if one not in held}
        expected = {one: row for one, row in self.expected.items() if one not in held}
        assert {one: (m.ts, m.body, m.attempts) for one, m in free.items()} == expected
        by_id = await self.storage.get(TOPIC, [*found, "nobody"], self.now)
        assert by_id == [*found.values(), None]
        times = [message.ts for message in found.values()]
        start = NOW + 12_345
        for step in (1_000, 3_600_000, DAY_MS):
            drawn = await self.storage.histogram(TOPIC, Filter(start=start), step, self.now)
            assert dict(drawn) == Counter(ts - (ts - start) % step for ts in times if ts >= start)
        snapshot = await self.storage.snapshot(TOPIC, self.now)
        portions = [part async for part in snapshot.scan(range(BUCKETS), Filter(), bodies=True)]
        snapshot.close()
        ids = [one for part in portions for stretch in part.stretches for one in stretch.span.expand()]
        assert sorted(ids) == sorted(found)
        versions = {
            one: stretch.version for part in portions for stretch in part.stretches for one in stretch.span.expand()
        }
        assert versions == {one: message.version for one, message in found.items()}
        return found

    def count(self, table: bytes) -> int:
        return len(list(self.storage._database.scan_keys(table, keys.after(table))))

    async def drain(self) -> list[str]:
        """Lease and delete what is left when all of it is due; the ids in their order."""
        self.now += 40 * DAY_MS
        left: list[str] = []
        while (lease := await self.lease(100)) is not None:
            left += lease.ids()
            assert not (
                await apply_one(self.storage, Delete(TOPIC, lease.lease_id, "c", None), self.now, DIRECT_CALL)
            ).codes
        return left


@pytest.mark.parametrize("own", [True, False])
async def test_a_scattered_batch_is_two_runs(tmp_path: Path, own: bool) -> None:
    """What is due within a minute, and the rest."""
    stage = Stage(tmp_path / "s", LevelSettings())
    await stage.begin()
    await stage.create(400, own=own, spread_ms=600_000)
    assert stage.count(keys.RUN) == 2
    assert stage.count(keys.EXTENT) == 2
    await stage.check()
    await stage.restart()
    await stage.check()
    expected = sorted(stage.expected, key=lambda one: stage.expected[one][0])
    assert await stage.drain() == expected
    assert [stage.count(table) for table in TABLES] == [0] * len(TABLES)
    await stage.storage.close()


@pytest.mark.parametrize("seed", range(6))
async def test_merging_is_seen_by_nobody(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """G1, G3, G9: ids, times, bodies, versions, counts and order are the same behind any number of merges."""
    monkeypatch.setattr(merger, "STEP_S", 0.0)
    if seed % 2:
        # The entries of ids are merged too.
        monkeypatch.setattr(id_entries, "RECENT_ENTRIES", 100)
        monkeypatch.setattr(id_entries, "FAN_IN", 2)
    stage = Stage(tmp_path / "s", seed=seed)
    stage.even = seed % 3 == 0
    await stage.begin()
    known: dict[str, Message] = {}
    leases: list[LeaseSet] = []
    for round_ in range(12):
        changed: set[str] = set()
        for _ in range(3):
            spread = stage.chance.choice([90_000, DAY_MS])
            count, own = stage.chance.choice([30, 120]), stage.chance.random() < 0.6
            changed.update(await stage.create(count, own=own, spread_ms=spread))
        merging = asyncio.ensure_future(stage.storage.merger.settle())
        for _ in range(6):
            await asyncio.sleep(0)
            free = sorted(one for one in stage.expected if one not in {i for lease in leases for i in lease.ids()})
            one, other = stage.chance.sample(free, 2)
            await stage.cancel([one])
            await stage.move(other, stage.now + stage.chance.randrange(DAY_MS))
            changed.update((one, other))
        await asyncio.wait_for(merging, patient(60))
        if round_ % 3 == 1:
            stage.now += 20_000
            lease = await stage.lease(5)
            leases += [lease] if lease is not None else []
        found = await stage.check()
        for message_id, message in found.items():
            if message_id in known and message_id not in changed and not message.lock_consumer:
                assert message == known[message_id]
        known = {one: message for one, message in found.items() if not message.lock_consumer}
        if round_ % 4 == 3:
            await stage.restart()
            assert (await stage.check()).keys() == found.keys()
    assert stage.storage.merger.stats()["wide_runs_level_1"] > 0
    for lease in leases:
        assert not (
            await apply_one(stage.storage, Recall(TOPIC, lease.lease_id, "c", None), stage.now, DIRECT_CALL)
        ).codes
    expected = sorted((ts, one) for one, (ts, _, _) in stage.expected.items())
    left = await stage.drain()
    assert sorted(left) == sorted(stage.expected)
    assert [stage.expected[one][0] for one in left] == [ts for ts, _ in expected]
    assert [stage.count(table) for table in TABLES] == [0] * len(TABLES)
    await stage.storage.close()


async def test_runs_are_merged_into_runs_that_follow_each_other(tmp_path: Path) -> None:
    """Each row is rewritten once, and the rows of a piece lie together."""
    stage = Stage(tmp_path / "s", LevelSettings(merge_runs=8, merge_runs_max=8, piece_rows=100))
    await stage.begin()
    for _ in range(8):
        await stage.create(100, own=True, spread_ms=30 * DAY_MS)
    await stage.storage.merger.settle()
    stats = stage.storage.merger.stats()
    assert 790 <= stats["merged_rows"] <= 800
    assert 6 <= stats["wide_runs_level_1"] <= 10
    extents = sorted((wide.first, wide.last) for _, wide in stage.storage._states[1].wide if wide.level == 1)
    assert all(last <= first for (_, last), (first, _) in pairwise(extents))
    await stage.check()
    await stage.storage.close()


async def test_what_is_leased_during_a_merge_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: its holder deletes it, and it does not come back."""
    monkeypatch.setattr(merger, "STEP_S", 0.0)
    stage = Stage(tmp_path / "s", LevelSettings(merge_runs=4, near_runs=4, piece_rows=40))
    await stage.begin()
    for _ in range(4):
        await stage.create(100, own=True, spread_ms=50_000)
    merging = asyncio.ensure_future(stage.storage.merger.settle())
    stage.now += 20_000
    held: list[str] = []
    while not merging.done():
        await asyncio.sleep(0)
        lease = await stage.lease(1)
        if lease is not None:
            held += lease.ids()
            assert not (
                await apply_one(stage.storage, Delete(TOPIC, lease.lease_id, "c", None), stage.now, DIRECT_CALL)
            ).codes
    assert held
    for message_id in held:
        del stage.expected[message_id]
    await stage.check()
    await stage.restart()
    await stage.check()
    assert sorted(await stage.drain()) == sorted(stage.expected)
    await stage.storage.close()


@pytest.mark.parametrize("odd", [None, "id", "body", "headers"])
def test_rows_are_merged_as_bytes_as_they_are_merged_as_objects(odd: str | None) -> None:
    """Until a run has an id or a body of another length, or headers: then all rows become objects."""
    chance = random.Random(3)
    runs: list[Run] = []
    for number in range(1, 6):
        ids = [f"m-{number}-{row:03d}" for row in range(60)]
        bodies = [chance.randbytes(300) for _ in ids]
        record = records.Run(owner="o", ts=sorted(chance.randrange(NOW, NOW + 1_000) for _ in ids))
        if number == 4 and odd is not None:
            ids[7] += "x" * (odd == "id")
            bodies[7] += b"x" * (odd == "body")
            record.headers.extend([b"h" if odd == "headers" else b""] * len(ids))
        if number % 2:
            record.versions.extend(chance.randrange(1 << 50) for _ in ids)
        key = keys.run(1, keys.SPREAD, NOW // keys.SLICE_MS, number, 1)
        runs.append(Run.parse(key, record.SerializeToString() + IdColumn(ids).wire + BodyBlock(bodies).data))
    merged: list[list[bytes]] = []
    for as_bytes in (True, False):
        columns = MergedColumns()
        for run in runs:
            stored = PackedRun(_stored(run))
            columns.add(run, run.free & ~(0b1011 << 20), stored if as_bytes else None)
        assert columns.are_cells is (as_bytes and odd is None)
        columns.sort()
        pieces = [columns.positions(start, start + 50, {0: 1 << 5, 2: 0b110}) for start in range(0, len(columns), 50)]
        made = [one for piece in pieces for one in columns.encoded("o", keys.SPREAD, piece, None)]
        assert [list(one.ids) for one in made] == [one.ids.text.split("\n") for one in made]
        assert all(hash_column(one.ids).tolist() == hash_column(list(one.ids)).tolist() for one in made)
        assert all(one.block is not None and list(one.block) == one.block[0:] for one in made)
        assert all(one.times.tolist() == list(one.record.ts) for one in made)
        merged.append(
            [one.record.SerializeToString() + one.ids.wire + (one.block or BodyBlock([])).data for one in made]
        )
    assert merged[0] == merged[1]


def _stored(run: Run) -> bytes:
    """A run as it is written: ids and bodies are behind its other columns."""
    rest = records.Run()
    rest.CopyFrom(run.record)
    rest.ClearField("ids")
    rest.ClearField("bodies")
    return b"".join((rest.SerializeToString(), run.ids.wire, BodyBlock(list(run.bodies)).data))


async def test_what_is_cancelled_before_its_piece_is_written_stays_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: a row of a later piece is cancelled after each write, when the columns of all pieces are complete."""
    stage = Stage(tmp_path / "s", LevelSettings(merge_runs=4, near_runs=4, piece_rows=40))
    await stage.begin()
    cancels: list[asyncio.Future[None]] = []
    encoded = MergedColumns.encoded

    def encode(columns: MergedColumns, *arguments: Any) -> Iterator[Encoded]:
        # The merger lets other tasks run after it wrote what this returns, and the cancel is the first of them.
        row = columns._order[-1 - len(cancels)]
        cancels.append(asyncio.ensure_future(stage.cancel([columns.ids_of(np.array([row]))[0]])))
        return encoded(columns, *arguments)

    monkeypatch.setattr(MergedColumns, "encoded", encode)
    for _ in range(4):
        await stage.create(100, own=True)
    await asyncio.wait_for(stage.storage.merger.settle(), patient(60))
    assert stage.storage.merger.rows
    assert cancels
    await asyncio.gather(*cancels)
    await stage.check()
    await stage.restart()
    await stage.check()
    assert sorted(await stage.drain()) == sorted(stage.expected)
    await stage.storage.close()


async def test_consumers_that_share_the_buckets_get_all_of_a_wide_run_in_order(tmp_path: Path) -> None:
    """G3: each gets its own, merged by bucket or not."""
    for merged in (False, True):
        levels = LevelSettings(merge_runs=4, near_runs=4, piece_rows=200) if merged else LevelSettings(near_runs=99)
        stage = Stage(tmp_path / str(merged), levels)
        await stage.begin()
        assert await stage.lease(buckets=(0, 1)) is None
        for _ in range(8):
            await stage.create(100, own=True, spread_ms=50_000)
        await stage.storage.merger.settle()
        assert bool(stage.storage.merger.merges) == merged
        stage.now += 50_000
        got: dict[tuple[int, ...], list[LeaseSet]] = {(0, 2): [], (1, 3): []}
        for _ in range(30):
            for buckets, sets in got.items():
                lease = await stage.lease(50, buckets)
                sets += [lease] if lease is not None else []
        assert sorted(one for sets in got.values() for lease in sets for one in lease.ids()) == sorted(stage.expected)
        for sets in got.values():
            times = [ts for lease in sets for ts in lease.ts]
            assert times == sorted(times)
        await stage.storage.close()


async def test_creates_wait_while_merges_are_far_behind(tmp_path: Path) -> None:
    """And the metrics say why."""
    stage = Stage(tmp_path / "s", LevelSettings(merge_runs=3, near_runs=3, behind_runs=5, behind_s=0.001))
    await stage.begin()
    merging = stage.storage.merger
    for count in range(1, 8):
        # No merge is made.
        merging._stopped = True
        await stage.create(50, own=True)
        await merging._next()
        assert stage.storage.stats()["merge_behind"] == (count >= 5)
    merging._stopped = False
    await merging.settle()
    assert stage.storage.stats()["merge_behind"] == 0
    await stage.check()
    await stage.storage.close()


async def test_an_id_is_taken_wherever_its_message_lies(tmp_path: Path) -> None:
    """G5: in a wide run and in a merged one."""
    stage = Stage(tmp_path / "s", LevelSettings(merge_runs=2, near_runs=2, piece_rows=20))
    await stage.begin()
    ids = await stage.create(50, own=True)
    for merged in (False, True):
        if merged:
            await stage.create(50, own=True)
            await stage.storage.merger.settle()
            assert stage.storage.merger.merges
        session = ProducerSession(NOW, 9)
        batch = CreateBatch("o", session, 50 * merged, [stage.now + DAY_MS] * 50, [b"other"] * 50, ids=ids)
        outcomes = await apply_one(stage.storage, Create(TOPIC, batch), stage.now, DIRECT_CALL)
        assert set(outcomes.codes.values()) == {Code.ID_TAKEN}
        assert len(outcomes.codes) == 50
    await stage.storage.close()


async def test_a_page_reads_only_the_runs_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L5: also where all rows of a minute lie at its end, so the length of a range says nothing."""
    stage = Stage(tmp_path / "s", LevelSettings(merge_runs=4, near_runs=4, piece_rows=50))
    await stage.begin()
    stage.now = NOW + (50_000 - NOW) % 60_000 + 5 * 60_000
    for _ in range(16):
        await stage.create(100, own=True, spread_ms=9_000)
    await asyncio.wait_for(stage.storage.merger.settle(), patient(60))
    assert stage.count(keys.EXTENT) >= 30
    read: list[bytes] = []
    wide = RunsTouching.wide

    def counted(touching: RunsTouching, key: bytes) -> tuple[Run, int]:
        read.append(key)
        return wide(touching, key)

    monkeypatch.setattr(RunsTouching, "wide", counted)
    page = await stage.storage.browse(TOPIC, Filter(), None, 77, stage.now)
    assert [message.ts for message in page.messages] == sorted(ts for ts, _, _ in stage.expected.values())[:77]
    assert len(read) <= 16
    monkeypatch.undo()
    await stage.check()
    await stage.storage.close()


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_scattered_by_the_slices_that_they_fill(seed: int) -> None:
    """A sample of the rows decides only what all of them would."""
    chance, settings = random.Random(seed), LevelSettings()
    rows, buckets = chance.choice([1, 50, 128, 300, 1_000]), chance.choice([1, 4, 16, 64])
    width = chance.choice([1, keys.SLICE_MS, 3 * keys.SLICE_MS, 200 * keys.SLICE_MS, 10**9])
    ts = np.array([NOW + chance.randrange(width) for _ in range(rows)], dtype=np.int64)
    slices = len(set((ts // keys.SLICE_MS).tolist()))
    filled = rows < slices * buckets * settings.cell_rows
    expected = rows < buckets * settings.bucket_rows and buckets > 1 if slices == 1 else filled
    assert is_scattered(settings, ts, buckets) is (rows >= settings.wide_rows_min and expected)
