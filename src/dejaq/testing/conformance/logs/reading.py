"""Reads: ranges, limits, times, and what committed readers see."""

from __future__ import annotations

from dejaq.errors import Code
from dejaq.storage.log.base import MINUTE_MS
from dejaq.testing.conformance.logs.scene import ALL, LogScene, check_dense
from dejaq.testing.conformance.scene import Scene, refusal_of


async def a_range_is_read(scene: Scene) -> None:
    """A read begins with the batch that has the offset, and stops before the end."""
    log = await LogScene.begin(scene)
    for text in (b"abc", b"def", b"ghi"):
        await log.add(text)
    assert [batch.records for batch in await log.batches(start=4)] == [b"def", b"ghi"]
    assert [batch.records for batch in await log.batches(start=1, end=4)] == [b"abc", b"def"]
    assert [batch.records for batch in await log.batches(start=1, end=3)] == [b"abc"]
    assert await log.batches(start=9) == []


async def a_read_has_a_limit(scene: Scene) -> None:
    """A read has about as many bytes as were asked for, at least one batch, and says where to read on."""
    log = await LogScene.begin(scene)
    for _ in range(10):
        await log.add(b"x" * 100)
    part = await log.logs.read(log.topic, 0, 0, end=None, bytes_max=250, committed=True, now=scene.now)
    assert ([batch.base for batch in part.batches], part.next) == ([0, 100], 200)
    part = await log.logs.read(log.topic, 0, 150, end=None, bytes_max=1, committed=True, now=scene.now)
    assert ([batch.base for batch in part.batches], part.next) == ([100], 200)
    check_dense(await log.batches(bytes_max=1))
    assert len(await log.batches(bytes_max=1)) == 10


async def an_offset_must_exist(scene: Scene) -> None:
    """A read behind the end is refused; at the end it finds nothing."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")

    def read(start: int) -> object:
        return log.logs.read(log.topic, 0, start, end=None, bytes_max=ALL, committed=True, now=scene.now)

    assert await refusal_of(read(4)) is Code.OFFSET_OUT_OF_RANGE  # type: ignore[arg-type]
    assert await refusal_of(read(-1)) is Code.OFFSET_OUT_OF_RANGE  # type: ignore[arg-type]
    assert await refusal_of(read(3)) is Code.OK  # type: ignore[arg-type]


async def times_have_offsets(scene: Scene) -> None:
    """The offset of a time is that of the first message of this time or later."""
    log = await LogScene.begin(scene)
    begin = scene.now
    for _ in range(30):
        await log.add(b"xy")
        scene.advance(1_000)
    for late in range(-1, 31):
        expected = min(max(late, 0), 30) * 2
        assert await log.logs.offset_for_time(log.topic, 0, begin + late * 1_000) == expected
        assert await log.logs.offset_for_time(log.topic, 0, begin + late * 1_000 - 999) == expected
    assert await log.logs.offset_for_time(log.topic, 1, begin) == 0


async def minutes_are_counted(scene: Scene) -> None:
    """Messages and bytes are counted for each minute, exactly."""
    log = await LogScene.begin(scene)
    scene.advance(-scene.now % MINUTE_MS)
    begin = scene.now
    for text in (b"a", b"bcd", b"ef", b"g"):
        await log.add(text)
        scene.advance(MINUTE_MS // 2)
    found = await log.logs.minutes(log.topic, 0, begin, begin + 2 * MINUTE_MS)
    first = begin // MINUTE_MS
    assert [(one.minute, one.first, one.count, one.bytes) for one in found] == [(first, 0, 4, 4), (first + 1, 4, 3, 3)]
    assert await log.logs.minutes(log.topic, 0, begin + MINUTE_MS, begin + 2 * MINUTE_MS) == found[1:]
    assert await log.logs.minutes(log.topic, 0, 0, begin) == []


async def a_window_holds_committed_readers(scene: Scene) -> None:
    """A committed reader stops before a batch that can still be rolled back; an uncommitted reader gets it."""
    log = await LogScene.begin(scene)
    await log.add(b"ab")
    await log.add(b"cd", rollback_ms=1_000)
    await log.add(b"ef")
    assert await log.text() == b"ab"
    assert await log.text(committed=False) == b"abcdef"
    assert (await log.offsets()).stable == 2
    scene.advance(999)
    assert await log.text() == b"ab"
    scene.advance(1)
    assert await log.text() == b"abcdef"
    assert (await log.offsets()).stable == 6


async def a_rollback_takes_a_batch_out(scene: Scene) -> None:
    """A committed reader never gets a batch that was rolled back, its offsets stay used, and a repeat is no error."""
    log = await LogScene.begin(scene)
    await log.add(b"ab")
    await log.add(b"cd", rollback_ms=1_000, name=7)
    await log.add(b"ef")
    assert await log.rollback(7) is Code.OK
    assert await log.text() == b"abef"
    assert [batch.base for batch in await log.batches()] == [0, 4]
    assert [batch.aborted for batch in await log.batches(committed=False)] == [False, True, False]
    scene.advance(5_000)
    assert await log.text() == b"abef"
    assert await log.rollback(7) is Code.OK
    assert (await log.add(b"gh")).base == 6
    part = await log.logs.read(log.topic, 0, 2, end=4, bytes_max=ALL, committed=True, now=scene.now)
    assert (part.batches, part.next) == ((), 4)


async def a_clock_that_is_set_back_prolongs_no_window(scene: Scene) -> None:
    """When the clock was an hour ahead for a while, windows of before and after that last at most their length."""
    log = await LogScene.begin(scene)
    await log.add(b"ab")
    scene.advance(3_600_000)
    await log.add(b"cd", rollback_ms=1_000, name=1)
    await log.add(b"ef", rollback_ms=1_000, name=2)
    scene.advance(-3_600_000)
    assert await log.text() == b"ab"
    await log.add(b"gh", rollback_ms=1_000, name=3)
    assert await log.rollback(2) is Code.OK
    scene.advance(1_000)
    assert await log.text() == b"abcdgh"
    assert await log.rollback(3) is Code.TOO_LATE


async def a_rollback_after_its_window_is_too_late(scene: Scene) -> None:
    """After the window the answer is TOO_LATE and the batch stays; an unknown name is NOT_FOUND."""
    log = await LogScene.begin(scene)
    await log.add(b"ab", rollback_ms=1_000, name=7)
    await log.add(b"cd", name=8)
    scene.advance(1_000)
    assert await log.rollback(7) is Code.TOO_LATE
    assert await log.rollback(8) is Code.TOO_LATE
    assert await log.rollback(9) is Code.NOT_FOUND
    assert await log.text() == b"abcd"


async def what_was_stable_stays(scene: Scene) -> None:
    """A batch that committed readers may have had is not rolled back when the clock moves back."""
    log = await LogScene.begin(scene)
    await log.add(b"ab", rollback_ms=1_000, name=7)
    scene.advance(1_000)
    assert await log.text() == b"ab"
    scene.advance(-500)
    assert await log.text() == b"ab"
    assert await log.rollback(7) is Code.TOO_LATE
