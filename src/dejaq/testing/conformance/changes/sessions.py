"""A batch has a name (producer session, sequence). A repeat is recognised even when its messages are gone."""

from __future__ import annotations

from dataclasses import replace

from dejaq import limits
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Edits
from dejaq.errors import Code
from dejaq.testing.conformance.scene import Scene, ids_of, refusal_of


async def a_repeated_batch_is_already_there(scene: Scene) -> None:
    """A repeat of a batch answers ALREADY_EXISTS for every row and creates nothing."""
    for batch in (scene.batch(["a", "b"], delays=[0, 5]), scene.batch(None, delays=[0, 5])):
        assert await scene.create(batch) == [Code.OK, Code.OK]
        for _ in range(3):
            assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.ALREADY_EXISTS]
    assert await scene.count() == 4


async def a_repeat_is_known_after_delivery(scene: Scene) -> None:
    """A repeat does not bring back messages that were deleted or cancelled meanwhile."""
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
    """A row that was too far ahead at first and is not any more is created by the repeat, and is not ALREADY_EXISTS."""
    for ids in (["a", "b"], None):
        batch = scene.batch(ids, delays=[0, 1], refused={1: Code.TOO_FAR})
        assert await scene.create(batch) == [Code.OK, Code.TOO_FAR]
        assert await scene.create(replace(batch, refused={})) == [Code.ALREADY_EXISTS, Code.OK]
        assert (await scene.get(ids_of(batch)[1])).body == batch.bodies[1]


async def a_taken_id_stays_taken_in_the_repeat(scene: Scene) -> None:
    """A row that was ID_TAKEN is ID_TAKEN again in the repeat while the other message is unchanged."""
    await scene.put("taken", 10, body=b"first")
    batch = scene.batch(["free", "taken"], delays=[0, 10], bodies=[b"x", b"second"])
    assert await scene.create(batch) == [Code.OK, Code.ID_TAKEN]
    assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.ID_TAKEN]
    assert (await scene.get("taken")).body == b"first"


async def a_repeat_never_claims_what_was_never_created(scene: Scene) -> None:
    """A row that was ID_TAKEN is created by the repeat once the id is free: ALREADY_EXISTS would lose the message."""
    await scene.put("taken", 10, body=b"first")
    batch = scene.batch(["taken"], delays=[20], bodies=[b"second"])
    assert await scene.create(batch) == [Code.ID_TAKEN]
    assert await scene.cancel("taken") == [Code.OK]
    assert await scene.create(batch) == [Code.OK]
    assert (await scene.get("taken")).body == b"second"


async def a_repeat_is_known_by_its_name(scene: Scene) -> None:
    """A repeat with other times, computed from the same delays, is still a repeat, and changes nothing."""
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
    """A repeat of a message that was created, delivered and deleted is a repeat even if another message used its id
    since.
    """
    batch = scene.batch(["reused"], delays=[0])
    assert await scene.create(batch) == [Code.OK]
    assert await scene.delete(await scene.lease()) == [Code.OK]
    await scene.put("reused", 50, body=b"another")
    assert await scene.create(batch) == [Code.ALREADY_EXISTS]
    assert (await scene.get("reused")).body == b"another"


async def an_overlap_is_handled_row_by_row(scene: Scene) -> None:
    """When some counters of a batch were used, their rows are ALREADY_EXISTS and the other rows are created."""
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
    """A lower sequence after a higher one is new when it was not used."""
    session = scene.session()
    for sequence in (40, 0, 20, 60, 10):
        batch = scene.batch(None, delays=[0] * 10, session=session, sequence=sequence)
        assert await scene.create(batch) == [Code.OK] * 10, sequence
        assert await scene.create(batch) == [Code.ALREADY_EXISTS] * 10, sequence
    assert await scene.count() == 50


async def many_gaps_are_remembered(scene: Scene) -> None:
    """A session that leaves a gap after every batch still has all its batches recognised."""
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


async def refused_rows_do_not_wear_a_session_out(scene: Scene) -> None:
    """D1: refused rows leave gaps; gaps below the acknowledged counter are closed, however many there were."""
    count = limits.PRODUCER_SESSION_GAPS_MAX
    session = scene.session()
    for number in range(4):
        refused = dict.fromkeys(range(1, count, 2), Code.TOO_FAR)
        batch = scene.batch(None, delays=[0] * count, session=session, sequence=number * count, refused=refused)
        batch = replace(batch, acknowledged=number * count)
        assert await scene.create(batch) == [Code.OK, Code.TOO_FAR] * (count // 2)
        assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.TOO_FAR] * (count // 2)
    assert await scene.count() == 2 * count


async def a_session_with_too_many_gaps_is_refused_as_a_whole(scene: Scene) -> None:
    """D1: the batch that makes too many gaps succeeds, the next one is refused as a whole, and a
    new session succeeds.
    """
    count = 2 * limits.PRODUCER_SESSION_GAPS_MAX + 4
    session = scene.session()
    refused = dict.fromkeys(range(1, count, 2), Code.TOO_FAR)
    batch = scene.batch(None, delays=[0] * count, session=session, refused=refused)
    assert await scene.create(batch) == [Code.OK, Code.TOO_FAR] * (count // 2)
    assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.TOO_FAR] * (count // 2)
    more = scene.batch(None, delays=[0], session=session, sequence=count)
    assert await refusal_of(scene.create(more)) is Code.LIMIT_EXCEEDED
    assert await scene.create(replace(more, session=scene.session())) == [Code.OK]
    assert await scene.create(replace(more, acknowledged=count)) == [Code.OK]


async def another_batch_under_a_used_name_is_refused(scene: Scene) -> None:
    """D13: two copies of one process use one name for different batches; the second must not count as a repeat."""
    for ids, others in ((["a", "b"], ["c", "d"]), (None, None)):
        session = scene.session()
        batch = replace(scene.batch(ids, delays=[0, 0], session=session), check=2**64 - 1)
        assert await scene.create(batch) == [Code.OK, Code.OK]
        other = replace(scene.batch(others, delays=[0, 0], bodies=[b"x", b"y"], session=session), check=2)
        assert await refusal_of(scene.create(other)) is Code.BATCH_NAME_TAKEN
        # When the first batch is answered, the second may still be in transit.
        later = scene.batch(None, delays=[0, 0], session=session, sequence=2)
        assert await scene.create(replace(later, check=7, acknowledged=2)) == [Code.OK, Code.OK]
        assert await refusal_of(scene.create(other)) is Code.BATCH_NAME_TAKEN
        longer = scene.batch(None, delays=[0, 0], session=session, sequence=1)
        assert await refusal_of(scene.create(replace(longer, check=3))) is Code.BATCH_NAME_TAKEN
        assert await scene.create(replace(later, check=7)) == [Code.ALREADY_EXISTS] * 2
        assert await scene.create(replace(other, session=scene.session())) == [Code.OK, Code.OK]
    assert await scene.count() == 12


async def a_repeat_with_its_check_value_is_known(scene: Scene) -> None:
    """D13: batches that are in transit together are recognised by name and content, also after their delivery."""
    session = scene.session()
    batches = [
        replace(scene.batch(None, delays=[0], session=session, sequence=number), check=100 + number)
        for number in range(40)
    ]
    for batch in reversed(batches):
        assert await scene.create(batch) == [Code.OK]
    for batch in batches:
        assert await scene.create(batch) == [Code.ALREADY_EXISTS]
    assert await scene.count() == 40
