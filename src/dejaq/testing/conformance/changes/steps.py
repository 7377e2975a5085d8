"""Atomic steps: changes over several topics succeed all together or not at all (guarantee 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dejaq import limits
from dejaq.domain.batch import LeaseSet, RowRange
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Release
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import apply_one
from dejaq.storage.transactions import Step, Transaction, Verdict
from dejaq.testing.conformance.scene import OWNER, STEPS, Scene, ids_of, numbered, refusal_of
from dejaq.testing.model.replay import events_of, read_journal


def deleting(scene: Scene, lease: LeaseSet, rows: Sequence[RowRange] | None = None) -> Delete:
    """Delete rows of a lease of the scene's topic, by their places."""
    return Delete(scene.topic, lease.lease_id, lease.consumer, numbered(lease, rows))


def creating(scene: Scene, topic: Topic, *ids: str, body: bytes = b"made") -> Create:
    """Create messages that are due now."""
    return Create(topic, scene.batch(ids, delays=[0] * len(ids), bodies=[body] * len(ids)))


async def _standing(scene: Scene, topic: Topic) -> dict[str, tuple[int, bytes, str]]:
    return {m.id: (m.ts, m.body, m.lock_consumer) for m in await scene.browse_of(topic)}


async def every_kind_of_step_is_done(scene: Scene) -> None:
    """Deletes, releases, edits, cancels and creates over three topics succeed in one transaction."""
    second, third = await scene.new_topic("second"), await scene.new_topic("third", buckets=1)
    await scene.put_many(3)
    await scene.put("waiting", 60_000, topic=second, body=b"old")
    await scene.put("unwanted", 60_000, topic=second)
    lease = await scene.lease()
    verdict = await scene.transact(
        deleting(scene, lease, [(0, 1)]),
        Release(scene.topic, lease.lease_id, lease.consumer, numbered(lease, [(1, 3)]), [scene.now + 5, scene.now + 6]),
        Edit(second, OWNER, Edits(["waiting"], ts=[scene.now + 9], bodies=[b"new"])),
        Cancel(second, OWNER, ["unwanted"]),
        Create(third, scene.batch(["x", "y"], delays=[1, 2], bodies=[b"x", b"y"])),
        Create(third, scene.batch(None, delays=[3])),
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
    """When one row of one step is refused nothing is changed, and the answer names step, row and code."""
    out = await scene.new_topic("out")
    await scene.put("taken", 500, topic=out, body=b"other")
    await scene.put("free", 500, topic=out)
    await scene.put_many(2)
    lease = await scene.lease()
    before = [await _standing(scene, topic) for topic in (scene.topic, out)]
    steps: tuple[Step, ...] = (
        deleting(scene, lease),
        Cancel(out, OWNER, ["free"]),
        creating(scene, out, "new", "taken"),
    )
    assert await scene.transact(*steps) == Verdict(Code.ID_TAKEN, step=2, row=1)
    assert [await _standing(scene, topic) for topic in (scene.topic, out)] == before
    assert await scene.delete(lease) == [Code.OK] * 2, "the lease is still live"
    assert [m.id for m in await scene.browse_of(out)] == ["free", "taken"]


async def each_refusal_is_that_of_its_call(scene: Scene) -> None:
    """A step is refused with the same code as the corresponding call."""
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
        (Cancel(scene.topic, "another", ["mine"]), Code.NOT_OWNER),
        (Cancel(scene.topic, OWNER, ["leased"]), Code.LEASED),
        (Cancel(scene.topic, OWNER, ["nothing"]), Code.NOT_FOUND),
        (Edit(scene.topic, OWNER, Edits(["mine"], ts=[0], versions=[version + 1])), Code.VERSION_CONFLICT),
        (creating(scene, scene.topic, "mine", body=b"another"), Code.ID_TAKEN),
        (Create(out, late), Code.TOO_FAR),
    ]
    for number, (step, code) in enumerate(cases):
        verdict = await scene.transact(creating(scene, out, "a"), step, sequence=number)
        assert verdict == Verdict(code, step=1, row=0), f"{step} gave {verdict}"
    assert await scene.browse_of(out) == []
    assert (await scene.get("mine")).version == version


async def a_lost_lease_makes_nothing(scene: Scene) -> None:
    """A consumer that settles after the end of its lease produces nothing: consume, process,
    produce is exactly once.
    """
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
    """The same name again is ALREADY_EXISTS and changes nothing, even when the created messages are gone."""
    out = await scene.new_topic("out")
    steps = (creating(scene, out, "a"), Create(out, scene.batch(None, delays=[0], session=STEPS)))
    assert await scene.transact(*steps, sequence=5) == Verdict()
    assert await scene.transact(*steps, sequence=5) == Verdict(Code.ALREADY_EXISTS)
    made = [m.id for m in await scene.browse_of(out)]
    await apply_one(scene.storage, Cancel(out, OWNER, made), scene.now, scene.context)
    assert await scene.transact(*steps, sequence=5) == Verdict(Code.ALREADY_EXISTS)
    assert await scene.browse_of(out) == []
    assert await scene.transact(creating(scene, out, "b"), sequence=6) == Verdict()


