"""The journal: every change writes one record of its effects, in the same commit (guarantee 9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from dejaq import limits
from dejaq.domain.changes import Create, Delete, Edits, Release
from dejaq.domain.context import CallContext, Principal
from dejaq.domain.headers import encode_headers
from dejaq.errors import Code
from dejaq.storage.base import apply_one
from dejaq.testing.conformance.scene import (
    LEASE_MS,
    OWNER,
    WORKER,
    Scene,
    numbered,
    refusal_of,
)
from dejaq.testing.model.replay import Replay, ReplayedEvent, described, events_of, read_journal


@dataclass(slots=True)
class _Place:
    """How far the journal was read."""

    number: int = 0


async def _last_change(scene: Scene, place: _Place) -> list[ReplayedEvent]:
    """The events of the next record, or of one record in each part of the store; their numbers must be consecutive."""
    before = place.number
    records = await read_journal(scene.storage, before)
    place.number += len(records)
    assert 1 <= len(records) <= scene.storage.capabilities.parts, f"a change wrote {len(records)} records"
    for number, record in enumerate(records, start=before + 1):
        assert record.sequence == number, f"record {record.sequence} follows {number - 1}"
        assert record.at_ms == scene.now, "a record has the time of its change"
    # From these figures an exporter knows that there are records to export.
    figures: dict[str, float] = getattr(scene.storage, "stats", dict)()
    told = figures.get("journal_sequence")
    assert told in (None, place.number), f"the figures say {told} of {place.number} records"
    return [event for record in records for event in events_of(record)]


async def _sequence(scene: Scene) -> int:
    records = await read_journal(scene.storage)
    return records[-1].sequence if records else 0


def _of_kind(events: Sequence[ReplayedEvent], kind: str) -> list[ReplayedEvent]:
    assert {event.kind for event in events} == {kind}, f"{[event.kind for event in events]} instead of {kind}"
    return list(events)


async def creates_are_told(scene: Scene) -> None:
    """A batch is one record with the id, time, priority, size and checksum of every message created."""
    bodies = [b"", b"a", b"bb" * 40_000]
    batch = scene.batch(["a", "b", "c"], delays=[5, 6, 7], bodies=bodies, priorities=[0, -3, 9])
    assert await scene.create(batch) == [Code.OK] * 3
    events = sorted(_of_kind(await _last_change(scene, _Place()), "created"), key=lambda event: event.id)
    assert [(e.id, e.ts, e.priority or 0) for e in events] == [
        ("a", scene.now + 5, 0),
        ("b", scene.now + 6, -3),
        ("c", scene.now + 7, 9),
    ]
    assert [(e.body_bytes, e.body_crc) for e in events] == [(len(body), crc32(body)) for body in bodies]
    assert {(e.topic, e.actor, e.lease) for e in events} == {("mail", OWNER, 0)}


async def generated_ids_are_told(scene: Scene) -> None:
    """The record contains generated ids in a form from which each id can be computed."""
    ids = await scene.generate([1, 2, 3, 90_000], bucket=3)
    events = _of_kind(await _last_change(scene, _Place()), "created")
    assert [event.id for event in events] == ids
    assert [event.ts for event in events] == [scene.now + delay for delay in (1, 2, 3, 90_000)]


async def refused_rows_are_not_told(scene: Scene) -> None:
    """The record of a batch has only the created messages, and a batch of repeats and refusals has no record."""
    await scene.put("taken")
    before = _Place(await _sequence(scene))
    batch = scene.batch(["taken", "new", "refused", "also"], delays=[9, 9, 9, 9], refused={2: Code.TOO_FAR})
    assert await scene.create(batch) == [Code.ID_TAKEN, Code.OK, Code.TOO_FAR, Code.OK]
    assert {event.id for event in await _last_change(scene, before)} == {"new", "also"}
    after = await _sequence(scene)
    again = [Code.ID_TAKEN, Code.ALREADY_EXISTS, Code.TOO_FAR, Code.ALREADY_EXISTS]
    assert await scene.create(batch) == again
    assert await scene.cancel("nobody", "taken", owner="stranger") == [Code.NOT_FOUND, Code.NOT_OWNER]
    assert await scene.edit(Edits(["nobody"], ts=[scene.now])) == [Code.NOT_FOUND]
    assert await _sequence(scene) == after


async def leases_are_told(scene: Scene) -> None:
    """A lease is one record with its id, end and holder, and the due time and attempt of each message."""
    await scene.generate([-2, -1])
    await scene.put("n", -1)
    before = _Place(await _sequence(scene))
    lease = await scene.lease()
    events = _of_kind(await _last_change(scene, before), "leased")
    told = sorted((e.id, e.ts, 1 if e.attempts is None else e.attempts) for e in events)
    assert told == sorted((message_id, ts, 1) for message_id, ts in zip(lease.ids(), lease.ts, strict=True))
    assert {(e.actor, e.lease, e.expires) for e in events} == {(WORKER, lease.lease_id, lease.expires)}


async def settlements_are_told(scene: Scene) -> None:
    """Extend, release, recall and delete each write one record of the rows that were held."""
    await scene.put_many(6)
    lease = await scene.lease()
    ids = lease.ids()
    before = _Place(await _sequence(scene))
    assert await scene.extend(lease, [(0, 2)], by=90_000) == [Code.OK] * 2
    events = _of_kind(await _last_change(scene, before), "extended")
    assert sorted(e.id for e in events) == sorted(ids[:2])
    assert {(e.expires, e.lease, e.actor) for e in events} == {(scene.now + 90_000, lease.lease_id, WORKER)}
    assert await scene.release(lease, [(2, 4)], delay=[500, 700]) == [Code.OK] * 2
    events = _of_kind(await _last_change(scene, before), "released")
    assert {(e.id, e.ts) for e in events} == {(ids[2], scene.now + 500), (ids[3], scene.now + 700)}
    assert await scene.recall(lease, [(4, 5)]) == [Code.OK]
    events = _of_kind(await _last_change(scene, before), "recalled")
    assert [(e.id, e.lease) for e in events] == [(ids[4], lease.lease_id)]
    assert await scene.delete(lease) == [Code.OK] * 2 + [Code.LEASE_LOST] * 3 + [Code.OK]
    events = _of_kind(await _last_change(scene, before), "deleted")
    assert sorted(e.id for e in events) == sorted([ids[0], ids[1], ids[5]])


async def lost_settlements_are_not_told(scene: Scene) -> None:
    """A settlement that is refused, because the consumer does not hold the rows, writes nothing."""
    await scene.put_many(2)
    lease = await scene.lease()
    before = await _sequence(scene)
    for settle in (scene.delete, scene.extend, scene.release, scene.recall):
        assert await settle(lease, consumer="stranger") == [Code.LEASE_LOST] * 2
    beyond = apply_one(scene.storage, Delete(scene.topic, lease.lease_id, WORKER, [(0, 9)]), scene.now, scene.context)
    assert await refusal_of(beyond) is Code.INVALID_ARGUMENT
    assert await _sequence(scene) == before


async def the_time_of_handing_over_is_told(scene: Scene) -> None:
    """A delete and a release record when user code got the messages: one time for all rows, or one per row."""
    await scene.put_many(5)
    lease = await scene.lease()
    ids, us = lease.ids(), scene.now * 1_000
    before = _Place(await _sequence(scene))
    rows = numbered(lease, [(0, 2)])
    await apply_one(
        scene.storage, Delete(scene.topic, lease.lease_id, WORKER, rows, handed_us=[us + 5]), scene.now, scene.context
    )
    events = _of_kind(await _last_change(scene, before), "deleted")
    assert {(e.id, e.handed_us) for e in events} == {(ids[0], us + 5), (ids[1], us + 5)}
    rows = numbered(lease, [(2, 4)])
    await apply_one(
        scene.storage,
        Release(scene.topic, lease.lease_id, WORKER, rows, scene.now + 1, handed_us=[us + 7, us + 8]),
        scene.now,
        scene.context,
    )
    events = _of_kind(await _last_change(scene, before), "released")
    assert {(e.id, e.handed_us) for e in events} == {(ids[2], us + 7), (ids[3], us + 8)}
    assert await scene.delete(lease, [(4, 5)]) == [Code.OK]
    assert [e.handed_us for e in await _last_change(scene, before)] == [None]


async def the_time_of_handing_over_stays_with_its_row(scene: Scene) -> None:
    """When some of the rows are lost, the others keep the times that were given for them."""
    await scene.put_many(3)
    lease = await scene.lease()
    assert await scene.delete(lease, [(1, 2)]) == [Code.OK]
    before = _Place(await _sequence(scene))
    times = [scene.now * 1_000 + place for place in range(3)]
    await apply_one(
        scene.storage,
        Delete(scene.topic, lease.lease_id, WORKER, numbered(lease, [(0, 3)]), handed_us=times),
        scene.now,
        scene.context,
    )
    told = {(e.id, e.handed_us) for e in await _last_change(scene, before)}
    assert told == {(lease.ids()[0], times[0]), (lease.ids()[2], times[2])}


async def owners_changes_are_told(scene: Scene) -> None:
    """A move, an edit and a cancel each write one record with the new values of the changed messages."""
    await scene.put_many(4, 1_000)
    before = _Place(await _sequence(scene))
    assert await scene.edit(Edits(["m-00000", "m-00001"], ts=[scene.now + 7, None])) == [Code.OK] * 2
    events = _of_kind(await _last_change(scene, before), "moved")
    assert {(e.id, e.ts) for e in events} == {("m-00000", scene.now + 7), ("m-00001", scene.now + 1_000)}
    large = b"x" * (limits.INLINE_BODY_BYTES_MAX + 1)
    edits = Edits(["m-00001", "m-00002"], bodies=[large, None], priorities=[None, 4])
    assert await scene.edit(edits) == [Code.OK] * 2
    events = sorted(_of_kind(await _last_change(scene, before), "edited"), key=lambda event: event.id)
    assert [(e.id, e.priority, e.actor) for e in events] == [("m-00001", 0, OWNER), ("m-00002", 4, OWNER)]
    kept = b"body 2"
    told = [(e.body_bytes, e.body_crc) for e in events]
    assert told == [(len(large), crc32(large)), (len(kept), crc32(kept))]
    assert await scene.edit(Edits(["m-00001"], bodies=[None])) == [Code.OK]
    (event,) = _of_kind(await _last_change(scene, before), "edited")
    assert (event.body_bytes, event.body_crc) == (len(large), crc32(large))
    assert await scene.edit(Edits(["m-00003"], headers=[encode_headers({"a": "b"})])) == [Code.OK]
    _of_kind(await _last_change(scene, before), "edited")
    assert await scene.cancel("m-00000", "gone", "m-00003") == [Code.OK, Code.NOT_FOUND, Code.OK]
    events = _of_kind(await _last_change(scene, before), "cancelled")
    assert {event.id for event in events} == {"m-00000", "m-00003"}


async def the_end_of_a_lease_is_told_once(scene: Scene) -> None:
    """An expired lease is recorded before any other change of its messages, once per message."""
    await scene.put_many(3)
    lease = await scene.lease(lease_ms=1_000)
    assert await scene.extend(lease, [(2, 3)], by=5_000) == [Code.OK]
    before = _Place(await _sequence(scene))
    scene.advance(1_000)
    again = await scene.lease("worker-2", rows_max=1)
    events = await _last_change(scene, before)
    assert [event.kind for event in events] == ["expired", "expired", "leased"]
    assert {e.id for e in events[:2]} == set(lease.ids()[:2])
    assert {(e.lease, e.actor, e.expires) for e in events[:2]} == {(lease.lease_id, WORKER, lease.expires)}
    assert (events[2].id, events[2].ts, events[2].attempts) == (again.ids()[0], lease.expires, 2)
    (left,) = set(lease.ids()[:2]) - set(again.ids())
    assert await scene.cancel(left) == [Code.OK]
    assert [(e.kind, e.id) for e in await _last_change(scene, before)] == [("cancelled", left)]
    scene.advance(4_000)
    assert await scene.edit(Edits([lease.ids()[2]], ts=[scene.now + 9])) == [Code.OK]
    events = await _last_change(scene, before)
    assert [(e.kind, e.id) for e in events] == [("expired", lease.ids()[2]), ("moved", lease.ids()[2])]


async def a_topic_may_go_untold(scene: Scene) -> None:
    """A topic whose setting `journal` is off writes no records, and uses no sequence numbers."""
    silent = replace(scene.topic, name="silent", number=await scene.storage.next_topic_number())
    silent = replace(silent, settings=replace(silent.settings, journal=False))
    await scene.storage.put_topic(silent, scene.context)
    await scene.put("told")
    await scene.put("untold", topic=silent)
    lease = await scene.try_lease(topic=silent, lease_ms=1_000)
    assert lease is not None
    scene.advance(1_000)
    again = await scene.try_lease("worker-2", topic=silent)
    assert again is not None
    await apply_one(scene.storage, Delete(silent, again.lease_id, "worker-2", None), scene.now, scene.context)
    await scene.put("also-told")
    records = await read_journal(scene.storage)
    assert [record.sequence for record in records] == [1, 2]
    assert {event.id for record in records for event in events_of(record)} == {"told", "also-told"}


async def a_dropped_topic_is_told(scene: Scene) -> None:
    """Dropping a topic is one event for all of its messages, recorded once; a topic without a
    journal records nothing.
    """
    await scene.put_many(3)
    before = _Place(await _sequence(scene))
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    (event,) = _of_kind(await _last_change(scene, before), "topic_dropped")
    assert (event.topic, event.id) == (scene.topic.name, "")
    replay = Replay()
    for record in await read_journal(scene.storage):
        replay.follow(events_of(record))
    assert replay.standing(scene.topic.name, scene.now) == {}
    silent = replace(scene.topic, name="silent", number=await scene.storage.next_topic_number())
    silent = replace(silent, settings=replace(silent.settings, journal=False))
    await scene.storage.put_topic(silent, scene.context)
    await scene.storage.drop_topic(silent, scene.now, scene.context)
    assert await _sequence(scene) == before.number


async def records_are_read_in_steps(scene: Scene) -> None:
    """Reading after a sequence returns the records that follow, about as many bytes as requested,
    at least one record.
    """
    for number in range(20):
        await scene.put(f"m-{number}")
    every = [record.sequence for record in await read_journal(scene.storage)]
    assert every == list(range(1, 21))
    assert len(await scene.storage.journal(0, 1)) == 1
    some = await scene.storage.journal(5, 200)
    assert 1 <= len(some) < 15
    assert (await read_journal(scene.storage, 5))[0].sequence == 6
    assert await scene.storage.journal(20, 1_000_000) == []


async def trimming_keeps_the_numbers(scene: Scene) -> None:
    """Trimmed records are gone, later records stay, and no number is used again."""
    for number in range(5):
        await scene.put(f"m-{number}")
    await scene.storage.trim_journal(3)
    assert [record.sequence for record in await read_journal(scene.storage)] == [4, 5]
    await scene.storage.trim_journal(5)
    await scene.storage.trim_journal(2)
    assert await read_journal(scene.storage) == []
    await scene.put("next")
    assert [record.sequence for record in await read_journal(scene.storage)] == [6]
    assert await refusal_of(scene.storage.trim_journal(7)) is Code.INVALID_ARGUMENT
    assert [record.sequence for record in await read_journal(scene.storage)] == [6]


async def the_journal_alone_tells_what_stands(scene: Scene) -> None:
    """The events from the first record to the last produce exactly the messages that can be queried."""
    await scene.put_many(6)
    await scene.generate([-5, 0, 1_000], bucket=2)
    lease = await scene.lease(lease_ms=1_000)
    assert await scene.delete(lease, [(0, 2)]) == [Code.OK] * 2
    assert await scene.release(lease, [(2, 4)], delay=[0, 4_000]) == [Code.OK] * 2
    scene.advance(1_000)
    second = await scene.lease("worker-2", rows_max=3)
    assert await scene.recall(second, [(1, 2)]) == [Code.OK]
    assert await scene.extend(second, [(0, 1)], by=2 * LEASE_MS) == [Code.OK]
    await scene.edit(Edits(lease.ids(), bodies=[b"new"] * len(lease), ts=[scene.now + 50] * len(lease)))
    scene.advance(LEASE_MS)
    await scene.cancel(*lease.ids()[4:6])
    replay = Replay()
    for record in await read_journal(scene.storage):
        replay.follow(events_of(record))
    assert replay.standing("mail", scene.now) == described(await scene.browse(), scene.now)


async def dead_letters_are_told(scene: Scene) -> None:
    """One record has the message that left and the dead letter that was created, so both topics balance."""
    dead = await scene.new_topic("mail.dead")
    scene.topic = await scene.new_topic("limited", max_attempts=1)
    await scene.put("taken", topic=dead)
    await scene.put("taken", body=b"rejected", priority=5)
    rejected = await scene.lease(lease_ms=1_000)
    before = _Place(await _sequence(scene))
    assert await scene.reject(rejected, dead_letter=dead) == [Code.OK]
    left, came = await _last_change(scene, before)
    assert (left.kind, left.topic, left.id) == ("dead_lettered", "limited", "taken")
    assert (left.actor, left.lease) == (WORKER, rejected.lease_id)
    assert (came.kind, came.topic, came.id, came.actor) == ("created", "mail.dead", f"taken.{scene.now}", OWNER)
    assert (came.ts, came.priority, came.body_crc) == (scene.now, 5, crc32(b"rejected"))
    await scene.put("lost")
    await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    before = _Place(await _sequence(scene))
    assert await scene.try_lease(dead_letter=dead) is not None
    kinds = [(e.kind, e.topic, e.actor) for e in await _last_change(scene, before)]
    assert kinds == [("expired", "limited", WORKER), ("dead_lettered", "limited", ""), ("created", "mail.dead", OWNER)]
    before = _Place(await _sequence(scene))
    assert await scene.redrive(dead, "lost") == [Code.OK]
    kinds = [(e.kind, e.topic, e.actor) for e in await _last_change(scene, before)]
    assert kinds == [("cancelled", "mail.dead", OWNER), ("created", "limited", OWNER)]
    replay = Replay()
    for record in await read_journal(scene.storage):
        replay.follow(events_of(record))
    for topic in (scene.topic, dead):
        assert replay.standing(topic.name, scene.now) == described(await scene.browse_of(topic), scene.now)


async def a_back_off_is_told(scene: Scene) -> None:
    """The event at the end of a lease has the new times of its rows."""
    scene.topic = await scene.new_topic("patient", expiry_backoff="fixed:5s")
    await scene.put_many(2)
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    before = _Place(await _sequence(scene))
    assert await scene.try_lease() is None
    events = _of_kind(await _last_change(scene, before), "expired")
    assert {(e.lease, e.expires, e.ts) for e in events} == {(lease.lease_id, scene.now, scene.now + 5_000)}
    assert len(events) == 2


async def every_record_names_the_principal(scene: Scene) -> None:
    """The record of a change names the principal of its call; the record of an anonymous call names none."""
    dead = await scene.new_topic("dead")
    await scene.create(scene.batch(list("abcdefghij"), delays=[0] * 10))
    (anonymous,) = {record.principal for record in await read_journal(scene.storage)}
    assert anonymous == ""
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "creator of natural ids": lambda: scene.put("k", 5),
        "creator of generated ids": lambda: scene.generate([90_000, 90_001], bucket=1),
        "creator of some rows": lambda: scene.create(scene.batch(["k", "l"], delays=[5, 5])),
        "editor": lambda: scene.edit(Edits(["a"], bodies=[b"new"])),
        "mover": lambda: scene.edit(Edits(["a"], ts=[scene.now + 7])),
        "canceller": lambda: scene.cancel("a"),
        "consumer": scene.lease,
    }
    await _check_principals(scene, changes)
    (lease,) = await scene.storage.leases_of(scene.topic, WORKER, scene.now)
    changes = {
        "extender": lambda: scene.extend(lease, [(0, 1)], by=2 * LEASE_MS),
        "releaser": lambda: scene.release(lease, [(0, 1)], delay=90_000),
        "recaller": lambda: scene.recall(lease, [(1, 2)]),
        "rejecter": lambda: scene.reject(lease, [(2, 3)], dead_letter=dead),
        "redriver": lambda: scene.redrive(dead, lease.ids()[2]),
        "deleter": lambda: scene.delete(lease, [(3, 5)]),
        "deleter of lost rows too": lambda: scene.delete(lease, [(3, 6)]),
    }
    await _check_principals(scene, changes)
    scene.advance(LEASE_MS)
    await _check_principals(scene, {"next consumer": lambda: scene.lease("worker-2")})
    await _check_principals(scene, {"remover": lambda: scene.storage.drop_topic(scene.topic, scene.now, scene.context)})


async def a_transaction_names_the_principal(scene: Scene) -> None:
    """The record of a transaction names the principal of its call."""
    scene.topic = await scene.new_topic("steps", buckets=1)
    await _check_principals(
        scene, {"transactor": lambda: scene.transact(Create(scene.topic, scene.batch(["a"], delays=[0])))}
    )


async def _check_principals(scene: Scene, changes: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
    """Make each change under the principal of its name; the new records have this name."""
    for name, change in changes.items():
        before = await _sequence(scene)
        scene.context = CallContext(f"request of the {name}", "a peer", Principal(name))
        await change()
        records = await read_journal(scene.storage, before)
        assert {record.principal for record in records} == {name}
