"""Steps on logs in transactions: they are done together with steps on timelines, or not at all."""

from __future__ import annotations

from dejaq.domain.changes import Create
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.log.base import Append, OffsetCommit
from dejaq.storage.transactions import LogAppendStep, LogCommitStep, LogStep, Step, Transaction, Verdict
from dejaq.testing.conformance.logs.scene import LogScene, check_dense
from dejaq.testing.conformance.scene import STEPS, Scene, refusal_of


async def _transact(log: LogScene, *log_steps: LogStep, steps: tuple[Step, ...] = (), sequence: int = 0) -> Verdict:
    transaction = Transaction(STEPS, sequence, steps, log_steps=log_steps)
    return await log.scene.storage.transact(transaction, log.scene.now, log.scene.context)


def _append(log: LogScene, text: bytes, bucket: int = 0, until: int | None = None) -> LogAppendStep:
    return LogAppendStep(log.topic, Append(bucket, text, len(text), until=until))


def _create(log: LogScene, topic: Topic, name: str) -> Create:
    return Create(topic, log.scene.batch([name], delays=[0]))


async def _committed(log: LogScene, group: str) -> dict[int, int]:
    groups = await log.logs.groups(log.topic)
    return {bucket: one.offset for bucket, one in groups.get(group, {}).items()}


async def steps_on_logs_and_timelines_are_done_together(scene: Scene) -> None:
    """A message is created, batches are appended and a group commits in one transaction; a repeat does nothing."""
    log, letters = await LogScene.begin(scene), await scene.new_topic("letters", buckets=1)
    await log.add(b"abcd")
    claim, _ = await log.logs.claim(log.topic, "billing", [0], scene.now, scene.context)
    steps = _append(log, b"ef"), _append(log, b"x", 1), _append(log, b"gh")
    commit = LogCommitStep(log.topic, "billing", [OffsetCommit(0, 4, claim)])
    for code in (Code.OK, Code.ALREADY_EXISTS):
        verdict = await _transact(log, *steps, commit, steps=(_create(log, letters, "m"),))
        assert verdict.code is code
        assert await log.text() == b"abcdefgh"
        assert await log.text(1) == b"x"
        assert await _committed(log, "billing") == {0: 4}
        assert [message.id for message in await scene.browse_of(letters)] == ["m"]
    check_dense(await log.batches())
    assert (await log.add(b"ij")).base == 8


async def a_lost_claim_undoes_a_transaction(scene: Scene) -> None:
    """When a claim was lost, nothing is appended or created, and the verdict has the step and the commit."""
    log, letters = await LogScene.begin(scene), await scene.new_topic("letters", buckets=1)
    await log.add(b"abcd")
    old, _ = await log.logs.claim(log.topic, "billing", [0, 1], scene.now, scene.context)
    await log.logs.claim(log.topic, "billing", [0], scene.now, scene.context)
    commit = LogCommitStep(log.topic, "billing", [OffsetCommit(1, 0, old), OffsetCommit(0, 4, old)])
    verdict = await _transact(log, _append(log, b"ef"), commit, steps=(_create(log, letters, "m"),))
    assert verdict == Verdict(Code.CLAIM_LOST, 2, 1)
    assert await log.text() == b"abcd"
    assert await _committed(log, "billing") == {0: -1, 1: -1}
    assert await scene.browse_of(letters) == []
    assert (await log.add(b"ef")).base == 4


async def a_refused_message_undoes_an_append(scene: Scene) -> None:
    """When a message cannot be created, nothing is appended; the transaction can be made again without it."""
    log, letters = await LogScene.begin(scene), await scene.new_topic("letters", buckets=1)
    await scene.put("m", 60_000, topic=letters)
    verdict = await _transact(log, _append(log, b"ab"), steps=(_create(log, letters, "m"),))
    assert verdict == Verdict(Code.ID_TAKEN, 0, 0)
    assert await log.text() == b""
    assert await _transact(log, _append(log, b"ab"), sequence=1) == Verdict()
    assert await log.text() == b"ab"


async def a_late_transaction_expires(scene: Scene) -> None:
    """A batch after its last time undoes the transaction; an offset behind the end too."""
    log = await LogScene.begin(scene)
    verdict = await _transact(log, _append(log, b"ab"), _append(log, b"cd", until=scene.now - 1))
    assert verdict == Verdict(Code.EXPIRED, 1, 0)
    commit = LogCommitStep(log.topic, "billing", [OffsetCommit(0, 3)])
    assert await _transact(log, _append(log, b"ab"), commit) == Verdict(Code.OFFSET_OUT_OF_RANGE, 1, 0)
    assert await refusal_of(_transact(log, _append(log, b"ab", bucket=99))) is Code.INVALID_ARGUMENT
    assert await log.text() == b""
    assert await log.logs.groups(log.topic) == {}


async def transactions_follow_windows(scene: Scene) -> None:
    """A batch of a transaction is behind a batch that can be rolled back, so committed readers wait for that one."""
    log = await LogScene.begin(scene)
    await log.add(b"ab", rollback_ms=1_000, name=1)
    assert await _transact(log, _append(log, b"cd")) == Verdict()
    assert (await log.text(), await log.text(committed=False)) == (b"", b"abcd")
    assert await log.rollback(1) is Code.OK
    assert await log.text() == b"cd"
