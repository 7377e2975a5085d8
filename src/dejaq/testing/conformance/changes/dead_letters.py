"""Dead letters: a message that is leased too often, or is rejected, is moved to another topic and never dropped."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain import dead_letter as told
from dejaq.domain.batch import LeaseSet
from dejaq.domain.changes import Edits, Redrive, Reject
from dejaq.domain.dead_letter import Cause
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code
from dejaq.storage.base import apply_one
from dejaq.testing.conformance.scene import OWNER, WORKER, Scene, attempts_of, refusal_of


async def _limited(scene: Scene, max_attempts: int = 2, *, expiry_backoff: str = "") -> Topic:
    """Give the scene a topic with a limit of attempts; returns its dead-letter topic."""
    scene.topic = await scene.new_topic("limited", max_attempts=max_attempts, expiry_backoff=expiry_backoff)
    return await scene.new_topic("limited.dead", buckets=3)


async def _lose(scene: Scene, dead: Topic, times: int, lease_ms: int = 1_000) -> None:
    """Lease the due messages and let the lease expire, so many times."""
    for _ in range(times):
        lease = await scene.try_lease(lease_ms=lease_ms, dead_letter=dead)
        assert lease is not None, "nothing was leased although something is due"
        assert lease.dead_lettered == 0
        scene.advance(lease_ms)


async def _lease_of_exhausted(scene: Scene, dead: Topic) -> LeaseSet:
    lease = await scene.try_lease(dead_letter=dead)
    assert lease is not None, "an exhausted message was neither leased nor moved"
    return lease


def _own_headers(message: Message) -> dict[str, str]:
    return {key: value for key, value in message.headers.items() if not key.startswith(told.PREFIX)}


async def a_message_leased_too_often_is_moved(scene: Scene) -> None:
    """Instead of a lease beyond the limit, the complete message moves to the dead-letter topic with its history."""
    dead = await _limited(scene)
    born = scene.now
    await scene.put("n", -5, body=b"kept", priority=-7, headers={"k": "v"}, owner="mail")
    (generated,) = await scene.generate([0], bucket=5)
    await _lose(scene, dead, 2)
    lease = await _lease_of_exhausted(scene, dead)
    assert (len(lease), lease.dead_lettered) == (0, 2)
    assert await scene.count() == 0
    assert await scene.find("n") is None
    found = await scene.get("n", dead)
    assert (found.body, found.priority, found.producer_group) == (b"kept", -7, "mail")
    assert (found.ts, found.attempts, found.lock_consumer) == (scene.now, 0, "")
    assert dict(found.headers) == {
        "k": "v",
        told.REASON: told.EXHAUSTED,
        told.TOPIC: "limited",
        told.ATTEMPTS: "2",
        told.AT: str(scene.now),
        told.DUE: str(scene.now),
        told.FIRST_LEASE: str(born),
        told.LAST_LEASE: str(born + 1_000),
        told.CONSUMER: WORKER,
    }
    assert (await scene.get(generated, dead)).body == b"body 0"
    assert await scene.try_lease(dead_letter=dead) is None


async def a_dead_letter_is_a_message_like_any_other(scene: Scene) -> None:
    """In the dead-letter topic a message can be leased, changed by its owner and deleted."""
    dead = await _limited(scene, 1)
    await scene.put("n")
    (generated,) = await scene.generate([0])
    await _lose(scene, dead, 1)
    await _lease_of_exhausted(scene, dead)
    scene.topic = dead
    assert await scene.edit(Edits([generated], priorities=[-1])) == [Code.OK]
    lease = await scene.lease()
    assert lease.ids() == [generated, "n"]
    assert attempts_of(lease) == [1, 1]
    assert await scene.delete(lease) == [Code.OK] * 2


async def without_a_place_there_is_no_limit(scene: Scene) -> None:
    """A request without a dead-letter topic leases without a limit of attempts."""
    dead = await _limited(scene, 1)
    await scene.put("n")
    await _lose(scene, dead, 1)
    assert attempts_of(await scene.lease()) == [2]


async def the_living_are_leased_beside_the_dead(scene: Scene) -> None:
    """One step moves the exhausted messages and leases the others; both count as rows."""
    dead = await _limited(scene, 1)
    old = await scene.put_many(3, -10, name="old")
    await _lose(scene, dead, 1)
    new = await scene.put_many(3, 1, name="new")
    scene.advance(1)
    lease = await scene.try_lease(dead_letter=dead, rows_max=4)
    assert lease is not None
    assert (lease.dead_lettered, len(lease)) == (3, 1)
    assert {message.id for message in await scene.browse_of(dead)} == set(old)
    rest = await scene.lease()
    assert sorted(lease.ids() + rest.ids()) == new


async def released_messages_have_had_an_attempt(scene: Scene) -> None:
    """A released lease counts as an attempt and its history is kept; a recalled lease does not count."""
    dead = await _limited(scene, 2)
    born = scene.now
    await scene.put("n")
    assert await scene.recall(await scene.lease()) == [Code.OK]
    assert await scene.release(await scene.lease(), delay=100) == [Code.OK]
    scene.advance(100)
    assert await scene.release(await scene.lease(), delay=100) == [Code.OK]
    scene.advance(100)
    assert (await _lease_of_exhausted(scene, dead)).dead_lettered == 1
    headers = (await scene.get("n", dead)).headers
    assert headers[told.ATTEMPTS] == "2"
    assert headers[told.FIRST_LEASE] == str(born)
    assert headers[told.LAST_LEASE] == str(born + 100)
    assert told.CONSUMER not in headers


async def a_taken_id_is_not_dropped(scene: Scene) -> None:
    """When the dead-letter topic has the id already, the message gets another id that contains the time."""
    dead = await _limited(scene, 1)
    long = "x" * limits.ID_CHARS_MAX
    for name in ("n", long):
        await scene.put(name, topic=dead, body=b"there before")
        await scene.put(name, body=b"dead")
    assert await scene.reject(await scene.lease(), dead_letter=dead) == [Code.OK] * 2
    await scene.put("n", body=b"dead again")
    assert await scene.reject(await scene.lease(), dead_letter=dead) == [Code.OK]
    found = {message.id: message for message in await scene.browse_of(dead)}
    assert found["n"].body == found[long].body == b"there before"
    assert found[f"n.{scene.now}"].body == b"dead"
    assert found[f"n.{scene.now}-2"].body == b"dead again"
    cut = long[: limits.ID_CHARS_MAX - len(str(scene.now)) - 1] + f".{scene.now}"
    assert found[cut].headers[told.ID] == long
    assert found[f"n.{scene.now}"].headers[told.ID] == "n"
    assert told.ID not in found["n"].headers
    assert len(found) == 5


async def large_bodies_are_moved_whole(scene: Scene) -> None:
    """A body that is stored separately moves with its message, to the dead-letter topic and back."""
    dead = await _limited(scene, 1)
    body = bytes(range(256)) * 256
    await scene.put("n", body=body)
    assert await scene.reject(await scene.lease(), dead_letter=dead) == [Code.OK]
    assert (await scene.get("n", dead)).body == body
    assert await scene.redrive(dead, "n") == [Code.OK]
    assert (await scene.get("n")).body == body


async def reject_moves_at_once(scene: Scene) -> None:
    """A consumer's rejection moves the rows that it holds, with its reason and error; the others stay leased."""
    dead = await _limited(scene, 9)
    ids = await scene.put_many(4)
    lease = await scene.lease()
    leased = scene.now
    scene.advance(10)
    cause = Cause("not JSON\nat all", "ValueError: \u00fc", "Traceback\n  line 1")
    assert await scene.reject(lease, [(1, 3)], dead_letter=dead, cause=cause) == [Code.OK] * 2
    assert await scene.reject(lease, [(1, 3)], dead_letter=dead) == [Code.LEASE_LOST] * 2
    assert [m.id for m in await scene.browse_of(dead)] == [lease.ids()[1], lease.ids()[2]]
    headers = (await scene.get(lease.ids()[1], dead)).headers
    assert headers[told.REASON] == "not JSON\nat all"
    assert (headers[told.ERROR], headers[told.TRACEBACK]) == (cause.error, cause.traceback)
    assert headers[told.ATTEMPTS] == "1"
    assert headers[told.DUE] == headers[told.FIRST_LEASE] == headers[told.LAST_LEASE] == str(leased)
    assert headers[told.CONSUMER] == WORKER
    assert await scene.delete(lease) == [Code.OK, Code.LEASE_LOST, Code.LEASE_LOST, Code.OK]
    assert len(ids) == 4


