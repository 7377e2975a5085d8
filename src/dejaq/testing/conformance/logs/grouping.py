"""Groups: commits, claims, and resets."""

from __future__ import annotations

import asyncio

from dejaq import limits
from dejaq.errors import Code
from dejaq.storage.log.base import OffsetCommit
from dejaq.testing.conformance.logs.scene import LogScene
from dejaq.testing.conformance.scene import Scene, refusal_of


async def _commit(log: LogScene, group: str, *commits: OffsetCommit) -> list[Code]:
    return await log.logs.commit(log.topic, group, commits, log.scene.now, log.scene.context)


async def _claim(log: LogScene, group: str, *buckets: int) -> tuple[int, dict[int, int]]:
    number, offsets = await log.logs.claim(log.topic, group, buckets, log.scene.now, log.scene.context)
    return number, dict(offsets)


async def commits_are_kept(scene: Scene) -> None:
    """A group has the last offset that was committed for each bucket, and when; other groups are not changed."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    assert await _commit(log, "billing", OffsetCommit(0, 2)) == [Code.OK]
    scene.advance(10)
    assert await _commit(log, "audit", OffsetCommit(0, 3), OffsetCommit(1, 0)) == [Code.OK, Code.OK]
    groups = await log.logs.groups(log.topic)
    assert {name: {b: (o.offset, o.at) for b, o in offsets.items()} for name, offsets in groups.items()} == {
        "billing": {0: (2, scene.now - 10)},
        "audit": {0: (3, scene.now), 1: (0, scene.now)},
    }
    assert await _commit(log, "audit", OffsetCommit(0, 1)) == [Code.OK]
    assert (await log.logs.groups(log.topic))["audit"][0].offset == 1


async def an_old_claim_commits_nothing(scene: Scene) -> None:
    """A commit under an older claim, or without one where there is one, is CLAIM_LOST; other buckets are committed."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    await log.add(b"abc", bucket=1)
    first, offsets = await _claim(log, "billing", 0, 1)
    assert offsets == {}
    assert await _commit(log, "billing", OffsetCommit(0, 1, first)) == [Code.OK]
    second, offsets = await _claim(log, "billing", 0)
    assert (second > first, offsets) == (True, {0: 1})
    assert await _commit(log, "billing", OffsetCommit(0, 2, first), OffsetCommit(1, 3, first)) == [
        Code.CLAIM_LOST,
        Code.OK,
    ]
    assert await _commit(log, "billing", OffsetCommit(0, 2)) == [Code.CLAIM_LOST]
    assert await _commit(log, "billing", OffsetCommit(0, 2, second)) == [Code.OK]
    assert await _commit(log, "billing", OffsetCommit(2, 0, second)) == [Code.CLAIM_LOST]
    groups = await log.logs.groups(log.topic)
    assert {bucket: offset.offset for bucket, offset in groups["billing"].items()} == {0: 2, 1: 3}


async def a_commit_behind_the_end_is_refused(scene: Scene) -> None:
    """An offset that does not exist yet cannot be committed."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    codes = await _commit(log, "billing", OffsetCommit(0, 4), OffsetCommit(0, -1), OffsetCommit(0, 3))
    assert codes == [Code.OFFSET_OUT_OF_RANGE, Code.OFFSET_OUT_OF_RANGE, Code.OK]


async def a_reset_ends_claims(scene: Scene) -> None:
    """A reset sets the offsets of a group, and what its members commit after it is CLAIM_LOST."""
    log = await LogScene.begin(scene)
    await log.add(b"abcdef")
    claim, _ = await _claim(log, "billing", 0)
    await _commit(log, "billing", OffsetCommit(0, 4, claim))
    await log.logs.reset(log.topic, "billing", {0: 1}, scene.now, scene.context)
    assert await _commit(log, "billing", OffsetCommit(0, 5, claim)) == [Code.CLAIM_LOST]
    assert await _claim(log, "billing", 0) == ((await log.logs.groups(log.topic))["billing"][0].claim, {0: 1})
    reset = log.logs.reset(log.topic, "billing", {0: 7}, scene.now, scene.context)
    assert await refusal_of(reset) is Code.OFFSET_OUT_OF_RANGE


async def a_group_is_forgotten(scene: Scene) -> None:
    """A removed group is not there any more, and its name can be used again."""
    log = await LogScene.begin(scene)
    await log.add(b"abc")
    await _commit(log, "billing", OffsetCommit(0, 2))
    assert await log.logs.remove_group(log.topic, "billing", scene.context)
    assert not await log.logs.remove_group(log.topic, "billing", scene.context)
    assert await log.logs.groups(log.topic) == {}
    assert (await _claim(log, "billing", 0))[1] == {}


async def groups_have_a_limit(scene: Scene) -> None:
    """A topic has at most LOG_GROUPS_MAX groups."""
    log = await LogScene.begin(scene)
    names = [f"group-{number}" for number in range(limits.LOG_GROUPS_MAX)]
    await asyncio.gather(*(_commit(log, name, OffsetCommit(0, 0)) for name in names))
    one_more = log.logs.commit(log.topic, "more", [OffsetCommit(0, 0)], scene.now, scene.context)
    assert await refusal_of(one_more) is Code.LIMIT_EXCEEDED
    assert await _commit(log, "group-0", OffsetCommit(0, 0)) == [Code.OK]
