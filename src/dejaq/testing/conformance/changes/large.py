"""Large bodies: uploaded in parts, kept by the messages that refer to them, and removed with the last of these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from dejaq import limits
from dejaq.domain.bodies.large import Declared, Reference, declare, reference_of, sealed_parts
from dejaq.domain.changes import Create, Edit, Edits
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter
from dejaq.storage.transactions import Verdict
from dejaq.testing.conformance.scene import OWNER, Scene, refusal_of
from dejaq.testing.conformance.uploads import BODY, BUCKET, OTHER, each, gone, put, read, upload
from dejaq.testing.model.replay import events_of, read_journal


async def a_large_body_is_kept_by_its_message(scene: Scene) -> None:
    """An uploaded body can be read in parts for as long as a message refers to it, and no longer."""
    reference = await upload(scene)
    assert (reference.size, reference.parts) == (len(BODY), 3)
    assert await put(scene, "m", reference) is Code.OK
    assert not await gone(scene, reference)
    assert await read(scene, reference) == BODY
    lease = await scene.lease()
    assert lease.large
    assert reference_of(lease.bodies[0]) == reference
    assert (await scene.get("m")).body == reference.pack()
    await scene.release(lease, delay=0)
    assert await read(scene, reference) == BODY
    lease = await scene.lease()
    assert await scene.delete(lease) == [Code.OK]
    assert await gone(scene, reference)


async def small_bodies_do_not_look_large(scene: Scene) -> None:
    """A lease of messages without large bodies does not mark any body as large."""
    await scene.put_many(3)
    assert not (await scene.lease()).large


async def an_upload_nobody_refers_to_is_removed(scene: Scene) -> None:
    """The body is kept until its time is over; after that a message can no longer refer to it."""
    reference = await upload(scene)
    assert await scene.storage.bodies.reclaim(scene.now + limits.UPLOAD_KEEP_MS - 1) == 0
    assert await read(scene, reference) == BODY
    assert await scene.storage.bodies.reclaim(scene.now + limits.UPLOAD_KEEP_MS) == 1
    assert await refusal_of(read(scene, reference)) is Code.BODY_MISSING
    assert await put(scene, "m", reference) is Code.BODY_MISSING
    assert await scene.find("m") is None


async def a_reference_to_nothing_is_refused(scene: Scene) -> None:
    """A reference with an unknown number, or with another digest or size, is BODY_MISSING for its row."""
    known = await upload(scene)
    wrong = [
        Reference(known.size, known.stored, known.digest, known.number + 1),
        Reference(known.size, known.stored, bytes(32), known.number),
        Reference(known.size - 1, known.stored, known.digest, known.number),
    ]
    bodies = [known.pack(), *(one.pack() for one in wrong), b"plain"]
    batch = scene.batch([f"m-{n}" for n in range(5)], delays=[0] * 5, bodies=bodies)
    batch.large = True
    assert await scene.create(batch) == [Code.OK, *[Code.BODY_MISSING] * 3, Code.OK]
    assert await scene.count() == 2
    await scene.put("edited", 5_000)
    edits = Edits(["edited"], bodies=[wrong[0].pack()], large=True)
    assert await scene.edit(edits) == [Code.BODY_MISSING]
    assert (await scene.get("edited")).body == b"body"


async def an_upload_that_is_not_what_it_says_leaves_nothing(scene: Scene) -> None:
    """Too few parts, too many parts, other bytes or a failing source cause an error, and leave no body."""
    parts = list(sealed_parts(BODY))
    declared = declare(parts, len(BODY))

    async def broken() -> AsyncIterator[bytes]:
        yield parts[0]
        raise error_of(Code.BODY_UNREADABLE, "the client is gone")

    sources = [each(parts[:2]), each([*parts, b"more"]), each([parts[0], parts[2], parts[1]]), each([]), broken()]
    taken = [scene.storage.bodies.upload(scene.topic, BUCKET, declared, source, scene.now) for source in sources]
    codes = [await refusal_of(one) for one in taken]
    assert codes == [*[Code.INVALID_ARGUMENT] * 4, Code.BODY_UNREADABLE]
    assert await scene.storage.bodies.find(scene.topic, BUCKET, declared, scene.now) is None
    assert await scene.storage.bodies.reclaim(scene.now + limits.UPLOAD_KEEP_MS) == 0


async def a_create_with_a_large_body_is_idempotent(scene: Scene) -> None:
    """A create with the same content under another upload is a repeat; other content is not."""
    first, again, other = await upload(scene), await upload(scene), await upload(scene, OTHER)
    assert [await put(scene, "m", one) for one in (first, again, other)] == [
        Code.OK,
        Code.ALREADY_EXISTS,
        Code.ID_TAKEN,
    ]
    assert (await scene.get("m")).body == first.pack()
    assert await gone(scene, again)
    assert await read(scene, first) == BODY


async def two_edits_with_large_bodies_have_one_winner(scene: Scene) -> None:
    """The second edit gets VERSION_CONFLICT and its upload is reclaimed; so is the body that was replaced."""
    first = await upload(scene)
    await put(scene, "m", first)
    version = (await scene.get("m")).version
    new = [await upload(scene, OTHER + bytes([n])) for n in range(2)]
    edits = [Edits(["m"], bodies=[one.pack()], versions=[version], large=True) for one in new]
    codes = await asyncio.gather(*map(scene.edit, edits))
    assert sorted(codes) == [[Code.OK], [Code.VERSION_CONFLICT]]
    winner = codes.index([Code.OK])
    assert (await scene.get("m")).body == new[winner].pack()
    assert await gone(scene, new[1 - winner])
    assert await gone(scene, first)
    assert await read(scene, new[winner]) == OTHER + bytes([winner])


async def a_large_body_may_become_small_and_large_again(scene: Scene) -> None:
    """An edit replaces a large body by a small one and a small one by a large one; an edit of the
    time keeps the body.
    """
    first, second = await upload(scene), await upload(scene, OTHER)
    await put(scene, "m", first)
    assert await scene.edit(Edits(["m"], ts=[scene.now + 9])) == [Code.OK]
    assert (await scene.get("m")).body == first.pack()
    assert await scene.edit(Edits(["m"], bodies=[b"small"])) == [Code.OK]
    assert (await scene.get("m")).body == b"small"
    assert await scene.edit(Edits(["m"], bodies=[second.pack()], large=True)) == [Code.OK]
    assert await gone(scene, first)
    assert await read(scene, second) == OTHER
    assert await scene.cancel("m") == [Code.OK]
    assert await gone(scene, second)


async def a_large_body_follows_its_message(scene: Scene) -> None:
    """A body moves to the dead-letter topic and back; it is removed with the last message, of any topic, that refers to
    it.
    """
    dead = await scene.new_topic("mail.dead", buckets=3)
    reference = await upload(scene)
    await put(scene, "m", reference)
    lease = await scene.lease()
    assert await scene.reject(lease, dead_letter=dead) == [Code.OK]
    assert (await scene.get("m", dead)).body == reference.pack()
    assert not await gone(scene, reference)
    assert await scene.redrive(dead, "m") == [Code.OK]
    assert (await scene.get("m")).body == reference.pack()
    assert await put(scene, "m", reference, dead) is Code.OK
    assert await scene.cancel("m") == [Code.OK]
    assert not await gone(scene, reference)
    await scene.storage.drop_topic(dead, scene.now, scene.context)
    assert await gone(scene, reference)


async def a_transaction_refers_to_large_bodies(scene: Scene) -> None:
    """A transaction with one invalid reference changes nothing, and none of its bodies is kept."""
    out = await scene.new_topic("out")
    await scene.put("edited", 5_000)
    reference, other = await upload(scene), await upload(scene, OTHER)
    unknown = Reference(reference.size, reference.stored, reference.digest, other.number + 100)

    def creating(topic: Topic, body: Reference) -> Create:
        batch = scene.batch(["made"], delays=[0], bodies=[body.pack()])
        batch.large = True
        return Create(topic, batch)

    edit = Edit(scene.topic, OWNER, Edits(["edited"], bodies=[other.pack()], large=True))
    refused = await scene.transact(edit, creating(scene.topic, reference), creating(out, unknown))
    assert (refused.code, refused.step) == (Code.BODY_MISSING, 2)
    assert await scene.find("made") is None
    assert await scene.transact(edit, creating(scene.topic, reference), creating(out, reference)) == Verdict()
    assert (await scene.get("edited")).body == other.pack()
    await scene.cancel("made")
    assert not await gone(scene, reference)
    assert await read(scene, reference) == BODY


async def a_large_body_is_found_where_bodies_are_shared(scene: Scene) -> None:
    """Two uploads of the same bytes are one body in such a topic, and its digest is found before it is sent."""
    shared = await scene.new_topic("shared", share_bodies=True)
    parts = list(sealed_parts(BODY))
    declared = declare(parts, len(BODY))
    bodies = scene.storage.bodies
    assert await bodies.find(shared, BUCKET, declared, scene.now) is None
    first, again = await upload(scene, topic=shared), await upload(scene, topic=shared)
    assert first == again
    assert await bodies.find(shared, BUCKET, declared, scene.now) == first
    unlike = Declared(declared.size, declared.stored, bytes(32))
    assert await bodies.find(shared, BUCKET, unlike, scene.now) is None
    assert await upload(scene, OTHER, topic=shared) != first
    # A client that found the body has time to refer to it, whatever the age of the body.
    late = scene.now + limits.UPLOAD_KEEP_MS - 1
    assert await bodies.find(shared, BUCKET, declared, late) == first
    await bodies.reclaim(late + limits.UPLOAD_KEEP_MS - 1)
    assert await read(scene, first) == BODY


async def a_body_that_was_found_outlives_its_last_message(scene: Scene) -> None:
    """A client that found a body may refer to it for UPLOAD_KEEP_MS, although its messages are deleted meanwhile."""
    shared = scene.topic = await scene.new_topic("shared", share_bodies=True)
    parts = list(sealed_parts(BODY))
    declared = declare(parts, len(BODY))
    reference = await upload(scene, topic=shared)
    await put(scene, "m", reference)
    scene.advance(2 * limits.UPLOAD_KEEP_MS)
    assert await scene.storage.bodies.find(shared, BUCKET, declared, scene.now) == reference
    scene.advance(1)
    assert await scene.cancel("m") == [Code.OK]
    scene.advance(limits.UPLOAD_KEEP_MS - 2)
    await scene.storage.bodies.reclaim(scene.now)
    assert await read(scene, reference) == BODY
    assert await put(scene, "n", reference) is Code.OK
    assert await scene.cancel("n") == [Code.OK]
    assert await gone(scene, reference)


async def the_journal_tells_the_size_of_a_large_body(scene: Scene) -> None:
    """The journal has the size of the body itself, and a checksum that does not depend on where the body is stored."""
    first, again = await upload(scene), await upload(scene)
    await put(scene, "a", first)
    await put(scene, "b", again)
    events = [event for record in await read_journal(scene.storage) for event in events_of(record)]
    told = [(event.id, event.body_bytes) for event in events if event.kind == "created"]
    assert told == [("a", len(BODY)), ("b", len(BODY))]
    assert len({event.body_crc for event in events if event.kind == "created"}) == 1


async def a_snapshot_has_the_reference(scene: Scene) -> None:
    """A scan returns the stored reference."""
    reference = await upload(scene)
    await put(scene, "m", reference)
    snapshot = await scene.storage.snapshot(scene.topic, scene.now)
    found = [
        body
        async for portion in snapshot.scan(range(scene.topic.settings.buckets), Filter(), bodies=True)
        for body in portion.bodies or ()
    ]
    snapshot.close()
    assert found == [reference.pack()]
