"""A snapshot shows a topic as it was at one instant, whatever changes afterwards."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.batch import StoredRuns
from dejaq.domain.ids import ProducerSession, generated_ids
from dejaq.domain.message import Message, Status
from dejaq.errors import Code
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import Filter, Snapshot
from dejaq.testing.conformance.scene import BUCKETS, Scene


async def a_snapshot_is_what_browse_shows(scene: Scene) -> None:
    """Every message, leased, lost or free, with every column that `browse` shows."""
    await _fill(scene)
    expected = await scene.browse()
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    assert snapshot.at == scene.now
    assert snapshot.count == len(expected)
    assert await _rows(scene, snapshot) == sorted(map(_row, expected))


async def later_changes_do_not_show(scene: Scene) -> None:
    """Messages that are created, deleted, released, edited or cancelled later do not change the snapshot."""
    ids = await _fill(scene)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    before = await _rows(scene, snapshot)
    await scene.put("later")
    assert await scene.cancel(ids[-1]) == [Code.OK]
    while (lease := await scene.try_lease(ahead=limits.PREFETCH_MS_MAX)) is not None:
        await scene.delete(lease)
    assert await _rows(scene, snapshot) == before


async def scans_of_parts_make_the_whole(scene: Scene) -> None:
    """Each bucket is in one part of the scan, so parts without a common bucket have no common message."""
    await _fill(scene)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    buckets = range(scene.topic.settings.buckets)
    parts = [await _rows(scene, snapshot, buckets=range(bucket, bucket + 1)) for bucket in buckets]
    assert sorted(row for part in parts for row in part) == await _rows(scene, snapshot)


async def filters_are_those_of_browse(scene: Scene) -> None:
    """Time, status, owner and consumer select as they do for `browse`."""
    await _fill(scene)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    for where in (
        Filter(status=Status.AVAILABLE),
        Filter(status=Status.WAITING),
        Filter(status=Status.PROCESSING),
        Filter(owner="other"),
        Filter(consumer="worker-2"),
        Filter(start=scene.now + 1, end=scene.now + 60_001),
    ):
        page = await scene.storage.browse(scene.topic, where, None, 10_000, scene.now)
        assert await _rows(scene, snapshot, where=where) == sorted(map(_row, page.messages)), where


async def bodies_may_be_left_out(scene: Scene) -> None:
    """Without bodies the column is empty and the other columns are the same."""
    await _fill(scene)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    buckets = range(scene.topic.settings.buckets)
    found = [portion async for portion in snapshot.scan(buckets, Filter(), bodies=False)]
    assert all(portion.bodies is None for portion in found)
    assert sum(map(len, found)) == snapshot.count


async def stored_runs_hold_the_same_rows(scene: Scene) -> None:
    """A scan that may return runs as they are stored returns the same rows as a scan of columns."""
    await _fill(scene)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    for where in (Filter(), Filter(status=Status.WAITING), Filter(owner="other"), Filter(end=scene.now + 60_001)):
        assert await _rows(scene, snapshot, where=where, stored=True) == await _rows(scene, snapshot, where=where)
    buckets = range(scene.topic.settings.buckets)
    async for portion in snapshot.scan_stored(buckets, Filter(), bodies=False):
        if isinstance(portion, StoredRuns):
            assert not any(records.Run.FromString(run).bodies for run in portion.runs)
        else:
            assert portion.bodies is None


async def a_closed_snapshot_gives_nothing(scene: Scene) -> None:
    """After `close` a scan ends with an error or returns nothing."""
    await _fill(scene)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    snapshot.close()
    try:
        free = await _rows(scene, snapshot, where=Filter(status=Status.WAITING))
    except Exception:  # noqa: BLE001  any error will do
        return
    assert free == []


async def _fill(scene: Scene) -> list[str]:
    """Create free, leased, lost, released and edited messages, small and large; returns the ids of free messages."""
    await scene.put_many(5, -10, name="lost")
    await scene.lease("worker-3", lease_ms=1_000)
    scene.advance(2_000)
    await scene.put_many(4, 0, name="held")
    lease = await scene.lease("worker-2", rows_max=6)
    await scene.release(lease, [(0, 1)], delay=90_000)
    await scene.delete(lease, [(1, 2)])
    await scene.generate([0, 10, 30_000, 300_000], bucket=3)
    await scene.put("large", 50_000, body=b"x" * (limits.INLINE_BODY_BYTES_MAX + 1), headers={"a": "b"})
    await scene.put("other", 5_000, owner="other", priority=-4)
    return await scene.put_many(3, 60_000, name="free")


async def _rows(
    scene: Scene, snapshot: Snapshot, *, buckets: range | None = None, where: Filter | None = None, stored: bool = False
) -> list[tuple[object, ...]]:
    chosen = buckets if buckets is not None else range(scene.topic.settings.buckets)
    scan = snapshot.scan_stored if stored else snapshot.scan
    rows: list[tuple[object, ...]] = []
    async for portion in scan(chosen, where or Filter(), bodies=True):
        if isinstance(portion, StoredRuns):
            rows += _stored_rows(portion)
            continue
        count = len(portion)
        shared = [
            (message_id, stretch.bucket, stretch.owner, stretch.consumer, stretch.version)
            for stretch in portion.stretches
            for message_id in stretch.span.expand()
        ]
        columns = (
            portion.ts,
            portion.priorities or [0] * count,
            portion.bodies or [],
            portion.attempts or [0] * count,
            map(bool, portion.headers or [b""] * count),
        )
        rows += [(*one, *rest) for one, *rest in zip(shared, *columns, strict=True)]
    return sorted(rows)


def _stored_rows(portion: StoredRuns) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for packed, bucket, version, mask in zip(
        portion.runs, portion.buckets, portion.versions, portion.rows, strict=True
    ):
        run = records.Run.FromString(packed)
        count = len(run.ts)
        prefix = ProducerSession.unpack(run.session).prefix(bucket) if run.session else ""
        ids = generated_ids(prefix, run.first, count) if prefix else run.ids
        columns = (
            run.ts,
            run.priorities or [0] * count,
            run.bodies,
            run.attempts or [0] * count,
            map(bool, run.headers or [b""] * count),
        )
        for row, (message_id, *rest) in enumerate(zip(ids, *columns, strict=True)):
            if not mask or int.from_bytes(mask, "little") >> row & 1:
                rows.append((message_id, bucket, run.owner, "", version, *rest))
    return rows


def _row(message: Message) -> tuple[object, ...]:
    return (
        message.id,
        message.bucket,
        message.producer_group,
        message.lock_consumer,
        message.version,
        message.ts,
        message.priority,
        message.body,
        message.attempts,
        bool(message.headers),
    )


async def a_scan_takes_narrow_filters(scene: Scene) -> None:
    """A scan returns only messages with the requested priorities and headers, leased or not."""
    await scene.put("held", 0, priority=7, headers={"k": "v"})
    await scene.put("other", 0, priority=8)
    await scene.lease()
    await scene.put("free", 50, priority=7, headers={"k": "v"})
    await scene.generate([1, 2, 3])
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    for where, ids in (
        (Filter(priorities=(7, 7)), {"held", "free"}),
        (Filter(headers=(("k", "v"),)), {"held", "free"}),
        (Filter(headers=(("k", "w"),)), set()),
    ):
        portions = [one async for one in snapshot.scan(range(BUCKETS), where, bodies=False)]
        found = {one for portion in portions for stretch in portion.stretches for one in stretch.span.expand()}
        assert found == ids, where
    snapshot.close()
