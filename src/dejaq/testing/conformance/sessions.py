"""A batch has a name: (producer session, sequence). A repeat is known even when its messages are gone."""

from __future__ import annotations

from dataclasses import replace

from dejaq import limits
from dejaq.domain.batch import CreateBatch
from dejaq.errors import Code
from dejaq.storage.base import Edits
from dejaq.testing.conformance.scene import Scene, ids_of


async def a_repeated_batch_is_already_there(scene: Scene) -> None:
    """A repeat of a batch answers ALREADY_EXISTS for every row and creates nothing."""
    for batch in (scene.batch(["a", "b"], delays=[0, 5]), scene.batch(None, delays=[0, 5])):
        assert await scene.create(batch) == [Code.OK, Code.OK]
        for _ in range(3):
            assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.ALREADY_EXISTS]
    assert await scene.count() == 4


async def a_repeat_is_known_after_delivery(scene: Scene) -> None:
    """A repeat does not bring back what was deleted or cancelled meanwhile."""
    for batch in (scene.batch(["a", "b"], delays=[0, 50]), scene.batch(None, delays=[0, 50])):
        assert await scene.create(batch) == [Code.OK, Code.OK]
        assert await scene.delete(await scene.lease()) == [Code.OK]
        assert await scene.cancel(ids_of(batch)[1]) == [Code.OK]
        assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.ALREADY_EXISTS]
    assert await scene.count() == 0
    assert await scene.try_lease() is None


async def a_repeat_is_known_after_a_change(scene: Scene) -> None:
    """A repeat does not undo an edit, a lease or a release."""
    for ids in (["a", "b", "c"], None):
        batch = scene.batch(ids, delays=[0, 50, 60])
        assert await scene.create(batch) == [Code.OK] * 3
        first, second, _ = ids_of(batch)
        assert await scene.edit(Edits([second], bodies=[b"new"], ts=[scene.now + 99])) == [Code.OK]
        lease = await scene.lease()
        assert await scene.create(batch) == [Code.ALREADY_EXISTS] * 3
        assert await scene.release(lease, delay=500) == [Code.OK]
        assert await scene.create(batch) == [Code.ALREADY_EXISTS] * 3
        assert (await scene.get(first)).ts == scene.now + 500
        assert (await scene.get(second)).body == b"new"
        assert (await scene.get(second)).ts == scene.now + 99


async def refused_rows_of_a_repeat_stay_refused(scene: Scene) -> None:
    """In a repeat, refused rows keep their refusal and the others are ALREADY_EXISTS."""
    for ids in (["a", "b", "c"], None):
        batch = scene.batch(ids, delays=[0, 1, 2], refused={1: Code.BODY_TOO_LARGE})
        assert await scene.create(batch) == [Code.OK, Code.BODY_TOO_LARGE, Code.OK]
        expected = [Code.ALREADY_EXISTS, Code.BODY_TOO_LARGE, Code.ALREADY_EXISTS]
        assert await scene.create(batch) == expected


async def a_row_refused_before_may_be_admitted_by_the_repeat(scene: Scene) -> None:
    """A row that was too far ahead at first and is not any more is created by the repeat, not called there."""
    for ids in (["a", "b"], None):
        batch = scene.batch(ids, delays=[0, 1], refused={1: Code.TOO_FAR})
        assert await scene.create(batch) == [Code.OK, Code.TOO_FAR]
        assert await scene.create(replace(batch, refused={})) == [Code.ALREADY_EXISTS, Code.OK]
        assert (await scene.get(ids_of(batch)[1])).body == batch.bodies[1]


async def a_taken_id_stays_taken_in_the_repeat(scene: Scene) -> None:
    """A row that was ID_TAKEN is ID_TAKEN again in the repeat while the other message stands unchanged."""
    await scene.put("taken", 10, body=b"first")
    batch = scene.batch(["free", "taken"], delays=[0, 10], bodies=[b"x", b"second"])
    assert await scene.create(batch) == [Code.OK, Code.ID_TAKEN]
    assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.ID_TAKEN]
    assert (await scene.get("taken")).body == b"first"


async def a_repeat_never_claims_what_was_never_created(scene: Scene) -> None:
    """A row that was ID_TAKEN is created by the repeat once the id is free: "there" would be a loss."""
    await scene.put("taken", 10, body=b"first")
    batch = scene.batch(["taken"], delays=[20], bodies=[b"second"])
    assert await scene.create(batch) == [Code.ID_TAKEN]
    assert await scene.cancel("taken") == [Code.OK]
    assert await scene.create(batch) == [Code.OK]
    assert (await scene.get("taken")).body == b"second"


async def a_repeat_is_known_by_its_name(scene: Scene) -> None:
    """A repeat whose relative times came out differently is a repeat all the same, and changes nothing."""
    for ids in (["a", "b"], None):
        batch = scene.batch(ids, delays=[500, 600])
        assert await scene.create(batch) == [Code.OK, Code.OK]
        later = replace(batch, ts=[ts + 40 for ts in batch.ts])
        assert await scene.create(later) == [Code.ALREADY_EXISTS] * 2
        assert [(await scene.get(one)).ts for one in ids_of(batch)] == batch.ts


