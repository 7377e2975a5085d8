"""What a restart keeps of a log."""

from __future__ import annotations

from dejaq.errors import Code
from dejaq.storage.log.base import MINUTE_MS, Append, LogRetention, OffsetCommit
from dejaq.storage.transactions import LogAppendStep, LogCommitStep, Transaction
from dejaq.testing.conformance.logs.scene import LogScene, check_dense, code_of
from dejaq.testing.conformance.scene import STEPS, Scene, refusal_of


async def batches_survive(scene: Scene) -> None:
    """Batches, their offsets and timestamps are the same after a restart, and the next offset follows them."""
    log = await LogScene.begin(scene)
    for n in range(30):
        await log.add(bytes([n]) * (1 + n % 3), bucket=n % 2)
        scene.advance(7)
    before = [await log.batches(bucket) for bucket in (0, 1)]
    await scene.restart()
    assert [await log.batches(bucket) for bucket in (0, 1)] == before
    end = (await log.offsets()).next
    assert end == sum(batch.count for batch in before[0])
    assert (await log.add(b"z")).base == end
    check_dense(await log.batches())


async def names_survive(scene: Scene) -> None:
    """A repeat after a restart appends nothing."""
    log = await LogScene.begin(scene)
    first = await log.add(b"abc", name=5)
    await scene.restart()
    again = await log.add(b"abc", name=5)
    assert (again.base, again.ts, again.repeated) == (first.base, first.ts, True)
    assert await log.text() == b"abc"


async def windows_survive(scene: Scene) -> None:
    """A batch can be rolled back after a restart, in its window; a rollback stays."""
    log = await LogScene.begin(scene)
    await log.add(b"ab")
    await log.add(b"cd", rollback_ms=60_000, name=1)
    await log.add(b"ef", rollback_ms=60_000, name=2)
    await log.add(b"gh", rollback_ms=60_000, name=3)
    assert await log.rollback(1) is Code.OK
    await scene.restart()
    assert await log.text() == b"ab"
    assert await log.rollback(2) is Code.OK
    scene.advance(60_000)
    assert await log.rollback(3) is Code.TOO_LATE
    await scene.restart()
    assert await log.text() == b"abgh"


async def groups_survive(scene: Scene) -> None:
    """Offsets and claims of groups survive; a new claim is greater."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    claim, _ = await log.logs.claim(log.topic, "billing", [0, 1], scene.now, scene.context)
    await log.logs.commit(log.topic, "billing", [OffsetCommit(0, 2, claim)], scene.now, scene.context)
    before = await log.logs.groups(log.topic)
    await scene.restart()
    assert await log.logs.groups(log.topic) == before
    codes = await log.logs.commit(log.topic, "billing", [OffsetCommit(0, 3, claim)], scene.now, scene.context)
    assert codes == [Code.OK]
    later, offsets = await log.logs.claim(log.topic, "billing", [0], scene.now, scene.context)
    assert (later > claim, dict(offsets)) == (True, {0: 3})


async def retention_survives(scene: Scene) -> None:
    """What was removed stays removed, and the counts of minutes stay exact."""
    log = await LogScene.begin(scene)
    for _ in range(10):
        await log.add(b"xy")
    await log.logs.retain(log.topic, LogRetention(keep_bytes=10), scene.now, scene.context)
    await scene.restart()
    offsets = await log.offsets()
    assert (offsets.start, offsets.next, offsets.bytes) == (10, 20, 10)
    (minute,) = await log.logs.minutes(log.topic, 0, scene.now, scene.now + MINUTE_MS)
    assert (minute.count, minute.bytes) == (10, 10)
    await log.add(b"z")
    (minute,) = await log.logs.minutes(log.topic, 0, scene.now, scene.now + MINUTE_MS)
    assert (minute.count, minute.bytes) == (11, 11)


async def transactions_survive(scene: Scene) -> None:
    """What a transaction has appended and committed survives, and a repeat of it after a restart does nothing."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    steps = (
        LogAppendStep(log.topic, Append(0, b"de", 2)),
        LogCommitStep(log.topic, "billing", [OffsetCommit(0, 3)]),
    )
    transaction = Transaction(STEPS, 0, (), log_steps=steps)
    for code in (Code.OK, Code.ALREADY_EXISTS):
        assert (await scene.storage.transact(transaction, scene.now, scene.context)).code is code
        await scene.restart()
        assert await log.text() == b"abcde"
        assert (await log.logs.groups(log.topic))["billing"][0].offset == 3


async def prepared_transactions_survive(scene: Scene) -> None:
    """A transaction in doubt is in doubt after a restart, and its outcome survives the next one."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    steps = (
        LogAppendStep(log.topic, Append(0, b"de", 2)),
        LogCommitStep(log.topic, "billing", [OffsetCommit(0, 3)]),
    )
    for name in ("t", "u"):
        part = steps if name == "t" else steps[:1]
        await log.logs.prepare(log.topic, name, part, scene.now + 1_000, scene.now, scene.context)
    await scene.restart()
    assert await log.text() == b"abc"
    assert [one.name for one in await log.logs.in_doubt(log.topic)] == ["t", "u"]
    claim = log.logs.claim(log.topic, "billing", [0], scene.now, scene.context)
    assert await code_of(claim) is Code.UNAVAILABLE
    await log.logs.resolve(log.topic, "t", commit=True, now=scene.now, context=scene.context)
    await log.logs.resolve(log.topic, "u", commit=False, now=scene.now, context=scene.context)
    await scene.restart()
    assert await log.text() == b"abcde"
    assert (await log.logs.groups(log.topic))["billing"][0].offset == 3
    assert await log.logs.in_doubt(log.topic) == []


async def a_dropped_topic_has_no_log(scene: Scene) -> None:
    """A log is removed with its topic, and a topic of the same name begins at 0."""
    log = await LogScene.begin(scene)
    await log.add(b"abc", name=1)
    await log.logs.commit(log.topic, "billing", [OffsetCommit(0, 2)], scene.now, scene.context)
    await scene.storage.drop_topic(log.topic, scene.now, scene.context)
    assert await refusal_of(log.logs.offsets(log.topic, scene.now)) is Code.TOPIC_NOT_FOUND
    await scene.restart()
    other = await LogScene.begin(scene)
    assert await log.logs.groups(other.topic) == {}
    assert (await other.add(b"xyz", name=1)).base == 0
