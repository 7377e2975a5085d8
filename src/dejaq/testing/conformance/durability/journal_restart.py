"""The journal through close and open: no record is lost, repeated or numbered twice (guarantees 1 and 9)."""

from __future__ import annotations

from dejaq.errors import Code
from dejaq.testing.conformance.scene import Scene
from dejaq.testing.model.replay import events_of, read_journal


async def records_survive(scene: Scene) -> None:
    """The records are the same after a restart, and the next one has the next number."""
    await scene.put_many(3)
    lease = await scene.lease()
    assert await scene.delete(lease) == [Code.OK] * 3
    before = await read_journal(scene.storage)
    await scene.restart()
    assert await read_journal(scene.storage) == before
    await scene.put("next")
    assert [record.sequence for record in await read_journal(scene.storage)] == list(range(1, len(before) + 2))


async def numbers_survive_trimming(scene: Scene) -> None:
    """A store whose records were all trimmed continues with the next number after a restart."""
    await scene.put("a")
    await scene.put("b")
    await scene.storage.trim_journal(2)
    await scene.restart()
    assert await read_journal(scene.storage) == []
    await scene.put("c")
    assert [record.sequence for record in await read_journal(scene.storage)] == [3]
    await scene.restart()
    assert [record.sequence for record in await read_journal(scene.storage)] == [3]


async def the_end_of_a_lease_is_told_once_over_restarts(scene: Scene) -> None:
    """An expired lease is recorded once, whether it expired before the restart or while the store was closed."""
    await scene.put_many(2)
    await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    await scene.restart()
    assert await scene.lease("worker-2", rows_max=1)
    await scene.restart()
    await scene.lease("worker-3", rows_max=1)
    events = [event for record in await read_journal(scene.storage) for event in events_of(record)]
    assert sorted(event.id for event in events if event.kind == "expired") == ["m-00000", "m-00001"]
