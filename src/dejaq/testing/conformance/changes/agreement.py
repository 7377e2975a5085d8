"""Every store answers as `domain.transitions` decides, also when a store decides in its own statements.

Each check prepares messages in every situation, computes the state that a decision needs from the answer of `get`, and
compares the answer of the store with the decision for that state. A refused change leaves its message unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import count, product

from dejaq import limits
from dejaq.domain.batch import LeaseSet
from dejaq.domain.changes import Cancel, Delete, Edit, Edits, Release
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import (
    Standing,
    decide_by_consumer,
    decide_by_owner,
    decide_create,
    decide_lease,
    decide_redrive,
)
from dejaq.errors import Code
from dejaq.storage.transactions import Step
from dejaq.testing.conformance.scene import BUCKETS, OWNER, WORKER, Scene, numbers_of

SHORT_MS = 1_000
OTHER = "worker-2"

Situation = Callable[[Scene, LeaseSet], Awaitable[object]]


async def _advance(scene: Scene, milliseconds: int) -> None:
    scene.advance(milliseconds)


async def _lease_again(scene: Scene, consumer: str) -> None:
    scene.advance(SHORT_MS)
    await scene.lease(consumer)


async def _extend(scene: Scene, lease: LeaseSet) -> None:
    await scene.extend(lease, by=2 * SHORT_MS)
    scene.advance(SHORT_MS)


async def _edit(scene: Scene, lease: LeaseSet) -> None:
    scene.advance(SHORT_MS)
    await scene.edit(Edits(lease.ids(), ts=[scene.now + 500] * len(lease)))


async def _cancel(scene: Scene, lease: LeaseSet) -> None:
    scene.advance(SHORT_MS)
    await scene.cancel(*lease.ids())


# The changes that were made to the rows of a lease of WORKER, which lasts SHORT_MS from the time of the call.
SITUATIONS: dict[str, Situation] = {
    "live": lambda scene, lease: _advance(scene, 0),
    "last-millisecond": lambda scene, lease: _advance(scene, SHORT_MS - 1),
    "ends-now": lambda scene, lease: _advance(scene, SHORT_MS),
    "ended": lambda scene, lease: _advance(scene, SHORT_MS + 1),
    "extended": _extend,
    "released-waiting": lambda scene, lease: scene.release(lease, delay=500),
    "released-due": lambda scene, lease: scene.release(lease, delay=0),
    "recalled": lambda scene, lease: scene.recall(lease),
    "deleted": lambda scene, lease: scene.delete(lease),
    "leased-by-another": lambda scene, lease: _lease_again(scene, OTHER),
    "leased-again": lambda scene, lease: _lease_again(scene, WORKER),
    "edited": _edit,
    "cancelled": _cancel,
}


async def _prepared(scene: Scene, name: str, rows: int, *, natural: bool = False) -> LeaseSet:
    """A new topic whose `rows` messages, one in each bucket in turn, are in a situation; and their first lease.

    Messages with natural ids are in the buckets of their ids.
    """
    scene.topic = await scene.new_topic(f"{name}-natural" if natural else name)
    for row in range(rows):
        if natural:
            await scene.put(f"row-{row}")
        else:
            await scene.generate([0], bucket=row)
    lease = await scene.lease(lease_ms=SHORT_MS)
    assert len(lease) == rows
    await SITUATIONS[name](scene, lease)
    return lease


def _standing(message: Message | None) -> Standing | None:
    if message is None:
        return None
    return Standing(message.ts, message.producer_group, message.lock_consumer, message.version)


async def _compare(
    scene: Scene, case: tuple[object, ...], message_id: str, decided: Code, answer: Awaitable[list[Code]]
) -> None:
    """The store answers as decided, and a refused message does not change."""
    before = await scene.find(message_id)
    assert await answer == [decided], (*case, before)
    if decided is not Code.OK:
        assert await scene.find(message_id) == before, case


async def a_consumer_changes_what_the_decision_allows(scene: Scene) -> None:
    """Delete, extend, release, recall and reject are answered as decided, for each state, consumer and version."""
    dead_letter = await scene.new_topic("dead")
    changes: dict[str, Callable[..., Awaitable[list[Code]]]] = {
        "delete": scene.delete,
        "extend": scene.extend,
        "release": scene.release,
        "recall": scene.recall,
        "reject": lambda *rows, consumer: scene.reject(*rows, dead_letter=dead_letter, consumer=consumer),
    }
    cases = list(product(changes, (WORKER, OTHER)))
    for name in SITUATIONS:
        lease = await _prepared(scene, name, len(cases))
        for place, (change, consumer) in enumerate(cases):
            message_id = lease.ids()[place]
            standing = _standing(await scene.find(message_id))
            decided = decide_by_consumer(standing, consumer=consumer, version=lease.lease_id, now=scene.now)
            answer = changes[change](lease, [(place, place + 1)], consumer=consumer)
            await _compare(scene, (name, change, consumer), message_id, decided, answer)


async def an_owner_changes_what_the_decision_allows(scene: Scene) -> None:
    """Move, edit and cancel are answered as decided, for each state, owner and version."""
    changes: dict[str, Callable[[str, str, int | None], Awaitable[list[Code]]]] = {
        "move": lambda one, owner, version: scene.edit(Edits([one], ts=[scene.now + 9], versions=[version]), owner),
        "edit": lambda one, owner, version: scene.edit(Edits([one], bodies=[b"new"], versions=[version]), owner),
        "cancel": lambda one, owner, version: scene.cancel(
            one, owner=owner, versions=None if version is None else [version]
        ),
    }
    cases = list(product(changes, (OWNER, "another"), (None, 0, 1)))
    for name, natural in product(SITUATIONS, (False, True)):
        lease = await _prepared(scene, name, len(cases), natural=natural)
        for message_id, (change, owner, wrong) in zip(lease.ids(), cases, strict=True):
            standing = _standing(await scene.find(message_id))
            version = None if wrong is None else wrong + (standing.version if standing else lease.lease_id)
            decided = decide_by_owner(standing, owner=owner, now=scene.now, version=version)
            answer = changes[change](message_id, owner, version)
            await _compare(scene, (name, natural, change, owner, wrong), message_id, decided, answer)


async def a_redrive_moves_what_the_decision_allows(scene: Scene) -> None:
    """Redrive is answered as decided, for each state."""
    target = await scene.new_topic("target")
    for name in SITUATIONS:
        (message_id,) = (await _prepared(scene, name, 1)).ids()
        decided = decide_redrive(_standing(await scene.find(message_id)), now=scene.now)
        answer = scene.redrive(scene.topic, message_id, target=target)
        await _compare(scene, (name, "redrive"), message_id, decided, answer)


async def a_lease_takes_what_the_decision_allows(scene: Scene) -> None:
    """A message is leased exactly when the decision allows it, for each state, `until` and end of the lease."""
    # The distances of `until` and of the end of the lease from now.
    terms = [
        (0, SHORT_MS),
        (-5, SHORT_MS),
        (0, 0),
        (0, 1),
        (500, 500),
        (500, 501),
        (limits.PREFETCH_MS_MAX, limits.PREFETCH_MS_MAX + 1),
        (limits.PREFETCH_MS_MAX + 1, limits.PREFETCH_MS_MAX + 2),
    ]
    assert len(terms) == BUCKETS, "each lease looks at one bucket"
    for name in SITUATIONS:
        ids = sorted((await _prepared(scene, name, len(terms))).ids())
        found = [await scene.find(one) for one in ids]
        buckets = {message.bucket: message for message in found if message is not None}
        for bucket, (ahead, lease_ms) in enumerate(terms):
            message = buckets.get(bucket)
            standing = _standing(message)
            until, expires = scene.now + ahead, scene.now + lease_ms
            decided = standing and decide_lease(standing, until=until, expires=expires, now=scene.now)
            lease = await scene.try_lease("worker-3", ahead=ahead, lease_ms=lease_ms, buckets=[bucket])
            leased = lease is not None and message is not None and lease.ids() == [message.id]
            assert (leased, lease is None) == (decided is Code.OK, decided is not Code.OK), (name, ahead, lease_ms)


async def a_create_is_answered_as_the_decision_says(scene: Scene) -> None:
    """Create is answered as decided, for a free id, and for a message with the same and with another content."""
    numbers = count()
    for leased in (False, True):
        for other in ("", "ts", "bodies", "priorities", "headers", "owner"):
            for beside in (False, True):
                old, new = f"old-{next(numbers)}", f"new-{next(numbers)}"
                ids = [old, new] if beside else [old]
                first = scene.batch([old], delays=[0], bodies=[b"body"], priorities=[1], headers=[{"a": "b"}])
                assert await scene.create(first) == [decide_create(exists=False, same_content=False)]
                if leased:
                    await scene.lease()
                again = scene.batch(
                    ids,
                    delays=[0 if other != "ts" else 1] * len(ids),
                    bodies=[b"body" if other != "bodies" else b"another"] * len(ids),
                    priorities=[1 if other != "priorities" else 2] * len(ids),
                    headers=[{"a": "b"} if other != "headers" else {"a": "c"}] * len(ids),
                    owner=OWNER if other != "owner" else "another",
                )
                decided = [decide_create(exists=True, same_content=not other)]
                decided += [decide_create(exists=False, same_content=False)] * (len(ids) - 1)
                assert await scene.create(again) == decided, (leased, other, beside)


async def a_transaction_decides_as_its_changes(scene: Scene) -> None:
    """Each kind of step is answered as decided, for each state and holder or owner."""
    sequences = count()
    for name in SITUATIONS:
        lease = await _prepared(scene, name, 8)
        for message_id, (step, of) in zip(lease.ids(), _steps(scene.topic, lease, scene.now), strict=True):
            standing = _standing(await scene.find(message_id))
            if isinstance(step, Delete | Release):
                decided = decide_by_consumer(standing, consumer=of, version=lease.lease_id, now=scene.now)
            else:
                decided = decide_by_owner(standing, owner=of, now=scene.now)
            before = await scene.find(message_id)
            verdict = await scene.transact(step, sequence=next(sequences))
            assert verdict.code is decided, (name, step, before)
            assert decided is Code.OK or await scene.find(message_id) == before, (name, step)


def _steps(topic: Topic, lease: LeaseSet, now: int) -> Iterator[tuple[Step, str]]:
    """One step per row of a lease, and the consumer or the owner that the step names."""
    ids = iter(lease.ids())
    rows = ([(row, row + 1)] for row in numbers_of(lease))
    for consumer in (WORKER, OTHER):
        next(ids), next(ids)
        yield Delete(topic, lease.lease_id, consumer, next(rows)), consumer
        yield Release(topic, lease.lease_id, consumer, next(rows), now + 9), consumer
    for owner in (OWNER, "another"):
        yield Edit(topic, owner, Edits([next(ids)], ts=[now + 9])), owner
        yield Cancel(topic, owner, [next(ids)]), owner