async def a_refused_name_may_come_again(scene: Scene) -> None:
    """A refused transaction changed nothing, so its name is free and its batches are not treated as repeats."""
    out = await scene.new_topic("out")
    await scene.put("x", 50, topic=out, body=b"other")
    steps = (Create(out, scene.batch(None, delays=[5, 6])), creating(scene, out, "x"))
    assert (await scene.transact(*steps)).code is Code.ID_TAKEN
    assert (await apply_one(scene.storage, Cancel(out, OWNER, ["x"]), scene.now, scene.context)).codes == {}
    assert await scene.transact(*steps) == Verdict()
    assert [m.id for m in await scene.browse_of(out)] == ["x", *ids_of(steps[0].batch)]


async def a_relative_time_is_not_compared_in_a_step(scene: Scene) -> None:
    """A create within a transaction whose time is relative succeeds where the rest of the content is the same."""
    out = await scene.new_topic("out")
    await scene.put("job", 100, topic=out, body=b"x")
    before = await scene.browse_of(out)
    scene.advance(5)

    async def again(sequence: int, body: bytes, relative_rows: Sequence[RowRange]) -> Code:
        batch = scene.batch(
            [f"new-{sequence}", "job"], delays=[100, 100], bodies=[body, body], relative_rows=relative_rows
        )
        return (await scene.transact(Create(out, batch), sequence=sequence)).code

    assert await again(1, b"x", ()) is Code.ID_TAKEN
    assert await again(2, b"x", [(0, 1)]) is Code.ID_TAKEN
    assert await again(3, b"y", [(1, 2)]) is Code.ID_TAKEN
    assert await scene.browse_of(out) == before
    assert await again(4, b"x", [(1, 2)]) is Code.OK
    assert [message.id for message in await scene.browse_of(out)] == ["job", "new-4"]


async def what_is_already_there_is_no_refusal(scene: Scene) -> None:
    """A create of the same id and content succeeds within a transaction and changes nothing."""
    batch = scene.batch(["a"], delays=[50], bodies=[b"same"])
    assert await scene.create(batch) == [Code.OK]
    version = (await scene.get("a")).version
    again = replace(batch, session=scene.session())
    assert await scene.transact(Create(scene.topic, again), creating(scene, scene.topic, "b")) == Verdict()
    assert (await scene.get("a")).version == version
    assert await scene.count() == 2


async def a_message_is_named_once(scene: Scene) -> None:
    """A message that two rows name is DUPLICATE_IN_BATCH, whatever the steps; equal ids of two topics are different."""
    out = await scene.new_topic("out")
    await scene.put("a", 60_000)
    await scene.put("job")
    lease = await scene.lease()
    move = Edit(scene.topic, OWNER, Edits(["a"], ts=[scene.now + 7]))
    pairs: list[tuple[Step, Step, int]] = [
        (move, Cancel(scene.topic, OWNER, ["a"]), 0),
        (move, Edit(scene.topic, OWNER, Edits(["a"], priorities=[3])), 0),
        (deleting(scene, lease), deleting(scene, lease), 0),
        (creating(scene, out, "n"), creating(scene, out, "m", "n"), 1),
    ]
    for number, (first, second, row) in enumerate(pairs):
        verdict = await scene.transact(first, second, sequence=number)
        assert verdict == Verdict(Code.DUPLICATE_IN_BATCH, step=1, row=row), f"{first} and {second} gave {verdict}"
    twice = Cancel(scene.topic, OWNER, ["a", "a"])
    assert await scene.transact(twice, sequence=8) == Verdict(Code.DUPLICATE_IN_BATCH, step=0, row=1)
    assert await scene.transact(creating(scene, out, "a"), move, sequence=9) == Verdict()


async def steps_on_one_batch_of_messages_do_not_undo_each_other(scene: Scene) -> None:
    """Several steps may change different messages that were created together, near or far in time."""
    for number, delay in enumerate((3, 86_400_000)):
        ids = await scene.generate([delay] * 6, bucket=1)
        verdict = await scene.transact(
            Cancel(scene.topic, OWNER, ids[:1]),
            Edit(scene.topic, OWNER, Edits(ids[1:2], bodies=[b"new"])),
            creating(scene, scene.topic, f"made-{number}"),
            Cancel(scene.topic, OWNER, ids[2:4]),
            Edit(scene.topic, OWNER, Edits(ids[4:5], ts=[scene.now + delay + 1])),
            sequence=number,
        )
        assert verdict == Verdict()
        left = {m.id: m.body for m in await scene.browse() if m.id in ids}
        assert left == {ids[1]: b"new", ids[4]: b"body 4", ids[5]: b"body 5"}
        assert await scene.count() == 4 * (number + 1)


