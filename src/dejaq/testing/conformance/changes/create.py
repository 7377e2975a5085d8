"""Create: the store keeps the fields that were sent, the id must be free, and a repeat is not an error."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Edits
from dejaq.domain.ids import bucket_of
from dejaq.domain.message import Message
from dejaq.errors import Code
from dejaq.testing.conformance.scene import OWNER, Scene, ids_of, sized_to


async def a_message_is_stored_as_it_was_sent(scene: Scene) -> None:
    """Every field of a new message has the value from its producer, without a lock and with zero attempts."""
    await scene.put("order:7", 5_000, body=b"\x00payload\xff", priority=-3, headers={"k": "v", "ü": "☃"})
    found = await scene.get("order:7")
    assert found == Message(
        id="order:7",
        topic=scene.topic.name,
        bucket=bucket_of("order:7", scene.topic.settings.buckets),
        ts=scene.now + 5_000,
        priority=-3,
        body=b"\x00payload\xff",
        producer_group=OWNER,
        lock_consumer="",
        version=found.version,
        attempts=0,
        headers={"k": "v", "ü": "☃"},
    )
    assert found.version > 0


async def a_generated_message_is_stored_as_it_was_sent(scene: Scene) -> None:
    """A message with a generated id is in the bucket that its id names."""
    batch = scene.batch(
        None,
        delays=[0, 10, 10],
        bodies=[b"a", b"b", b"c"],
        priorities=[5, -1, 7],
        headers=[{"n": "0"}, {}, {"n": "2"}],
        bucket=6,
        sequence=100,
    )
    assert await scene.create(batch) == [Code.OK] * 3
    for row, message_id in enumerate(ids_of(batch)):
        found = await scene.get(message_id)
        assert (found.id, found.bucket, found.ts) == (message_id, 6, batch.ts[row])
        assert (found.body, found.priority) == (batch.bodies[row], [5, -1, 7][row])
        assert found.headers == [{"n": "0"}, {}, {"n": "2"}][row]
        assert (found.producer_group, found.lock_consumer, found.attempts) == (OWNER, "", 0)


async def columns_that_are_absent_mean_their_defaults(scene: Scene) -> None:
    """Without a column, every row has priority 0 and no headers."""
    assert await scene.create(scene.batch(["plain"], delays=[0])) == [Code.OK]
    found = await scene.get("plain")
    assert (found.priority, found.headers) == (0, {})


async def empty_and_odd_values_are_kept(scene: Scene) -> None:
    """An empty body, empty headers, the extremes of priority and time, and the past are all allowed."""
    await scene.put("empty", body=b"", headers={})
    await scene.put("first", -scene.now, priority=limits.PRIORITY_MIN)
    await scene.put("last", limits.TS_MS_MAX - scene.now, priority=limits.PRIORITY_MAX)
    assert (await scene.get("empty")).body == b""
    first, last = await scene.get("first"), await scene.get("last")
    assert (first.ts, first.priority) == (0, limits.PRIORITY_MIN)
    assert (last.ts, last.priority) == (limits.TS_MS_MAX, limits.PRIORITY_MAX)
    assert await scene.statuses() == (2, 1, 0)
    lease = await scene.lease()
    assert lease.ids() == ["first", "empty"]
    assert lease.bodies == [b"body", b""]


async def bodies_of_every_size_come_back(scene: Scene) -> None:
    """Bodies at and above the limit for inline bodies are complete in get and in a lease."""
    inline = limits.INLINE_BODY_BYTES_MAX
    sizes = [0, 1, inline - 1, inline, inline + 1, 5 * inline, limits.BODY_BYTES_MAX]
    bodies = [bytes([row]) * size for row, size in enumerate(sizes)]
    ids = [f"size-{size}" for size in sizes]
    assert await scene.create(scene.batch(ids, delays=range(-len(sizes), 0), bodies=bodies)) == [Code.OK] * len(sizes)
    found = await scene.storage.get(scene.topic, ids, scene.now)
    assert [message.body if message else None for message in found] == bodies
    lease = await scene.lease()
    assert (lease.ids(), lease.bodies) == (ids, bodies)


async def large_bodies_of_generated_ids_come_back(scene: Scene) -> None:
    """A batch of generated ids may mix inline bodies and bodies that are stored separately."""
    large = limits.INLINE_BODY_BYTES_MAX + 1
    bodies = [b"small", b"L" * large, b"", b"M" * large]
    batch = scene.batch(None, delays=[0, 0, 0, 0], bodies=bodies)
    assert await scene.create(batch) == [Code.OK] * 4
    assert [(await scene.get(one)).body for one in ids_of(batch)] == bodies
    assert sorted((await scene.lease()).bodies) == sorted(bodies)


async def the_same_create_again_is_already_there(scene: Scene) -> None:
    """A create with the same id and content, in another batch, is ALREADY_EXISTS and changes nothing."""
    await scene.put("twice", 100, body=b"x", headers={"a": "b"})
    before = await scene.get("twice")
    again = scene.batch(["twice"], delays=[100], bodies=[b"x"], headers=[{"a": "b"}])
    assert await scene.create(again) == [Code.ALREADY_EXISTS]
    assert await scene.get("twice") == before
    assert await scene.count() == 1


async def another_content_under_a_taken_id_is_refused(scene: Scene) -> None:
    """A create whose time, body, priority, headers or owner differ is ID_TAKEN and changes nothing."""
    await scene.put("taken", 100, body=b"x", headers={"a": "b"})
    before = await scene.get("taken")
    same = {"delays": [100], "bodies": [b"x"], "priorities": [0], "headers": [{"a": "b"}]}
    for other in (
        {"delays": [101]},
        {"bodies": [b"y"]},
        {"bodies": [b"y" * (limits.INLINE_BODY_BYTES_MAX + 1)]},
        {"priorities": [1]},
        {"headers": [{"a": "c"}]},
        {"headers": None},
        {"owner": "another"},
    ):
        batch = scene.batch(["taken"], **(same | other))  # type: ignore[arg-type]
        assert await scene.create(batch) == [Code.ID_TAKEN], other
    assert await scene.get("taken") == before
    assert await scene.count() == 1


async def a_relative_time_is_not_compared(scene: Scene) -> None:
    """A repeat whose time is relative is ALREADY_EXISTS at any time, and ID_TAKEN when anything else differs."""
    await scene.put("job", 100, body=b"x", headers={"a": "b"})
    before = await scene.get("job")
    scene.advance(40)
    same = {"delays": [100], "bodies": [b"x"], "headers": [{"a": "b"}], "relative_rows": [(0, 1)]}
    for change, code in (
        ({}, Code.ALREADY_EXISTS),
        ({"delays": [0]}, Code.ALREADY_EXISTS),
        ({"relative_rows": ()}, Code.ID_TAKEN),
        ({"bodies": [b"y"]}, Code.ID_TAKEN),
        ({"priorities": [1]}, Code.ID_TAKEN),
        ({"headers": [{"a": "c"}]}, Code.ID_TAKEN),
        ({"owner": "another"}, Code.ID_TAKEN),
    ):
        assert await scene.create(scene.batch(["job"], **(same | change))) == [code], change  # type: ignore[arg-type]
    assert await scene.get("job") == before
    assert await scene.count() == 1


async def a_relative_time_is_not_compared_with_a_lease(scene: Scene) -> None:
    """While a message is leased, moved or after its lease ended, a repeat with a relative time is ALREADY_EXISTS."""
    await scene.put("busy", body=b"x")
    lease = await scene.lease()

    async def again() -> list[Code]:
        return await scene.create(scene.batch(["busy"], delays=[0], bodies=[b"x"], relative_rows=[(0, 1)]))

    scene.advance(7)
    assert await again() == [Code.ALREADY_EXISTS]
    assert await scene.release(lease, delay=50_000) == [Code.OK]
    assert await again() == [Code.ALREADY_EXISTS]
    assert await scene.edit(Edits(["busy"], ts=[scene.now + 90_000])) == [Code.OK]
    assert await again() == [Code.ALREADY_EXISTS]
    assert await scene.cancel("busy") == [Code.OK]
    assert await again() == [Code.OK]


async def each_row_says_whether_its_time_is_relative(scene: Scene) -> None:
    """A batch may hold relative and absolute times in any order; each row is compared by its own kind."""
    ids = await scene.put_many(40, 5_000)
    bodies = [b"body %d" % row for row in range(len(ids))]
    scene.advance(3)
    ranges = [(0, 1), (3, 9), (10, 11), (30, 40)]
    relative = {row for start, end in ranges for row in range(start, end)}
    ids[4] = "new"
    again = scene.batch(ids, delays=[5_000] * len(ids), bodies=bodies, relative_rows=ranges)
    expected = [Code.ALREADY_EXISTS if row in relative else Code.ID_TAKEN for row in range(len(ids))]
    expected[4] = Code.OK
    assert await scene.create(again) == expected
    assert await scene.count() == len(ids) + 1


async def large_contents_are_compared_too(scene: Scene) -> None:
    """The comparison of contents includes bodies that are stored separately."""
    large = b"z" * (limits.INLINE_BODY_BYTES_MAX + 1)
    await scene.put("large", 100, body=large)
    again = scene.batch(["large"] * 1, delays=[100], bodies=[large])
    assert await scene.create(again) == [Code.ALREADY_EXISTS]
    other = scene.batch(["large"], delays=[100], bodies=[large[:-1] + b"!"])
    assert await scene.create(other) == [Code.ID_TAKEN]
    assert (await scene.get("large")).body == large


async def a_lease_does_not_make_the_content_another(scene: Scene) -> None:
    """While a message is leased, and after its lease is lost, a repeat of its create is ALREADY_EXISTS."""
    await scene.put("busy", body=b"x")
    repeat = scene.batch(["busy"], delays=[0], bodies=[b"x"])
    later = scene.batch(["busy"], delays=[1], bodies=[b"x"])
    await scene.lease()
    assert await scene.create(repeat) == [Code.ALREADY_EXISTS]
    assert await scene.create(later) == [Code.ID_TAKEN]
    scene.advance(60_000)
    again = scene.batch(["busy"], delays=[-60_000], bodies=[b"x"])
    assert await scene.create(again) == [Code.ALREADY_EXISTS]
    await scene.lease("worker-2")
    again = scene.batch(["busy"], delays=[-60_000], bodies=[b"x"])
    assert await scene.create(again) == [Code.ALREADY_EXISTS]
    assert (await scene.get("busy")).attempts == 2


async def a_changed_message_is_compared_as_it_is_now(scene: Scene) -> None:
    """After an edit, a create with the new content is a repeat, and a create with the first content is not."""
    await scene.put("edited", 100, body=b"old")
    assert await scene.edit(Edits(["edited"], bodies=[b"new"])) == [Code.OK]
    old = scene.batch(["edited"], delays=[100], bodies=[b"old"])
    assert await scene.create(old) == [Code.ID_TAKEN]
    new = scene.batch(["edited"], delays=[100], bodies=[b"new"])
    assert await scene.create(new) == [Code.ALREADY_EXISTS]


async def every_row_has_its_own_outcome(scene: Scene) -> None:
    """Rows that are refused, that exist already or whose id is taken do not affect the other rows of the batch."""
    await scene.put("there", body=b"same")
    await scene.put("taken", body=b"mine")
    batch = scene.batch(
        ["new-1", "there", "bad", "taken", "new-2"],
        delays=[0] * 5,
        bodies=[b"1", b"same", b"?", b"yours", b"2"],
        refused={2: Code.BODY_TOO_LARGE},
    )
    assert await scene.create(batch) == [
        Code.OK,
        Code.ALREADY_EXISTS,
        Code.BODY_TOO_LARGE,
        Code.ID_TAKEN,
        Code.OK,
    ]
    assert await scene.find("bad") is None
    assert (await scene.get("taken")).body == b"mine"
    assert await scene.count() == 4
    assert (await scene.lease()).bodies.count(b"?") == 0


async def refused_rows_of_generated_ids_leave_a_gap(scene: Scene) -> None:
    """A refused row uses its counter: the ids of the other rows stay the same."""
    batch = scene.batch(None, delays=[0, 1, 2, 3, 4], refused={0: Code.BODY_TOO_LARGE, 3: Code.INVALID_PRIORITY})
    assert await scene.create(batch) == [
        Code.BODY_TOO_LARGE,
        Code.OK,
        Code.OK,
        Code.INVALID_PRIORITY,
        Code.OK,
    ]
    ids = ids_of(batch)
    found = await scene.storage.get(scene.topic, ids, scene.now)
    bodies = [message.body if message else None for message in found]
    assert bodies == [None, batch.bodies[1], batch.bodies[2], None, batch.bodies[4]]
    scene.advance(10)
    assert (await scene.lease()).ids() == [ids[1], ids[2], ids[4]]


async def a_batch_of_refused_rows_creates_nothing(scene: Scene) -> None:
    """A batch in which every row is refused is answered with the refusals."""
    for ids in (None, ["a", "b"]):
        batch = scene.batch(ids, delays=[0, 0], refused={0: Code.TOO_FAR, 1: Code.TOO_FAR})
        assert await scene.create(batch) == [Code.TOO_FAR, Code.TOO_FAR]
    assert await scene.count() == 0


async def an_id_is_free_again_once_its_message_is_gone(scene: Scene) -> None:
    """After a delete or a cancel the id may be used for a message with other content."""
    await scene.put("reused", body=b"1")
    assert await scene.delete(await scene.lease()) == [Code.OK]
    await scene.put("reused", 50, body=b"2")
    assert await scene.cancel("reused") == [Code.OK]
    await scene.put("reused", 70, body=b"3")
    found = await scene.get("reused")
    assert (found.body, found.attempts) == (b"3", 0)


async def a_large_batch_is_whole(scene: Scene) -> None:
    """The largest allowed batch is created, found, counted and leased completely."""
    count = limits.BATCH_COUNT_MAX
    spread = sorted(sized_to(count, range(0, 300_000, 700)))
    natural = scene.batch([f"n{number}" for number in range(count)], delays=spread)
    generated = scene.batch(None, delays=spread, bucket=3)
    for batch in (natural, generated):
        assert await scene.create(batch) == [Code.OK] * count
    assert await scene.count() == 2 * count
    scene.advance(300_000)
    assert await _drain(scene) == sorted(ids_of(natural) + ids_of(generated))
    assert await scene.count() == 0


async def _drain(scene: Scene) -> list[str]:
    ids: list[str] = []
    while (lease := await scene.try_lease()) is not None:
        assert set(await scene.delete(lease)) == {Code.OK}
        ids += lease.ids()
    return sorted(ids)


async def topics_do_not_share_ids(scene: Scene) -> None:
    """The same id in two topics names two messages."""
    other = await scene.new_topic("other")
    await scene.put("shared", body=b"mine")
    await scene.put("shared", body=b"theirs", topic=other)
    (found,) = await scene.storage.get(other, ["shared"], scene.now)
    assert found is not None
    assert (found.topic, found.body) == ("other", b"theirs")
    assert (await scene.get("shared")).body == b"mine"
    assert await scene.cancel("shared") == [Code.OK]
    assert await scene.storage.get(other, ["shared"], scene.now) == [found]


async def batches_of_two_owners_keep_their_owner(scene: Scene) -> None:
    """The owner comes from the batch, whatever the session."""
    session = scene.session()
    for sequence, owner in enumerate(("a", "b")):
        batch: CreateBatch = scene.batch(None, delays=[0], owner=owner, session=session, sequence=sequence, bucket=1)
        assert await scene.create(batch) == [Code.OK]
        assert (await scene.get(ids_of(batch)[0])).producer_group == owner