async def only_the_holder_rejects(scene: Scene) -> None:
    """A consumer without the lease, or with an earlier lease, moves nothing (guarantee 3)."""
    dead = await _limited(scene, 9)
    await scene.put("n")
    lease = await scene.lease(lease_ms=1_000)
    assert await scene.reject(lease, dead_letter=dead, consumer="stranger") == [Code.LEASE_LOST]
    scene.advance(1_000)
    assert await scene.reject(lease, dead_letter=dead) == [Code.LEASE_LOST]
    assert await scene.browse_of(dead) == []
    assert await scene.count() == 1


async def a_missing_dead_letter_topic_loses_nothing(scene: Scene) -> None:
    """Without the topic, or while it is deleted, the step is refused and all messages stay."""
    dead = await _limited(scene, 1)
    await scene.put("n")
    lease = await scene.lease(lease_ms=1_000)
    await scene.storage.put_topic(dead.in_state(TopicStage.DELETING), scene.context)
    answer = apply_one(
        scene.storage, Reject(scene.topic, lease.lease_id, WORKER, None, dead, Cause("why")), scene.now, scene.context
    )
    assert await refusal_of(answer) is Code.TOPIC_NOT_FOUND
    await scene.storage.drop_topic(dead, scene.now, scene.context)
    scene.advance(1_000)
    assert await refusal_of(scene.try_lease(dead_letter=dead)) is Code.TOPIC_NOT_FOUND
    assert (await scene.get("n")).attempts == 1
    again = await scene.new_topic("limited.dead")
    assert (await _lease_of_exhausted(scene, again)).dead_lettered == 1
    assert await scene.browse_of(dead) == []


