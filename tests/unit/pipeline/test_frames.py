"""A scan in which the caller reads runs from the broker's files returns exactly the rows of the snapshot."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dejaq.broker.calls.snapshots import Snapshots
from dejaq.directories import directory_identity, machine
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Encryption, Topic, TopicKind, TopicSettings
from dejaq.errors import StoreError, Unavailable
from dejaq.limits import INLINE_BODY_BYTES_MAX
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading import snapshot as reading
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.timekeeper.clock import VirtualClock
from pyspark_dejaq.columns import record_batch
from pyspark_dejaq.frames import FrameFiles
from pyspark_dejaq.runs import WantedBatches, frame_batch, run_batch

CONTEXT = CallContext("a-request", "a peer")
NOW = 1_800_000_000_000
BUCKETS, PARTS, BATCHES, ROWS = 4, 4, 24, 100
KINDS = (TopicKind.TIMELINE, TopicKind.PRIORITY)
_HERE = {"topic": "t", "machine": machine()}
Rows = list[dict[str, Any]]
Portions = AsyncIterator[carrier.ScanColumns]

pytestmark = pytest.mark.skipif(not machine(), reason="this system has no identity that the broker can compare")


class Stage:
    """A store with a topic, and the snapshots of a broker over it."""

    def __init__(self, path: Path, kind: TopicKind = TopicKind.TIMELINE) -> None:
        self.topic = Topic("t", 1, TopicSettings(buckets=BUCKETS, kind=kind))
        self.storage = RocksStorage(path, levels=LevelSettings(merge_runs=8))
        self.snapshots = Snapshots(
            storage=self.storage, clock=VirtualClock(NOW), find_topic=lambda name: self.topic, delivers=lambda: False
        )
        self.ids: list[str] = []

    async def begin(self) -> None:
        """Open the store and create the topic."""
        await self.storage.open(NOW)
        await self.storage.put_topic(self.topic, DIRECT_CALL)

    async def create(self, number: int, *, ids: bool = True, body: bytes = b"body %d") -> None:
        """Create a batch whose times, priorities and lengths differ."""
        chance = random.Random(number)
        names = [f"m-{number}-{row * 7}" for row in range(ROWS)] if ids else None
        # Some batches are scattered over many slices of time, and some are within one.
        span = 3_000_000 if number % 3 else 2_000
        ts = sorted(NOW + chance.randrange(-span // 3, span) for _ in range(ROWS))
        batch = CreateBatch(
            owner=f"group {number % 3}",
            session=ProducerSession(NOW, 7),
            sequence=number * ROWS,
            bucket=0 if ids else number % BUCKETS,
            ts=ts,
            ids=names,
            bodies=[body % row if b"%d" in body else body for row in range(ROWS)],
            priorities=sorted(chance.randrange(-9, 9) for _ in range(ROWS)) if number % 2 else None,
            headers=[encode_headers({"n": str(row)}) for row in range(ROWS)] if number % 5 == 0 else None,
        )
        assert not (await apply_one(self.storage, Create(self.topic, batch), NOW, DIRECT_CALL)).codes
        self.ids += names or []

    async def lease(self, rows: int) -> None:
        """Lease some rows."""
        request = LeaseRequest(range(BUCKETS), "c", until=NOW, expires=NOW + 60_000, rows_max=rows)
        assert await self.storage.lease(self.topic, request, NOW, DIRECT_CALL) is not None

    async def cancel(self, step: int) -> None:
        """Remove every so manyth message; some of them are leased, and stay."""
        for start in range(0, len(self.ids), 1_000):
            some = self.ids[start : start + 1_000 : step]
            await apply_one(self.storage, Cancel(self.topic, "", some), NOW, DIRECT_CALL)

    async def opened(self, **fields: str) -> carrier.SnapshotResponse:
        """A snapshot, for a caller on this machine."""
        return await self.snapshots.open(
            CONTEXT, carrier.SnapshotRequest(**{"topic": "t", "machine": machine()} | fields)
        )

    def scan(
        self, opened: carrier.SnapshotResponse, part: int = 0, **fields: Any
    ) -> AsyncIterator[carrier.ScanColumns]:
        """A scan of the whole topic; or one of `PARTS` that are of different buckets."""
        request = carrier.ScanRequest(
            snapshot=opened.snapshot, filter=carrier.Filter(end=2**62), end_bucket=BUCKETS, runs=True, share=0, shares=1
        )
        if "shares" in fields:
            request.first_bucket, request.end_bucket, request.share = part, part + BUCKETS // PARTS, part
        for name, value in fields.items():
            if isinstance(value, carrier.Filter):
                request.filter.CopyFrom(value)
            else:
                setattr(request, name, value)
        return self.snapshots.scan(CONTEXT, request)

    async def rows(
        self, opened: carrier.SnapshotResponse, files: FrameFiles | None, *, shares: int = PARTS
    ) -> tuple[Rows, int]:
        """The rows of a snapshot by their ids, read in parts, and how many runs were read from files."""
        found: Rows = []
        framed = 0
        wanted = WantedBatches("t", BUCKETS, opened.at_ms)
        for part in range(PARTS):
            async for scan in self.scan(opened, part, shares=shares, frames=files is not None):
                batches = [record_batch(scan, "t", opened.at_ms)] if scan.ts else []
                batches += [run_batch(scan, wanted)] if scan.runs else []
                if files is not None and scan.frame_files:
                    framed += len(scan.frame_files)
                    batches.append(frame_batch(files.runs(scan), scan, wanted))
                for batch in batches:
                    found += batch.to_pylist()
        return sorted(found, key=lambda row: str(row["id"])), framed

    async def applied(self) -> None:
        """Open the store again: the database has every change then, and memory none."""
        await self.storage.close()
        await self.storage.open(NOW)

    async def close(self) -> None:
        """Close the snapshots and the store."""
        self.snapshots.close_all()
        await self.storage.close()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path / "store")
    await made.begin()
    yield made
    await made.close()


def files_of(opened: carrier.SnapshotResponse) -> FrameFiles:
    files = FrameFiles.of(opened)
    assert files is not None
    return files


@pytest.mark.parametrize("kind", KINDS)
async def test_frames_have_the_rows_of_the_columns(tmp_path: Path, kind: TopicKind) -> None:
    stage = Stage(tmp_path / "store", kind)
    await stage.begin()
    try:
        for number in range(BATCHES):
            await stage.create(number, ids=number % 4 != 3)
            if number == BATCHES // 2:
                await stage.lease(50)
                await stage.cancel(7)
        await stage.applied()
        opened = await stage.opened()
        with files_of(opened) as files:
            found, framed = await stage.rows(opened, files)
        assert framed
        for shares in (PARTS, 0):
            expected, none = await stage.rows(opened, None, shares=shares)
            assert none == 0
            assert found == expected
        assert len({row["id"] for row in found}) == len(found) == opened.messages
    finally:
        await stage.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_snapshot_keeps_its_rows_while_they_are_removed_created_and_merged(
    tmp_path: Path, kind: TopicKind
) -> None:
    stage = Stage(tmp_path / "store", kind)
    await stage.begin()
    try:
        for number in range(BATCHES):
            await stage.create(number)
        await stage.applied()
        opened = await stage.opened()
        expected, _ = await stage.rows(opened, None, shares=0)
        with files_of(opened) as files:
            scan = asyncio.create_task(stage.rows(opened, files))
            await stage.cancel(2)
            for number in range(BATCHES, 2 * BATCHES):
                await stage.create(number)
            await stage.storage.merger.settle()
            found, framed = await scan
            assert framed
            assert found == expected
            later, _ = await stage.rows(opened, files)
        assert later == expected
        # And another snapshot sees what the merges wrote.
        opened = await stage.opened()
        with files_of(opened) as files:
            merged, _ = await stage.rows(opened, files)
        assert merged == (await stage.rows(opened, None, shares=0))[0]
        assert len(merged) == opened.messages != len(expected)
    finally:
        await stage.close()


async def test_a_step_looks_at_few_runs_however_many_belong_to_other_tasks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(BATCHES):
        # Of those that are scattered, each is one run over all buckets.
        if number % 3:
            await stage.create(number)
    await stage.applied()
    monkeypatch.setattr(reading, "_PORTION_RUNS", 3)
    steps: list[int] = []
    items = View.items

    def counted(view: View, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        steps.append(0)
        for item in items(view, start, end):
            steps[-1] += 1
            yield item

    monkeypatch.setattr(View, "items", counted)
    opened = await stage.opened()
    for framed in (True, False):
        portions = [one async for one in stage.scan(opened, frames=framed, share=999, shares=1_000)]
        assert not any(portion.frame_files for portion in portions)
    assert sum(steps) > BATCHES // 2
    assert max(steps) <= 3


async def test_only_a_caller_on_this_machine_gets_the_directory(stage: Stage) -> None:
    await stage.create(0)
    assert (await stage.opened()).frame_directory
    for other in ("", "another"):
        opened = await stage.opened(machine=other)
        assert not opened.frame_directory
        assert not opened.frame_directory_identity
        assert FrameFiles.of(opened) is None
    # Two callers who share a view: each gets the directory only if it may read it.
    run = (await stage.opened()).run
    assert not (await stage.opened(name="one", run=run, machine="")).frame_directory
    assert (await stage.opened(name="one", run=run)).frame_directory


@pytest.mark.parametrize(
    "fields",
    [
        {"frames": False},
        {"shares": 0},
        {"without_bodies": True},
        {"filter": carrier.Filter(start=NOW, end=2**62)},
        {"filter": carrier.Filter(end=NOW)},
        {"filter": carrier.Filter(end=2**62, owner="group 0")},
        {"filter": carrier.Filter(end=2**62, status="waiting")},
        {"filter": carrier.Filter(end=2**62, priority_max=1)},
    ],
)
async def test_a_scan_that_wants_less_than_whole_messages_has_no_frames(stage: Stage, fields: dict[str, Any]) -> None:
    await stage.create(0)
    await stage.applied()
    opened = await stage.opened()
    assert any([portion.frame_files async for portion in stage.scan(opened, frames=True)])
    portions = [portion async for portion in stage.scan(opened, **({"frames": True} | fields))]
    assert not any(portion.frame_files for portion in portions)
    # A caller who may not read bodies asks for none; see `rights.masking`.
    assert not fields.get("without_bodies") or not any(b"body" in run for one in portions for run in one.runs)


async def test_bodies_that_are_stored_apart_come_from_the_broker(stage: Stage) -> None:
    await stage.create(0)
    await stage.create(1, body=b"l" * (INLINE_BODY_BYTES_MAX + 1))
    await stage.applied()
    opened = await stage.opened()
    assert not opened.frame_directory
    assert not any([portion.frame_files async for portion in stage.scan(opened, frames=True)])


async def test_an_encrypted_topic_has_no_frames(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store")
    await stage.begin()
    try:
        await stage.create(0)
        sealed = Topic("t", 1, TopicSettings(buckets=BUCKETS, encryption=Encryption.BODIES))
        await stage.storage.put_topic(sealed, DIRECT_CALL)
        await stage.applied()
        opened = await stage.opened()
        assert not opened.frame_directory
        assert not any([portion.frame_files async for portion in stage.scan(opened, frames=True)])
    finally:
        await stage.close()


async def test_a_damaged_or_removed_file_is_an_error(stage: Stage) -> None:
    await stage.create(0)
    await stage.applied()
    opened = await stage.opened()
    directory = Path(opened.frame_directory)
    portion = await anext(aiter(stage.scan(opened, frames=True)))
    (name,) = {f"{file:010d}.log" for file in portion.frame_files}
    whole = (directory / name).read_bytes()
    damaged = bytearray(whole)
    damaged[portion.frame_offsets[0] + 20] ^= 1
    (directory / name).write_bytes(damaged)
    with files_of(opened) as files, pytest.raises(StoreError, match=r"\.log of the commit log is damaged"):
        files.runs(portion)
    (directory / name).rename(directory / "aside")
    with files_of(opened) as files, pytest.raises(Unavailable, match="can no longer be read"):
        files.runs(portion)
    (directory / "aside").write_bytes(whole)
    (directory / "aside").rename(directory / name)


async def test_a_directory_that_is_another_or_cannot_be_read_is_not_used(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.create(0)
    opened = await stage.opened()
    assert directory_identity(Path(opened.frame_directory)) == opened.frame_directory_identity
    other = carrier.SnapshotResponse(
        frame_directory=str(tmp_path), frame_directory_identity=opened.frame_directory_identity
    )
    assert FrameFiles.of(other) is None
    other.frame_directory = str(tmp_path / "none")
    assert FrameFiles.of(other) is None
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert FrameFiles.of(opened) is None
