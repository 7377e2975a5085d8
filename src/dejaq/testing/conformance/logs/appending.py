"""Appends: dense offsets, names, limits of time, and timestamps."""

from __future__ import annotations

import asyncio

from dejaq.errors import Code, Refused
from dejaq.storage.log.base import NAMES_PER_SESSION, Append, Appended, LogName
from dejaq.testing.conformance.logs.scene import SESSION, LogScene, check_dense
from dejaq.testing.conformance.scene import Scene


async def offsets_are_dense(scene: Scene) -> None:
    """The offsets of a bucket begin at 0 and have no hole, whatever other buckets get."""
    log = await LogScene.begin(scene)
    answers = [await log.add(b"x" * (1 + n % 3), bucket=n % 2) for n in range(20)]
    for bucket in (0, 1):
        batches = await log.batches(bucket)
        check_dense(batches)
        assert [batch.base for batch in batches] == [answer.base for answer in answers[bucket::2]]
    assert (await log.offsets(0)).next == sum(1 + n % 3 for n in range(0, 20, 2))


async def one_call_keeps_its_order(scene: Scene) -> None:
    """The batches of one call have offsets in the order of the call."""
    log = await LogScene.begin(scene)
    answers = await log.append(*(Append(0, bytes([n]), 1) for n in range(50)))
    assert [answer.base for answer in answers if isinstance(answer, Appended)] == list(range(50))
    assert await log.text() == bytes(range(50))


async def concurrent_appends_are_dense(scene: Scene) -> None:
    """Appends at the same time get offsets without a hole, and each is where its answer says."""
    log = await LogScene.begin(scene)
    texts = [bytes([n]) * (1 + n % 5) for n in range(64)]
    answers = await asyncio.gather(*(log.add(text) for text in texts))
    batches = await log.batches()
    check_dense(batches)
    assert {batch.base: batch.records for batch in batches} == {
        answer.base: text for answer, text in zip(answers, texts, strict=True)
    }


async def a_repeat_appends_nothing(scene: Scene) -> None:
    """A batch under a name that was used answers with the place of the first, also at the same time and in one call."""
    log = await LogScene.begin(scene)
    first, second = await asyncio.gather(log.add(b"abc", name=0), log.add(b"abc", name=0))
    again = await log.add(b"abc", name=0)
    assert {first.base, second.base, again.base} == {0}
    assert again.repeated
    name = LogName(SESSION, 1)
    answers = await log.append(Append(1, b"de", 2, name), Append(1, b"de", 2, name))
    assert [answer.base for answer in answers if isinstance(answer, Appended)] == [0, 0]
    assert await log.text() == b"abc"
    assert await log.text(1) == b"de"


async def a_name_belongs_to_one_batch(scene: Scene) -> None:
    """Another batch under a name that was used is refused, and so is a name that is too old to be known."""
    log = await LogScene.begin(scene)
    await log.add(b"abc", name=3)
    answers = await log.append(Append(0, b"abcd", 4, LogName(SESSION, 3)), Append(1, b"abc", 3, LogName(SESSION, 3)))
    assert [isinstance(answer, Refused) and answer.code for answer in answers] == [Code.BATCH_NAME_TAKEN] * 2
    await log.add(b"x", name=3 + NAMES_PER_SESSION)
    answers = await log.append(Append(0, b"abc", 3, LogName(SESSION, 3)))
    assert [isinstance(answer, Refused) and answer.code for answer in answers] == [Code.BATCH_NAME_TAKEN]
    assert await log.text() == b"abcx"


async def a_late_batch_expires(scene: Scene) -> None:
    """A batch is appended at its last time, and is EXPIRED after it; the others of the call are appended."""
    log = await LogScene.begin(scene)
    now = scene.now
    answers = await log.append(Append(0, b"a", 1, until=now), Append(0, b"b", 1, until=now - 1), Append(0, b"c", 1))
    assert [answer.code if isinstance(answer, Refused) else answer.base for answer in answers] == [0, Code.EXPIRED, 1]
    assert await log.text() == b"ac"


async def an_expired_repeat_is_known(scene: Scene) -> None:
    """A batch that was appended in time is not EXPIRED when it is sent again."""
    log = await LogScene.begin(scene)
    batch = Append(0, b"a", 1, LogName(SESSION, 0), until=scene.now)
    await log.append(batch)
    scene.advance(1)
    (answer,) = await log.append(batch)
    assert isinstance(answer, Appended)
    assert (answer.base, answer.repeated) == (0, True)


async def timestamps_do_not_decrease(scene: Scene) -> None:
    """A bucket keeps its last timestamp while the broker's clock is behind it."""
    log = await LogScene.begin(scene)
    first = await log.add(b"a")
    scene.advance(-5_000)
    second = await log.add(b"b")
    other = await log.add(b"c", bucket=1)
    assert (first.ts, second.ts, other.ts) == (scene.now + 5_000, scene.now + 5_000, scene.now)
    check_dense(await log.batches())


async def a_bucket_must_exist(scene: Scene) -> None:
    """A batch for a bucket that the topic does not have is refused, and the others are appended."""
    log = await LogScene.begin(scene, buckets=2)
    answers = await log.append(Append(2, b"a", 1), Append(1, b"b", 1), Append(-1, b"c", 1))
    codes = [answer.code if isinstance(answer, Refused) else Code.OK for answer in answers]
    assert codes == [Code.INVALID_ARGUMENT, Code.OK, Code.INVALID_ARGUMENT]
    assert await log.text(1) == b"b"