async def redrive_brings_a_message_back(scene: Scene) -> None:
    """A redriven message has its id, headers and owner again, is due now, and has zero attempts."""
    dead = await _limited(scene, 1)
    await scene.put("n", topic=dead)
    await scene.put("n", -5, body=b"kept", priority=3, headers={"k": "v"}, owner="mail")
    (generated,) = await scene.generate([0], bucket=7)
    lease = await scene.lease()
    assert await scene.reject(lease, dead_letter=dead) == [Code.OK] * 2
    renamed = f"n.{scene.now}"
    scene.advance(5_000)
    assert await scene.redrive(dead, renamed, generated, "nobody", renamed) == [
        Code.OK,
        Code.OK,
        Code.NOT_FOUND,
        Code.NOT_FOUND,
    ]
    found = await scene.get("n")
    assert (found.body, found.priority, found.producer_group) == (b"kept", 3, "mail")
    assert (found.ts, found.attempts, dict(found.headers)) == (scene.now, 0, {"k": "v"})
    assert [m.id for m in await scene.browse_of(dead)] == ["n"]
    assert (await scene.get(generated)).producer_group == OWNER
    again = await scene.lease()
    assert sorted(again.ids()) == sorted(["n", generated])
    assert attempts_of(again) == [1, 1]


async def redrive_meets_conditions(scene: Scene) -> None:
    """A leased message stays in the dead-letter topic, and so does a message whose id is taken in
    the original topic.
    """
    dead = await _limited(scene, 1)
    for name in ("held", "taken", "free"):
        await scene.put(name, body=b"dead")
    assert await scene.reject(await scene.lease(), dead_letter=dead) == [Code.OK] * 3
    await scene.put("taken", body=b"new")
    origin = scene.topic
    scene.topic = dead
    held = await scene.try_lease(buckets=range(3), lease_ms=1_000)
    assert held is not None
    rows = [(place, place + 1) for place, name in enumerate(held.ids()) if name != "held"]
    assert await scene.recall(held, rows) == [Code.OK] * 2
    scene.topic = origin
    assert await scene.redrive(dead, "held", "taken", "free") == [Code.LEASED, Code.ID_TAKEN, Code.OK]
    assert (await scene.get("taken")).body == b"new"
    assert (await scene.get("taken", dead)).body == b"dead"
    scene.advance(1_000)
    assert await scene.redrive(dead, "held") == [Code.OK]


