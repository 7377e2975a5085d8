"""Prepared transactions: their batches wait for the outcome, and the outcome is decided once."""

from __future__ import annotations

from dejaq.domain.topic import TopicKind, TopicStage
from dejaq.errors import Code
from dejaq.storage.log.base import Append, LogRetention, OffsetCommit
from dejaq.storage.log.prepared import PreparedState
from dejaq.storage.transactions import LogAppendStep, LogCommitStep, LogStep, Verdict
from dejaq.testing.conformance.logs.scene import LogScene, code_of
from dejaq.testing.conformance.scene import Scene

LASTS_MS = 60_000


def _append(log: LogScene, text: bytes, bucket: int = 0) -> LogAppendStep:
    return LogAppendStep(log.topic, Append(bucket, text, len(text)))


async def _prepare(log: LogScene, name: str, *steps: LogStep) -> Verdict:
    now = log.scene.now
    return await log.logs.prepare(log.topic, name, steps, now + LASTS_MS, now, log.scene.context)


async def _resolve(log: LogScene, name: str, *, commit: bool) -> Code:
    now, context = log.scene.now, log.scene.context
    return await code_of(log.logs.resolve(log.topic, name, commit=commit, now=now, context=context))


async def _names(log: LogScene) -> list[str]:
    return [one.name for one in await log.logs.in_doubt(log.topic)]


async def a_prepared_batch_waits_for_its_commit(scene: Scene) -> None:
    """Committed readers stop before a prepared batch, uncommitted readers get it, and after the commit all get it."""
    log = await LogScene.begin(scene)
    await log.add(b"ab")
    assert await _prepare(log, "t", _append(log, b"cd"), _append(log, b"x", 1)) == Verdict()
    await log.add(b"ef")
    assert (await log.text(), await log.text(1)) == (b"ab", b"")
    assert await log.text(committed=False) == b"abcdef"
    scene.advance(10_000)
    assert (await log.offsets()).stable == 2
    (found,) = await log.logs.in_doubt(log.topic)
    assert (found.name, found.count, found.prepared_ms) == ("t", 3, scene.now - 10_000)
    assert await _resolve(log, "t", commit=True) is Code.OK
    assert (await log.text(), await log.text(1)) == (b"abcdef", b"x")
    assert (await _names(log), await _resolve(log, "t", commit=True)) == ([], Code.OK)


async def an_aborted_batch_is_never_read(scene: Scene) -> None:
    """After an abort, committed readers skip the batch; its offsets stay used, and a commit is TOO_LATE."""
    log = await LogScene.begin(scene)
    await _prepare(log, "t", _append(log, b"ab"))
    await log.add(b"cd")
    assert await _resolve(log, "t", commit=False) is Code.OK
    assert await log.text() == b"cd"
    assert [batch.aborted for batch in await log.batches(committed=False)] == [True, False]
    assert await _resolve(log, "t", commit=True) is Code.TOO_LATE
    assert await _resolve(log, "t", commit=False) is Code.OK
    assert await _resolve(log, "other", commit=True) is Code.NOT_FOUND
    assert (await log.add(b"e")).base == 4


async def a_repeat_prepares_nothing(scene: Scene) -> None:
    """The same steps under the same name are a repeat; other steps under it are refused."""
    log = await LogScene.begin(scene)
    await _prepare(log, "t", _append(log, b"ab"))
    assert await _prepare(log, "t", _append(log, b"ab")) == Verdict(Code.ALREADY_EXISTS)
    assert await code_of(_prepare(log, "t", _append(log, b"xy"))) is Code.BATCH_NAME_TAKEN
    assert (await log.offsets()).next == 2
    await _resolve(log, "t", commit=True)
    assert await code_of(_prepare(log, "t", _append(log, b"ab"))) is Code.BATCH_NAME_TAKEN


async def a_transaction_ends_at_its_deadline(scene: Scene) -> None:
    """A commit after the deadline is TOO_LATE and aborts the transaction."""
    log = await LogScene.begin(scene)
    await _prepare(log, "t", _append(log, b"ab"))
    await log.add(b"cd")
    scene.advance(LASTS_MS)
    assert await log.text() == b""
    scene.advance(1)
    assert await _resolve(log, "t", commit=True) is Code.TOO_LATE
    assert (await log.text(), await _names(log)) == (b"cd", [])


