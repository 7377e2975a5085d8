"""Atomic steps: changes over several topics are done together or not at all (guarantee 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dejaq import limits
from dejaq.domain.batch import LeaseSet, RowRange
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import Edits
from dejaq.storage.steps import (
    CancelStep,
    CreateStep,
    DeleteStep,
    EditStep,
    ReleaseStep,
    Step,
    Verdict,
)
from dejaq.testing.conformance.scene import OWNER, STEPS, Scene, ids_of, numbered, refusal_of
from dejaq.testing.replay import events_of, read_journal


def deleting(scene: Scene, lease: LeaseSet, rows: Sequence[RowRange] | None = None) -> DeleteStep:
    """Delete rows of a lease of the scene's topic, by their places."""
    return DeleteStep(scene.topic, lease.lease_id, lease.consumer, numbered(lease, rows))


def creating(scene: Scene, topic: Topic, *ids: str, body: bytes = b"made") -> CreateStep:
    """Create messages that are due now."""
    return CreateStep(topic, scene.batch(ids, delays=[0] * len(ids), bodies=[body] * len(ids)))


async def _standing(scene: Scene, topic: Topic) -> dict[str, tuple[int, bytes, str]]:
    return {m.id: (m.ts, m.body, m.lock_consumer) for m in await scene.browse_of(topic)}


async def every_kind_of_step_is_done(scene: Scene) -> None:
    """Deletes, releases, edits, cancels and creates over three topics are done in one transaction."""
    second, third = await scene.new_topic("second"), await scene.new_topic("third", buckets=1)
    await scene.put_many(3)
    await scene.put("waiting", 60_000, topic=second, body=b"old")
    await scene.put("unwanted", 60_000, topic=second)
    lease = await scene.lease()
    verdict = await scene.transact(
        deleting(scene, lease, [(0, 1)]),
        ReleaseStep(
            scene.topic, lease.lease_id, lease.consumer, numbered(lease, [(1, 3)]), [scene.now + 5, scene.now + 6]
        ),
        EditStep(second, OWNER, Edits(["waiting"], ts=[scene.now + 9], bodies=[b"new"])),
        CancelStep(second, OWNER, ["unwanted"]),
        CreateStep(third, scene.batch(["x", "y"], delays=[1, 2], bodies=[b"x", b"y"])),
        CreateStep(third, scene.batch(None, delays=[3])),
    )
    assert verdict == Verdict()
    gone, *kept = lease.ids()
    assert await scene.find(gone) is None
    assert [(await scene.get(one)).ts for one in kept] == [scene.now + 5, scene.now + 6]
    assert await _standing(scene, second) == {"waiting": (scene.now + 9, b"new", "")}
    made = await scene.browse_of(third)
    assert [(m.ts, m.body) for m in made] == [
        (scene.now + 1, b"x"),
        (scene.now + 2, b"y"),
        (scene.now + 3, b"body 0"),
    ]
    assert await scene.storage.leases_of(scene.topic, lease.consumer, scene.now) == []


async def a_refusal_undoes_everything(scene: Scene) -> None:
    """When one row of one step is refused nothing is done, and the answer names step, row and code."""
    out = await scene.new_topic("out")
    await scene.put("taken", 500, topic=out, body=b"other")
    await scene.put("free", 500, topic=out)
    await scene.put_many(2)
    lease = await scene.lease()
    before = [await _standing(scene, topic) for topic in (scene.topic, out)]
    steps: tuple[Step, ...] = (
        deleting(scene, lease),
        CancelStep(out, OWNER, ["free"]),
        creating(scene, out, "new", "taken"),
    )
    assert await scene.transact(*steps) == Verdict(Code.ID_TAKEN, step=2, row=1)
    assert [await _standing(scene, topic) for topic in (scene.topic, out)] == before
    assert await scene.delete(lease) == [Code.OK] * 2, "the lease still stands"
    assert [m.id for m in await scene.browse_of(out)] == ["free", "taken"]


async def each_refusal_is_that_of_its_call(scene: Scene) -> None:
    """A step is refused with the code that the call of its kind gives."""
    out = await scene.new_topic("out")
    await scene.put("mine", 60_000)
    version = (await scene.get("mine")).version
    await scene.put("leased")
    lease = await scene.lease()
    stranger = replace(deleting(scene, lease), consumer="stranger")
    late = replace(creating(scene, out, "b").batch, refused={0: Code.TOO_FAR})
    cases: list[tuple[Step, Code]] = [
        (stranger, Code.LEASE_LOST),
        (replace(deleting(scene, lease), lease_id=lease.lease_id + 1), Code.LEASE_LOST),
        (CancelStep(scene.topic, "another", ["mine"]), Code.NOT_OWNER),
        (CancelStep(scene.topic, OWNER, ["leased"]), Code.LEASED),
        (CancelStep(scene.topic, OWNER, ["nothing"]), Code.NOT_FOUND),
        (EditStep(scene.topic, OWNER, Edits(["mine"], ts=[0], versions=[version + 1])), Code.VERSION_CONFLICT),
        (creating(scene, scene.topic, "mine", body=b"another"), Code.ID_TAKEN),
        (CreateStep(out, late), Code.TOO_FAR),
    ]
    for number, (step, code) in enumerate(cases):
        verdict = await scene.transact(creating(scene, out, "a"), step, sequence=number)
        assert verdict == Verdict(code, step=1, row=0), f"{step} gave {verdict}"
    assert await scene.browse_of(out) == []
    assert (await scene.get("mine")).version == version


