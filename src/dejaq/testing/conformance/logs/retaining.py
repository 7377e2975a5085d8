"""Retention: by age, by size, and by what every group has read."""

from __future__ import annotations

from dejaq.errors import Code
from dejaq.storage.log.base import MINUTE_MS, LogRetention, OffsetCommit
from dejaq.testing.conformance.logs.scene import ALL, LogScene, check_dense
from dejaq.testing.conformance.scene import Scene, refusal_of


async def _retain(log: LogScene, **limits: int | bool) -> int:
    removed = 0
    while count := await log.logs.retain(
        log.topic,
        LogRetention(**limits),  # type: ignore[arg-type]
        log.scene.now,
        log.scene.context,
    ):
        removed += count
    return removed


async def old_batches_are_removed(scene: Scene) -> None:
    """Batches older than the limit are removed; the next offset stays, and what was removed cannot be read."""
    log = await LogScene.begin(scene)
    for _ in range(10):
        await log.add(b"xy")
        scene.advance(1_000)
    assert await _retain(log, keep_ms=5_000) == 10
    offsets = await log.offsets()
    assert (offsets.start, offsets.next, offsets.count, offsets.bytes) == (10, 20, 10, 10)
    check_dense(await log.batches(start=10), 10)
    read = log.logs.read(log.topic, 0, 9, end=None, bytes_max=ALL, committed=True, now=scene.now)
    assert await refusal_of(read) is Code.OFFSET_OUT_OF_RANGE
    assert await _retain(log, keep_ms=5_000) == 0
    scene.advance(60_000)
    assert await _retain(log, keep_ms=5_000) == 10
    assert (await log.add(b"z")).base == 20


async def a_log_has_a_size(scene: Scene) -> None:
    """The oldest batches are removed until a bucket has at most so many bytes."""
    log = await LogScene.begin(scene)
    for _ in range(300):
        await log.add(b"x" * 10)
    await log.add(b"y" * 10, bucket=1)
    assert await _retain(log, keep_bytes=105) == 2_900
    assert [(o.start, o.bytes) for o in await log.logs.offsets(log.topic, scene.now)][:2] == [(2_900, 100), (0, 10)]
    check_dense(await log.batches(start=2_900), 2_900)
    (minute,) = await log.logs.minutes(log.topic, 0, scene.now, scene.now + MINUTE_MS)
    assert (minute.first, minute.count, minute.bytes) == (2_900, 100, 100)


async def what_all_groups_have_read_is_removed(scene: Scene) -> None:
    """What every group has read is removed; without groups, or where one has not begun, everything stays."""
    log = await LogScene.begin(scene)
    for text in (b"abc", b"def", b"ghi"):
        await log.add(text)
        await log.add(text, bucket=1)
    assert await _retain(log, trim_read=True) == 0
    context = scene.context
    await log.logs.commit(log.topic, "billing", [OffsetCommit(0, 9), OffsetCommit(1, 9)], scene.now, context)
    await log.logs.commit(log.topic, "audit", [OffsetCommit(0, 5)], scene.now, context)
    assert await _retain(log, trim_read=True) == 3
    assert [o.start for o in await log.logs.offsets(log.topic, scene.now)][:2] == [3, 0]


async def a_window_is_kept(scene: Scene) -> None:
    """A batch that can still be rolled back is not removed."""
    log = await LogScene.begin(scene)
    await log.add(b"ab", rollback_ms=60_000, name=1)
    scene.advance(10_000)
    assert await _retain(log, keep_ms=1_000) == 0
    assert await log.rollback(1) is Code.OK
    assert await _retain(log, keep_ms=1_000) == 2


async def nothing_is_removed_without_a_limit(scene: Scene) -> None:
    """Without a limit everything stays."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    scene.advance(10**12)
    assert await _retain(log) == 0
    assert await log.text() == b"abc"
