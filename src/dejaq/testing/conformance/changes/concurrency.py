"""All methods are safe to call concurrently from one event loop."""

from __future__ import annotations

import asyncio

from dejaq.domain.batch import LeaseSet
from dejaq.domain.changes import Edits
from dejaq.errors import Code
from dejaq.testing.conformance.scene import Scene


async def one_of_many_creates_wins(scene: Scene) -> None:
    """Of concurrent creates of one id with different bodies, exactly one succeeds."""
    batches = [scene.batch(["contested"], delays=[0], bodies=[b"%d" % one]) for one in range(8)]
    answers = await asyncio.gather(*(scene.create(batch) for batch in batches))
    codes = [code for (code,) in answers]
    assert sorted(codes) == [Code.OK] + [Code.ID_TAKEN] * 7
    assert (await scene.get("contested")).body == b"%d" % codes.index(Code.OK)


async def a_batch_sent_many_times_at_once_is_created_once(scene: Scene) -> None:
    """Of concurrent repeats of one batch, each row is created once."""
    for ids in (["a", "b", "c"], None):
        batch = scene.batch(ids, delays=[0, 1, 2])
        answers = await asyncio.gather(*(scene.create(batch) for _ in range(5)))
        for row in range(3):
            assert sorted(codes[row] for codes in answers) == [Code.OK] + [Code.ALREADY_EXISTS] * 4
    assert await scene.count() == 6


async def concurrent_leases_never_overlap(scene: Scene) -> None:
    """Each message goes to one of many consumers that lease at the same time (guarantee 3)."""
    ids = await scene.put_many(100)
    ids += await scene.generate([0] * 100, bucket=2)
    answers = await asyncio.gather(*(scene.try_lease(f"worker-{number}", rows_max=17) for number in range(20)))
    leased = [one for lease in answers if lease is not None for one in lease.ids()]
    assert sorted(leased) == sorted(ids)
    assert len({lease.lease_id for lease in answers if lease is not None}) == 12


async def a_row_is_settled_once(scene: Scene) -> None:
    """Of a delete, a release and a recall of one row at the same time, one succeeds."""
    await scene.put_many(5)
    lease = await scene.lease()
    answers = await asyncio.gather(scene.delete(lease), scene.release(lease, delay=5), scene.recall(lease))
    for row in range(5):
        assert sorted(codes[row] for codes in answers) == [Code.OK, Code.LEASE_LOST, Code.LEASE_LOST]


async def one_of_many_editors_wins(scene: Scene) -> None:
    """Of concurrent edits with one version, one succeeds and the others are VERSION_CONFLICT."""
    await scene.put("m", 50)
    version = (await scene.get("m")).version
    edits = [Edits(["m"], bodies=[b"%d" % one], versions=[version]) for one in range(6)]
    answers = await asyncio.gather(*(scene.edit(one) for one in edits))
    codes = [code for (code,) in answers]
    assert sorted(codes) == [Code.OK] + [Code.VERSION_CONFLICT] * 5
    assert (await scene.get("m")).body == b"%d" % codes.index(Code.OK)


async def owner_and_consumer_exclude_each_other(scene: Scene) -> None:
    """Of a cancel and a lease at the same time, one gets each message."""
    ids = await scene.put_many(30)
    cancelled, lease = await asyncio.gather(scene.cancel(*ids), scene.try_lease())
    leased = set(lease.ids()) if lease is not None else set()
    gone = {one for one, code in zip(ids, cancelled, strict=True) if code is Code.OK}
    assert leased | gone == set(ids)
    assert not leased & gone


async def many_parties_lose_nothing(scene: Scene) -> None:
    """Producers, consumers and queries run at once: every message is created once and deleted once."""
    deleted: list[str] = []

    async def produce(number: int) -> None:
        session = scene.session()
        for sequence in range(0, 50, 10):
            batch = scene.batch(
                None,
                delays=[0] * 10,
                session=session,
                sequence=sequence,
                bucket=number,
            )
            assert await scene.create(batch) == [Code.OK] * 10
            await scene.put(f"n-{number}-{sequence}")

    async def consume(number: int) -> None:
        while len(deleted) < 4 * 55:
            lease: LeaseSet | None = await scene.try_lease(f"worker-{number}", rows_max=9)
            if lease is None:
                await asyncio.sleep(0)
                continue
            assert set(await scene.delete(lease)) == {Code.OK}
            deleted.extend(lease.ids())

    async def look() -> None:
        while len(deleted) < 4 * 55:
            assert sum(await scene.statuses()) <= 4 * 55
            await scene.browse(limit=50)
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(produce(number))
        for number in range(3):
            tasks.create_task(consume(number))
        tasks.create_task(look())
    assert len(set(deleted)) == len(deleted) == 4 * 55
    assert await scene.count() == 0