async def a_repeat_is_known_for_as_long_as_promised(scene: Scene) -> None:
    """Counters are remembered for a day after the last batch of their session."""
    batches = [scene.batch(["a"], delays=[0]), scene.batch(None, delays=[0])]
    for batch in batches:
        assert await scene.create(batch) == [Code.OK]
    assert set(await scene.delete(await scene.lease())) == {Code.OK}
    for _ in range(3):
        scene.advance(limits.PRODUCER_SESSION_MS_MAX - 1)
        for batch in batches:
            assert await scene.create(batch) == [Code.ALREADY_EXISTS]
    assert await scene.count() == 0


async def a_repeat_is_known_although_another_took_the_id(scene: Scene) -> None:
    """What was created, delivered and deleted is done, whoever has used its id since."""
    batch = scene.batch(["reused"], delays=[0])
    assert await scene.create(batch) == [Code.OK]
    assert await scene.delete(await scene.lease()) == [Code.OK]
    await scene.put("reused", 50, body=b"another")
    assert await scene.create(batch) == [Code.ALREADY_EXISTS]
    assert (await scene.get("reused")).body == b"another"


async def an_overlap_is_handled_row_by_row(scene: Scene) -> None:
    """Of a batch whose counters were partly seen, the seen rows are there and the rest are created."""
    session = scene.session()

    def part(sequence: int, count: int) -> CreateBatch:
        numbers = range(sequence, sequence + count)
        return scene.batch(
            None,
            delays=[0] * count,
            bodies=[b"%d" % number for number in numbers],
            session=session,
            sequence=sequence,
        )

    assert await scene.create(part(10, 5)) == [Code.OK] * 5
    assert await scene.create(part(20, 5)) == [Code.OK] * 5
    seen, new = Code.ALREADY_EXISTS, Code.OK
    assert await scene.create(part(8, 4)) == [new, new, seen, seen]
    assert await scene.create(part(13, 9)) == [seen] * 2 + [new] * 5 + [seen] * 2
    assert await scene.create(part(8, 17)) == [seen] * 17
    assert await scene.count() == 17
    bodies = [(await scene.get(one)).body for one in ids_of(part(8, 17))]
    assert bodies == [b"%d" % number for number in range(8, 25)]


async def an_overlap_of_natural_ids_is_handled_row_by_row(scene: Scene) -> None:
    """The counters of natural ids count in the same way."""
    session = scene.session()
    first = scene.batch(["a", "b", "c"], delays=[0, 0, 0], session=session, sequence=0)
    assert await scene.create(first) == [Code.OK] * 3
    assert await scene.cancel("c") == [Code.OK]
    second = scene.batch(
        ["c", "d"],
        delays=[0, 0],
        bodies=[first.bodies[2], b"d"],
        session=session,
        sequence=2,
    )
    assert await scene.create(second) == [Code.ALREADY_EXISTS, Code.OK]
    assert await scene.find("c") is None


async def batches_may_arrive_out_of_order(scene: Scene) -> None:
    """A lower sequence after a higher one is new when it was not seen."""
    session = scene.session()
    for sequence in (40, 0, 20, 60, 10):
        batch = scene.batch(None, delays=[0] * 10, session=session, sequence=sequence)
        assert await scene.create(batch) == [Code.OK] * 10, sequence
        assert await scene.create(batch) == [Code.ALREADY_EXISTS] * 10, sequence
    assert await scene.count() == 50


async def many_gaps_are_remembered(scene: Scene) -> None:
    """A session that leaves a gap after every batch still has each of them known."""
    session = scene.session()
    batches = [scene.batch(None, delays=[0], session=session, sequence=2 * number) for number in range(100)]
    for batch in batches:
        assert await scene.create(batch) == [Code.OK]
    for batch in batches:
        assert await scene.create(batch) == [Code.ALREADY_EXISTS]
    between = scene.batch(None, delays=[0], session=session, sequence=51)
    assert await scene.create(between) == [Code.OK]


async def sessions_are_told_apart(scene: Scene) -> None:
    """The same sequence in another session, or in another topic, is not a repeat."""
    batch = scene.batch(None, delays=[0])
    other = await scene.new_topic("other")
    assert await scene.create(batch) == [Code.OK]
    assert await scene.create(batch, other) == [Code.OK]
    assert await scene.create(scene.batch(None, delays=[0])) == [Code.OK]
    later = replace(batch, session=replace(batch.session, start_ms=batch.session.start_ms + 1))
    assert await scene.create(later) == [Code.OK]
    assert await scene.count() == 3


async def a_repeat_ignores_the_bucket(scene: Scene) -> None:
    """A counter is used once in its session, whatever bucket the repeat names."""
    batch = scene.batch(None, delays=[0, 1], bucket=1)
    assert await scene.create(batch) == [Code.OK, Code.OK]
    assert await scene.create(replace(batch, bucket=2)) == [Code.ALREADY_EXISTS] * 2
    assert await scene.count() == 2
