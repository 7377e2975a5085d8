"""The deduplication window: an id from a producer stays taken for a time after its creation, also
without its message.
"""

from __future__ import annotations

import asyncio

from dejaq.domain.changes import Cancel, Create
from dejaq.domain.dead_letter import Cause
from dejaq.domain.topic import TopicKind
from dejaq.errors import Code, Refused
from dejaq.storage.base import apply_one
from dejaq.testing.conformance.repeats import WINDOW_MS, again, begin
from dejaq.testing.conformance.scene import OWNER, Scene

OK, EXISTS, TAKEN, LIMIT = Code.OK, Code.ALREADY_EXISTS, Code.ID_TAKEN, Code.LIMIT_EXCEEDED


async def an_id_stays_taken_after_delivery(scene: Scene) -> None:
    """A create of an id whose message was delivered and deleted within the window is ALREADY_EXISTS."""
    await begin(scene)
    await scene.put("order-1")
    assert await scene.delete(await scene.lease()) == [OK]
    scene.advance(WINDOW_MS - 1)
    assert await again(scene, "order-1") == [EXISTS]
    assert await scene.find("order-1") is None
    assert await scene.count() == 0


async def an_id_stays_taken_after_a_cancel(scene: Scene) -> None:
    """A create of an id whose message was cancelled within the window is ALREADY_EXISTS, whatever its content."""
    await begin(scene)
    await scene.put("order-1", 5_000)
    assert await scene.cancel("order-1") == [OK]
    assert await again(scene, "order-1", body=b"other", delay=9_000) == [EXISTS]
    assert await scene.statuses() == (0, 0, 0)


async def an_id_stays_taken_as_a_dead_letter(scene: Scene) -> None:
    """The id of a message that became a dead letter stays taken, and the dead letter can be redriven under it."""
    await begin(scene)
    dead = await scene.new_topic("once.dead")
    await scene.put("order-1")
    assert await scene.reject(await scene.lease(), dead_letter=dead, cause=Cause("no use")) == [OK]
    assert await again(scene, "order-1") == [EXISTS]
    assert await scene.redrive(dead, "order-1") == [OK]
    assert (await scene.get("order-1")).body == b"body"
    assert await scene.delete(await scene.lease()) == [OK]
    assert await again(scene, "order-1") == [EXISTS]


async def an_id_is_free_after_the_window(scene: Scene) -> None:
    """An id without a message is free `dedup_ms` after its creation; then another message may use it."""
    await begin(scene)
    for _ in range(4):
        await scene.put("order-1")
        assert await scene.cancel("order-1") == [OK]
        scene.advance(WINDOW_MS - 1)
        assert await again(scene, "order-1") == [EXISTS]
        scene.advance(1)
    await scene.put("order-1")