async def large_bodies_are_kept(scene: Scene) -> None:
    """Bodies that are stored separately are created, kept by a release and replaced by an edit within a transaction."""
    large = b"L" * (limits.INLINE_BODY_BYTES_MAX + 1)
    await scene.put("job", body=large)
    await scene.put("other", 500, body=large)
    lease = await scene.lease()
    verdict = await scene.transact(
        Release(scene.topic, lease.lease_id, lease.consumer, None, scene.now + 5),
        creating(scene, scene.topic, "made", body=large + b"!"),
        Edit(scene.topic, OWNER, Edits(["other"], bodies=[large[1:]])),
    )
    assert verdict == Verdict()
    assert [(await scene.get(one)).body for one in ("job", "made", "other")] == [large, large + b"!", large[1:]]


async def malformed_steps_change_nothing(scene: Scene) -> None:
    """Rows outside a lease, or a list without one time per row, are INVALID_ARGUMENT; earlier steps have no effect."""
    out = await scene.new_topic("out")
    await scene.put_many(2)
    lease = await scene.lease()
    bad: list[Step] = [
        Delete(scene.topic, lease.lease_id, lease.consumer, [(1, 3)]),
        Release(scene.topic, lease.lease_id, lease.consumer, [(0, 2)], [scene.now]),
    ]
    for number, step in enumerate(bad):
        answer = scene.transact(creating(scene, out, "a"), step, sequence=number)
        assert await refusal_of(answer) is Code.INVALID_ARGUMENT
    assert await scene.browse_of(out) == []
    assert await scene.delete(lease) == [Code.OK] * 2


async def one_of_many_transactions_wins(scene: Scene) -> None:
    """Of concurrent transactions that settle the same row, one succeeds and the others change nothing."""
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
    """The journal has one record with all steps of a transaction, and none of a refused one (guarantee 9)."""
    out = await scene.new_topic("out")
    await scene.put("job")
    await scene.put("later", 60_000)
    lease = await scene.lease()
    before = len(await read_journal(scene.storage))
    refused = await scene.transact(creating(scene, out, "x"), Cancel(scene.topic, OWNER, ["job"]))
    assert refused.code is Code.LEASED
    assert len(await read_journal(scene.storage)) == before
    move = Edit(scene.topic, OWNER, Edits(["later"], ts=[scene.now + 5]))
    assert await scene.transact(deleting(scene, lease), creating(scene, out, "x"), move) == Verdict()
    records = await read_journal(scene.storage)
    assert len(records) == before + 1, "a transaction is one record"
    events = [(event.kind, event.topic, event.id) for event in events_of(records[-1])]
    assert events == [("deleted", "mail", "job"), ("created", "out", "x"), ("moved", "mail", "later")]


async def a_refused_transaction_puts_lost_messages_back(scene: Scene) -> None:
    """A back-off begins with the first change that finds the lost lease, even if that change is refused."""
    scene.topic = await scene.new_topic("patient", expiry_backoff="fixed:5s")
    await scene.put("n")
    await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    verdict = await scene.transact(Cancel(scene.topic, "stranger", ["n"]))
    assert verdict.code is Code.NOT_OWNER
    (found,) = await scene.browse()
    assert (found.ts, found.lock_consumer) == (scene.now + 5_000, "")


async def another_transaction_under_a_used_name_is_refused(scene: Scene) -> None:
    """D13: two copies of one process use one name for different transactions; the second is not treated as a repeat."""

    def named(message_id: str, check: int, acknowledged: int = 0, sequence: int = 0) -> Transaction:
        return Transaction(STEPS, sequence, [creating(scene, scene.topic, message_id)], acknowledged, check)

    first, other = named("a", 1), named("b", 2)
    assert await scene.storage.transact(first, scene.now, scene.context) == Verdict()
    assert await scene.storage.transact(first, scene.now, scene.context) == Verdict(Code.ALREADY_EXISTS)
    assert await refusal_of(scene.storage.transact(other, scene.now, scene.context)) is Code.BATCH_NAME_TAKEN
    assert await scene.storage.transact(named("c", 3, 1, 1), scene.now, scene.context) == Verdict()
    assert await refusal_of(scene.storage.transact(other, scene.now, scene.context)) is Code.BATCH_NAME_TAKEN
    assert await scene.count() == 2