async def a_lost_lease_makes_nothing(scene: Scene) -> None:
    """Who comes after the end of its lease produces nothing: consume, process, produce is exactly once."""
    out = await scene.new_topic("out")
    await scene.put("job")
    first = await scene.lease("slow", lease_ms=1_000)
    scene.advance(1_000)
    second = await scene.lease("quick")
    verdicts = [
        await scene.transact(deleting(scene, lease), creating(scene, out, name), sequence=number)
        for number, (lease, name) in enumerate([(first, "by-slow"), (second, "by-quick"), (second, "again")])
    ]
    assert [verdict.code for verdict in verdicts] == [Code.LEASE_LOST, Code.OK, Code.LEASE_LOST]
    assert [m.id for m in await scene.browse_of(out)] == ["by-quick"]
    assert await scene.count() == 0


async def a_repeat_is_known_by_its_name(scene: Scene) -> None:
    """The same name again is ALREADY_EXISTS and changes nothing, even when what it made is gone."""
    out = await scene.new_topic("out")
    steps = (creating(scene, out, "a"), CreateStep(out, scene.batch(None, delays=[0], session=STEPS)))
    assert await scene.transact(*steps, sequence=5) == Verdict()
    assert await scene.transact(*steps, sequence=5) == Verdict(Code.ALREADY_EXISTS)
    made = [m.id for m in await scene.browse_of(out)]
    await scene.storage.cancel(out, OWNER, made, scene.now)
    assert await scene.transact(*steps, sequence=5) == Verdict(Code.ALREADY_EXISTS)
    assert await scene.browse_of(out) == []
    assert await scene.transact(creating(scene, out, "b"), sequence=6) == Verdict()


async def a_refused_name_may_come_again(scene: Scene) -> None:
    """A refused transaction was not done, so its name is free and its batches are not taken for repeats."""
    out = await scene.new_topic("out")
    await scene.put("x", 50, topic=out, body=b"other")
    steps = (CreateStep(out, scene.batch(None, delays=[5, 6])), creating(scene, out, "x"))
    assert (await scene.transact(*steps)).code is Code.ID_TAKEN
    assert (await scene.storage.cancel(out, OWNER, ["x"], scene.now)).codes == {}
    assert await scene.transact(*steps) == Verdict()
    assert [m.id for m in await scene.browse_of(out)] == ["x", *ids_of(steps[0].batch)]


async def what_is_already_there_is_no_refusal(scene: Scene) -> None:
    """A create of the same id and content succeeds within a transaction and changes nothing."""
    batch = scene.batch(["a"], delays=[50], bodies=[b"same"])
    assert await scene.create(batch) == [Code.OK]
    version = (await scene.get("a")).version
    again = replace(batch, session=scene.session())
    assert await scene.transact(CreateStep(scene.topic, again), creating(scene, scene.topic, "b")) == Verdict()
    assert (await scene.get("a")).version == version
    assert await scene.count() == 2


async def a_message_is_named_once(scene: Scene) -> None:
    """A message that two rows name is DUPLICATE_IN_BATCH, whatever the steps; equal ids of other topics are not."""
    out = await scene.new_topic("out")
    await scene.put("a", 60_000)
    await scene.put("job")
    lease = await scene.lease()
    move = EditStep(scene.topic, OWNER, Edits(["a"], ts=[scene.now + 7]))
    pairs: list[tuple[Step, Step, int]] = [
        (move, CancelStep(scene.topic, OWNER, ["a"]), 0),
        (move, EditStep(scene.topic, OWNER, Edits(["a"], priorities=[3])), 0),
        (deleting(scene, lease), deleting(scene, lease), 0),
        (creating(scene, out, "n"), creating(scene, out, "m", "n"), 1),
    ]
    for number, (first, second, row) in enumerate(pairs):
        verdict = await scene.transact(first, second, sequence=number)
        assert verdict == Verdict(Code.DUPLICATE_IN_BATCH, step=1, row=row), f"{first} and {second} gave {verdict}"
    twice = CancelStep(scene.topic, OWNER, ["a", "a"])
    assert await scene.transact(twice, sequence=8) == Verdict(Code.DUPLICATE_IN_BATCH, step=0, row=1)
    assert await scene.transact(creating(scene, out, "a"), move, sequence=9) == Verdict()