async def redrive_to_a_missing_topic_loses_nothing(scene: Scene) -> None:
    """When the target topic is gone or is the same topic, the whole call is refused and the dead letters stay."""
    dead = await _limited(scene, 1)
    await scene.put("n")
    assert await scene.reject(await scene.lease(), dead_letter=dead) == [Code.OK]
    before = await scene.browse_of(dead)
    origin = scene.topic
    await scene.storage.put_topic(origin.in_state(TopicStage.DELETING), scene.context)
    assert (
        await refusal_of(apply_one(scene.storage, Redrive(dead, origin, ["n"]), scene.now, scene.context))
        is Code.TOPIC_NOT_FOUND
    )
    await scene.storage.drop_topic(origin, scene.now, scene.context)
    assert (
        await refusal_of(apply_one(scene.storage, Redrive(dead, origin, ["n"]), scene.now, scene.context))
        is Code.TOPIC_NOT_FOUND
    )
    assert (
        await refusal_of(apply_one(scene.storage, Redrive(dead, dead, ["n"]), scene.now, scene.context))
        is Code.INVALID_ARGUMENT
    )
    assert await scene.browse_of(dead) == before


async def a_lost_message_waits_for_its_back_off(scene: Scene) -> None:
    """With a back-off a lost message is due some time after the end of its lease, and later with every attempt."""
    scene.topic = await scene.new_topic("patient", expiry_backoff="exponential:500ms:1s:0.0")
    await scene.put("n", body=b"kept", headers={"k": "v"})
    (generated,) = await scene.generate([0], bucket=5)
    for attempt, wait in enumerate((500, 1_000, 1_000), start=1):
        lease = await scene.lease(lease_ms=1_000)
        assert attempts_of(lease) == [attempt] * 2
        scene.advance(1_000)
        end = scene.now
        assert await scene.try_lease() is None
        assert {m.ts for m in await scene.browse()} == {end + wait}
        assert await scene.delete(lease) == [Code.LEASE_LOST] * 2
        scene.advance(wait - 1)
        assert await scene.try_lease() is None
        assert await scene.storage.next_ts(scene.topic, range(8), scene.now) == scene.now + 1
        scene.advance(1)
    last = await scene.lease()
    assert sorted(last.ids()) == sorted(["n", generated])
    assert last.ts == [scene.now] * 2
    assert (await scene.get("n")).headers == {"k": "v"}


async def a_back_off_is_as_the_domain_says(scene: Scene) -> None:
    """The random part of a back-off is derived from id and attempts, so that every storage computes the same delay."""
    scene.topic = await scene.new_topic("spread", expiry_backoff="fixed:10s:1.0")
    ids = await scene.put_many(20)
    await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    end = scene.now
    assert await scene.try_lease() is None
    waits = {m.id: m.ts - end for m in await scene.browse()}
    assert waits == {one: told.expiry_delay_ms(scene.topic.settings, one, 1) for one in ids}
    assert len(set(waits.values())) > 10


async def the_dead_do_not_wait(scene: Scene) -> None:
    """After its last attempt a message is moved without a back-off."""
    dead = await _limited(scene, 1, expiry_backoff="fixed:1h")
    await scene.put("n")
    await _lose(scene, dead, 1)
    assert (await _lease_of_exhausted(scene, dead)).dead_lettered == 1