async def a_repeat_does_not_prolong_the_window(scene: Scene) -> None:
    """The window starts at the creation, and not at a later create of the same id."""
    await begin(scene)
    await scene.put("order-1")
    assert await scene.cancel("order-1") == [OK]
    scene.advance(WINDOW_MS // 2)
    assert await again(scene, "order-1") == [EXISTS]
    scene.advance(WINDOW_MS // 2)
    assert await again(scene, "order-1") == [OK]


async def a_message_decides_while_it_is_there(scene: Scene) -> None:
    """While the message exists its content decides, also after the window, and a repeat starts no other window."""
    await begin(scene)
    await scene.put("order-1", 10 * WINDOW_MS)
    due = scene.now + 10 * WINDOW_MS
    for _ in range(3):
        assert await again(scene, "order-1", delay=due - scene.now) == [EXISTS]
        assert await again(scene, "order-1", body=b"other", delay=due - scene.now) == [TAKEN]
        scene.advance(WINDOW_MS)
    assert await scene.cancel("order-1") == [OK]
    assert await again(scene, "order-1") == [OK]


async def only_the_rows_that_repeat_are_refused(scene: Scene) -> None:
    """Each row of a batch is decided by its own id."""
    await begin(scene)
    ids = [f"order-{number}" for number in range(20)]
    assert await again(scene, *ids[::2]) == [OK] * 10
    assert await scene.cancel(*ids[:10:2]) == [OK] * 5
    assert await scene.delete(await scene.lease()) == [OK] * 5
    assert await again(scene, *ids) == [EXISTS, OK] * 10
    assert await scene.count() == 10


async def an_id_is_taken_within_one_call(scene: Scene) -> None:
    """A create, a cancel and another create of one id in one call are decided one after the other."""
    await begin(scene)
    first, second = (Create(scene.topic, scene.batch(["order-1"], delays=[0])) for _ in range(2))
    answers = await scene.storage.apply(
        [first, Cancel(scene.topic, OWNER, ["order-1"]), second], scene.now, scene.context
    )
    assert [answer if isinstance(answer, Refused) else answer[0] for answer in answers] == [OK, OK, EXISTS]
    assert await scene.count() == 0


async def generated_ids_are_not_remembered(scene: Scene) -> None:
    """Messages with generated ids are created and deleted as in every topic, and do not count towards the limit."""
    await begin(scene, max_dedup_ids=1)
    for _ in range(3):
        assert len(await scene.generate([0, 0])) == 2
        assert await scene.delete(await scene.lease()) == [OK] * 2


async def a_refused_row_is_not_remembered(scene: Scene) -> None:
    """A row that admission refuses leaves its id free."""
    await begin(scene)
    refused = scene.batch(["bad", "good"], delays=[0, 0], refused={0: Code.TOO_FAR})
    assert await scene.create(refused) == [Code.TOO_FAR, OK]
    assert await again(scene, "bad") == [OK]


async def other_topics_have_no_window(scene: Scene) -> None:
    """Without the setting an id is free as soon as its message is gone; each topic remembers only its own ids."""
    plain = scene.topic
    await begin(scene)
    await scene.put("order-1")
    assert await scene.cancel("order-1") == [OK]
    scene.topic = plain
    for _ in range(2):
        await scene.put("order-1")
        assert await scene.cancel("order-1") == [OK]


async def too_many_ids_are_refused(scene: Scene) -> None:
    """When a topic already remembers `max_dedup_ids` ids, each further id is LIMIT_EXCEEDED until
    enough are forgotten.
    """
    # All ids are in one bucket: a store with several parts counts in each part separately.
    await begin(scene, max_dedup_ids=3, buckets=1)
    assert await again(scene, "a", "b") == [OK] * 2
    assert await scene.cancel("a", "b") == [OK] * 2
    assert await again(scene, "a", "c", "d", "e") == [EXISTS, OK, LIMIT, LIMIT]
    assert await scene.find("d") is None
    assert await again(scene, "c", "d") == [EXISTS, LIMIT]
    scene.advance(3 * WINDOW_MS)
    assert await again(scene, "d", "e") == [OK] * 2


async def a_priority_topic_has_a_window(scene: Scene) -> None:
    """A priority topic remembers ids in the same way as other topics."""
    await begin(scene, kind=TopicKind.PRIORITY)
    await scene.put("order-1", priority=3)
    assert await scene.delete(await scene.lease()) == [OK]
    assert await again(scene, "order-1") == [EXISTS]
    scene.advance(WINDOW_MS)
    assert await again(scene, "order-1") == [OK]


async def a_clock_that_steps_back_forgets_nothing(scene: Scene) -> None:
    """An id that was created stays taken when the clock steps back, also across the borders of stored periods."""
    await begin(scene)
    for step in range(8):
        scene.advance(WINDOW_MS // 4)
        await scene.put(f"order-{step}")
        assert await scene.cancel(f"order-{step}") == [OK]
        scene.advance(-1_000)
        assert await again(scene, f"order-{step}") == [EXISTS]
        scene.advance(1_000)


async def a_dropped_topic_remembers_nothing(scene: Scene) -> None:
    """When a topic is dropped, the ids that it remembers are removed with it."""
    await begin(scene)
    await scene.put("order-1")
    assert await scene.cancel("order-1") == [OK]
    await scene.storage.drop_topic(scene.topic, scene.now, scene.context)
    # The new topic gets the old number, where any remaining ids would be found.
    await scene.storage.put_topic(scene.topic, scene.context)
    await scene.put("order-1")


async def a_transaction_knows_created_ids(scene: Scene) -> None:
    """A transaction that creates an id within its window does its other steps; one that creates a new id takes it."""
    scene.topic = await scene.new_topic("once", dedup_ms=WINDOW_MS, buckets=1)
    await scene.put("order-1")
    await scene.put("order-2", 5_000)
    assert await scene.cancel("order-1") == [OK]
    repeat, other = (Create(scene.topic, scene.batch([one], delays=[0])) for one in ("order-1", "order-3"))
    verdict = await scene.transact(repeat, other, Cancel(scene.topic, OWNER, ["order-2"]))
    assert verdict.code is OK
    assert [message.id for message in await scene.browse()] == ["order-3"]
    assert await scene.cancel("order-3") == [OK]
    assert await again(scene, "order-3", "order-2") == [EXISTS, EXISTS]


async def a_transaction_beyond_the_limit_is_refused(scene: Scene) -> None:
    """A transaction that exceeds the limit of ids is refused as a whole; a refused transaction leaves its ids free."""
    scene.topic = await scene.new_topic("once", dedup_ms=WINDOW_MS, max_dedup_ids=2, buckets=1)
    await scene.put("order-1")
    create = Create(scene.topic, scene.batch(["order-2", "order-3"], delays=[0, 0]))
    verdict = await scene.transact(create)
    assert (verdict.code, verdict.step, verdict.row) == (LIMIT, 0, 1)
    assert await scene.count() == 1
    single = Create(scene.topic, scene.batch(["order-2"], delays=[0]))
    verdict = await scene.transact(single, Cancel(scene.topic, OWNER, ["nosuch"]), sequence=1)
    assert verdict.code is Code.NOT_FOUND
    assert await again(scene, "order-2") == [OK]


async def what_is_created_at_once_is_created_once(scene: Scene) -> None:
    """Of many creates of one id at the same time, while its messages are deleted, only one creates a message."""
    await begin(scene)

    async def send() -> Code:
        batch = scene.batch(["order-1"], delays=[0])
        code = (await apply_one(scene.storage, Create(scene.topic, batch), scene.now, scene.context))[0]
        if code is OK:
            assert await scene.cancel("order-1") == [OK]
        return code

    codes = await asyncio.gather(*(send() for _ in range(12)))
    assert sorted(codes) == [OK] + [EXISTS] * 11