async def steps_on_one_batch_of_messages_do_not_undo_each_other(scene: Scene) -> None:
    """Several steps may change different messages that were created together, near or far in time."""
    for number, delay in enumerate((3, 86_400_000)):
        ids = await scene.generate([delay] * 6, bucket=1)
        verdict = await scene.transact(
            CancelStep(scene.topic, OWNER, ids[:1]),
            EditStep(scene.topic, OWNER, Edits(ids[1:2], bodies=[b"new"])),
            creating(scene, scene.topic, f"made-{number}"),
            CancelStep(scene.topic, OWNER, ids[2:4]),
            EditStep(scene.topic, OWNER, Edits(ids[4:5], ts=[scene.now + delay + 1])),
            sequence=number,
        )
        assert verdict == Verdict()
        left = {m.id: m.body for m in await scene.browse() if m.id in ids}
        assert left == {ids[1]: b"new", ids[4]: b"body 4", ids[5]: b"body 5"}
        assert await scene.count() == 4 * (number + 1)


async def large_bodies_are_kept(scene: Scene) -> None:
    """Bodies that are stored apart are created, kept by a release and replaced by an edit within a transaction."""
    large = b"L" * (limits.INLINE_BODY_BYTES_MAX + 1)
    await scene.put("job", body=large)
    await scene.put("other", 500, body=large)
    lease = await scene.lease()
    verdict = await scene.transact(
        ReleaseStep(scene.topic, lease.lease_id, lease.consumer, None, scene.now + 5),
        creating(scene, scene.topic, "made", body=large + b"!"),
        EditStep(scene.topic, OWNER, Edits(["other"], bodies=[large[1:]])),
    )
    assert verdict == Verdict()
    assert [(await scene.get(one)).body for one in ("job", "made", "other")] == [large, large + b"!", large[1:]]


async def malformed_steps_change_nothing(scene: Scene) -> None:
    """Rows outside a lease, or times that are not one a row, are INVALID_ARGUMENT, and earlier steps are not done."""
    out = await scene.new_topic("out")
    await scene.put_many(2)
    lease = await scene.lease()
    bad: list[Step] = [
        DeleteStep(scene.topic, lease.lease_id, lease.consumer, [(1, 3)]),
        ReleaseStep(scene.topic, lease.lease_id, lease.consumer, [(0, 2)], [scene.now]),
    ]
    for number, step in enumerate(bad):
        answer = scene.transact(creating(scene, out, "a"), step, sequence=number)
        assert await refusal_of(answer) is Code.INVALID_ARGUMENT
    assert await scene.browse_of(out) == []
    assert await scene.delete(lease) == [Code.OK] * 2


async def one_of_many_transactions_wins(scene: Scene) -> None:
    """Of concurrent transactions that settle the same row, one is done and the others produce nothing."""
    out = await scene.new_topic("out")
    await scene.put_many(3)
    lease = await scene.lease()
    verdicts = await asyncio.gather(
        *(
            scene.transact(creating(scene, out, f"by-{n}"), deleting(scene, lease, [(1, 2)]), sequence=n)
            for n in range(6)
        )
    )
    assert sorted(verdict.code for verdict in verdicts) == [Code.OK] + [Code.LEASE_LOST] * 5
    winner = [verdict.code for verdict in verdicts].index(Code.OK)
    assert [m.id for m in await scene.browse_of(out)] == [f"by-{winner}"]
    assert await scene.count() == 2


async def a_transaction_is_one_record(scene: Scene) -> None:
    """The journal tells of all steps of a transaction in one record, and nothing of a refused one (guarantee 9)."""
    out = await scene.new_topic("out")
    await scene.put("job")
    await scene.put("later", 60_000)
    lease = await scene.lease()
    before = len(await read_journal(scene.storage))
    refused = await scene.transact(creating(scene, out, "x"), CancelStep(scene.topic, OWNER, ["job"]))
    assert refused.code is Code.LEASED
    assert len(await read_journal(scene.storage)) == before
    move = EditStep(scene.topic, OWNER, Edits(["later"], ts=[scene.now + 5]))
    assert await scene.transact(deleting(scene, lease), creating(scene, out, "x"), move) == Verdict()
    records = await read_journal(scene.storage)
    assert len(records) == before + 1, "a transaction is one record"
    events = [(event.kind, event.topic, event.id) for event in events_of(records[-1])]
    assert events == [("deleted", "mail", "job"), ("created", "out", "x"), ("moved", "mail", "later")]


async def a_refused_transaction_puts_lost_messages_back(scene: Scene) -> None:
    """A back-off begins with the first change that meets the lost lease, though that one be refused."""
    scene.topic = await scene.new_topic("patient", expiry_backoff="fixed:5s")
    await scene.put("n")
    await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    verdict = await scene.transact(CancelStep(scene.topic, "stranger", ["n"]))
    assert verdict.code is Code.NOT_OWNER
    (found,) = await scene.browse()
    assert (found.ts, found.lock_consumer) == (scene.now + 5_000, "")