async def prepared_offsets_are_held(scene: Scene) -> None:
    """Until it is resolved, nobody else claims or commits the buckets whose offsets a transaction commits."""
    log = await LogScene.begin(scene)
    await log.add(b"abcd")
    context, logs = scene.context, log.logs
    claim, _ = await logs.claim(log.topic, "billing", [0, 1], scene.now, context)
    commit = LogCommitStep(log.topic, "billing", [OffsetCommit(0, 4, claim)])
    assert await _prepare(log, "t", commit) == Verdict()
    assert await code_of(logs.claim(log.topic, "billing", [0], scene.now, context)) is Code.UNAVAILABLE
    offsets = [OffsetCommit(0, 1, claim)]
    assert await code_of(logs.commit(log.topic, "billing", offsets, scene.now, context)) is Code.UNAVAILABLE
    assert await code_of(logs.reset(log.topic, "billing", {0: 0}, scene.now, context)) is Code.UNAVAILABLE
    assert await code_of(logs.claim(log.topic, "billing", [1], scene.now, context)) is Code.OK
    assert await code_of(logs.claim(log.topic, "audit", [0], scene.now, context)) is Code.OK
    assert await _resolve(log, "t", commit=True) is Code.OK
    assert (await logs.claim(log.topic, "billing", [0], scene.now, context))[1] == {0: 4}


async def an_aborted_offset_is_not_committed(scene: Scene) -> None:
    """After an abort the group is where it was, and its buckets are free; an old claim cannot be prepared."""
    log = await LogScene.begin(scene)
    await log.add(b"abcd")
    context, logs = scene.context, log.logs
    await _prepare(log, "t", LogCommitStep(log.topic, "billing", [OffsetCommit(0, 4)]), _append(log, b"x", 1))
    await _resolve(log, "t", commit=False)
    assert await log.text(1) == b""
    claim, offsets = await logs.claim(log.topic, "billing", [0], scene.now, context)
    assert offsets == {}
    old = LogCommitStep(log.topic, "billing", [OffsetCommit(0, 4, claim - 1)])
    assert await _prepare(log, "u", _append(log, b"y", 1), old) == Verdict(Code.CLAIM_LOST, 1, 0)
    assert (await log.text(1, committed=False), await _names(log)) == (b"x", [])


async def a_group_of_a_transaction_in_doubt_is_not_removed(scene: Scene) -> None:
    """A group whose offsets a transaction commits can be removed when the transaction is resolved, and not before."""
    log = await LogScene.begin(scene)
    await log.add(b"abcd")
    context, logs = scene.context, log.logs
    for group, claim in (("new", 0), ("old", (await logs.claim(log.topic, "old", [0, 1], scene.now, context))[0])):
        await _prepare(log, group, LogCommitStep(log.topic, group, [OffsetCommit(0, 4, claim)]))
        assert await code_of(logs.remove_group(log.topic, group, context)) is Code.UNAVAILABLE
        assert await _resolve(log, group, commit=True) is Code.OK
        assert (await logs.groups(log.topic))[group][0].offset == 4
        assert await logs.remove_group(log.topic, group, context)
    assert await logs.groups(log.topic) == {}


async def a_deleted_log_holds_nothing_of_other_logs(scene: Scene) -> None:
    """What is in doubt in a log that is deleted is aborted: readers and groups of other logs continue."""
    log = await LogScene.begin(scene)
    other = await scene.new_topic("other", kind=TopicKind.LOG)
    context, logs = scene.context, log.logs
    steps: list[LogStep] = [
        _append(log, b"ab"),
        LogCommitStep(log.topic, "billing", [OffsetCommit(1, 0)]),
        LogAppendStep(other, Append(0, b"x", 1)),
    ]
    verdict = await logs.prepare(other, "t", steps, scene.now + LASTS_MS, scene.now, context)
    assert verdict == Verdict()
    await log.add(b"cd")
    assert await log.text() == b""
    assert await code_of(logs.claim(log.topic, "billing", [1], scene.now, context)) is Code.UNAVAILABLE
    deleting = other.in_state(TopicStage.DELETING)
    await scene.storage.put_topic(deleting, context)
    await scene.storage.drop_topic(deleting, scene.now, context)
    assert await log.text() == b"cd"
    assert await code_of(logs.claim(log.topic, "billing", [1], scene.now, context)) is Code.OK


async def retention_keeps_what_is_in_doubt(scene: Scene) -> None:
    """A batch of a transaction in doubt is not removed, however old it is."""
    log = await LogScene.begin(scene)
    await _prepare(log, "t", _append(log, b"ab"))
    scene.advance(50_000)
    assert await log.logs.retain(log.topic, LogRetention(keep_ms=1), scene.now, scene.context) == 0
    assert await _resolve(log, "t", commit=True) is Code.OK
    assert await log.logs.retain(log.topic, LogRetention(keep_ms=1), scene.now, scene.context) == 2


async def transactions_in_doubt_are_listed(scene: Scene) -> None:
    """The list has every transaction that is not resolved, by name, with its state."""
    log = await LogScene.begin(scene)
    for name in ("c", "a", "b"):
        await _prepare(log, name, _append(log, name.encode()))
    await _resolve(log, "a", commit=True)
    found = await log.logs.in_doubt(log.topic)
    assert [(one.name, one.state) for one in found] == [("b", PreparedState.IN_DOUBT), ("c", PreparedState.IN_DOUBT)]
