"""Ids: natural ids by their index, generated ids by session and counter, and texts that could be either."""

from __future__ import annotations

from dejaq.domain.changes import Edits
from dejaq.domain.ids import ProducerSession, generated_ids
from dejaq.errors import Code
from dejaq.testing.conformance.scene import Scene, ids_of


async def unknown_ids_are_none(scene: Scene) -> None:
    """Get returns None when no message has the id, in the order of the ids, also for texts that are not valid ids."""
    await scene.put("here")
    odd = ["", "x" * 65, "ü", "a b", "nobody", "0" * 32, "F" * 32, "f" * 31, "f" * 33]
    found = await scene.storage.get(scene.topic, [*odd, "here", "here"], scene.now)
    assert found[: len(odd)] == [None] * len(odd)
    assert [message.id if message else None for message in found[len(odd) :]] == ["here", "here"]
    assert await scene.storage.get(scene.topic, [], scene.now) == []
    assert await scene.storage.holders(scene.topic, ["nobody", "0" * 32], scene.now) == [None, None]
    assert await scene.cancel("nobody", "0" * 32) == [Code.NOT_FOUND, Code.NOT_FOUND]


async def natural_ids_of_every_form_are_found(scene: Scene) -> None:
    """Ids of 1 and of 64 characters, and ids with equal beginnings, are distinguished."""
    ids = ["a", "aa", "a.b", "a:b", "a-b", "A", "_", "0", "x" * 64, "x" * 63, "." * 10]
    batch = scene.batch(ids, delays=[0] * len(ids), bodies=[one.encode() for one in ids])
    assert await scene.create(batch) == [Code.OK] * len(ids)
    found = await scene.storage.get(scene.topic, ids, scene.now)
    assert [message.body.decode() if message else None for message in found] == ids


async def generated_ids_are_found_one_by_one(scene: Scene) -> None:
    """Each id of a run is found, and the next ids in counter, bucket and session are not."""
    batch = scene.batch(None, delays=[0, 10_000, 20_000, 90_000], bucket=2, sequence=50)
    assert await scene.create(batch) == [Code.OK] * 4
    for row, message_id in enumerate(ids_of(batch)):
        assert (await scene.get(message_id)).body == batch.bodies[row]
    session = batch.session
    absent = [
        *generated_ids(session.prefix(2), 49, 1),
        *generated_ids(session.prefix(2), 54, 1),
        *generated_ids(session.prefix(3), 50, 1),
        *generated_ids(session.prefix(60_000), 50, 1),
        *generated_ids(ProducerSession(session.start_ms, session.number + 1).prefix(2), 50, 1),
        *generated_ids(ProducerSession(session.start_ms + 1, session.number).prefix(2), 50, 1),
    ]
    assert await scene.storage.get(scene.topic, absent, scene.now) == [None] * len(absent)


async def counters_at_both_ends_work(scene: Scene) -> None:
    """The first and the last counter of a session name messages."""
    for sequence in (0, 2**32 - 2):
        batch = scene.batch(None, delays=[0, 0], sequence=sequence)
        assert await scene.create(batch) == [Code.OK, Code.OK]
        assert await scene.create(batch) == [Code.ALREADY_EXISTS, Code.ALREADY_EXISTS]
        for message_id in ids_of(batch):
            assert (await scene.get(message_id)).id == message_id


async def a_session_may_use_every_bucket(scene: Scene) -> None:
    """The batches of one session may go to different buckets; each id keeps its own."""
    session = scene.session()
    batches = [
        scene.batch(None, delays=[0, 0], session=session, sequence=2 * bucket, bucket=bucket)
        for bucket in range(scene.topic.settings.buckets)
    ]
    for batch in batches:
        assert await scene.create(batch) == [Code.OK, Code.OK]
    for batch in batches:
        for message_id in ids_of(batch):
            assert (await scene.get(message_id)).bucket == batch.bucket


async def generated_ids_stay_valid_through_changes(scene: Scene) -> None:
    """Move, edit and release leave the id and the bucket; get, edit and cancel still find the message."""
    first, second, third, fourth = await scene.generate([0, 0, 5_000, 9_000], bucket=4)
    assert await scene.edit(Edits([third], ts=[scene.now + 700_000])) == [Code.OK]
    assert await scene.edit(Edits([fourth], bodies=[b"edited"])) == [Code.OK]
    lease = await scene.lease()
    assert sorted(lease.ids()) == sorted([first, second])
    assert await scene.release(lease, delay=50_000) == [Code.OK, Code.OK]
    for message_id, delay in ((first, 50_000), (second, 50_000), (third, 700_000), (fourth, 9_000)):
        found = await scene.get(message_id)
        assert (found.id, found.bucket, found.ts) == (message_id, 4, scene.now + delay)
    assert (await scene.get(fourth)).body == b"edited"
    assert await scene.edit(Edits([first, third], priorities=[7, 8])) == [Code.OK, Code.OK]
    assert [(await scene.get(one)).priority for one in (first, third)] == [7, 8]
    assert await scene.cancel(first, second, third, fourth) == [Code.OK] * 4
    assert await scene.storage.get(scene.topic, [first, second, third, fourth], scene.now) == [None] * 4
    assert await scene.count() == 0


async def a_natural_id_may_look_generated(scene: Scene) -> None:
    """A natural id of 32 hex digits is found, edited, leased, released and cancelled as any other."""
    looks = "0123456789abcdef0123456789abcdef"
    await scene.put(looks, body=b"natural")
    assert (await scene.get(looks)).body == b"natural"
    assert await scene.edit(Edits([looks], bodies=[b"edited"])) == [Code.OK]
    lease = await scene.lease()
    assert (lease.ids(), lease.bodies) == ([looks], [b"edited"])
    assert await scene.release(lease, delay=1_000) == [Code.OK]
    assert (await scene.get(looks)).ts == scene.now + 1_000
    assert await scene.cancel(looks) == [Code.OK]
    assert await scene.find(looks) is None


async def natural_comes_before_generated(scene: Scene) -> None:
    """When a natural id had the text of a generated id first, look-ups find it as long as its message exists."""
    batch = scene.batch(None, delays=[5_000], bucket=1)
    (generated,) = ids_of(batch)
    await scene.put(generated, 6_000, body=b"natural")
    assert await scene.create(batch) == [Code.OK]
    assert (await scene.get(generated)).body == b"natural"
    assert await scene.count() == 2
    assert await scene.cancel(generated) == [Code.OK]
    assert (await scene.get(generated)).body == b"body 0"
    assert await scene.cancel(generated) == [Code.OK]
    assert await scene.find(generated) is None
    assert await scene.count() == 0


async def a_natural_id_may_not_repeat_a_generated_one(scene: Scene) -> None:
    """Natural and generated ids share one space: the text of an existing generated id is taken."""
    (generated,) = await scene.generate([5_000], bucket=1)
    batch = scene.batch([generated], delays=[6_000], bodies=[b"natural"])
    assert await scene.create(batch) == [Code.ID_TAKEN]
    assert (await scene.get(generated)).body == b"body 0"
    assert await scene.count() == 1
    assert await scene.cancel(generated) == [Code.OK]
    assert await scene.find(generated) is None
    assert await scene.count() == 0
