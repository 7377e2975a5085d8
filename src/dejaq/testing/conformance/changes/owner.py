"""Move, edit and cancel: by the owner, while no consumer holds a live lease."""

from __future__ import annotations

from dejaq import limits
from dejaq.domain.batch import ChangeName
from dejaq.domain.changes import Cancel, Edits
from dejaq.domain.headers import encode_header_change, encode_headers
from dejaq.domain.message import Status
from dejaq.errors import Code
from dejaq.testing.conformance.scene import OWNER, WORKER, Scene, attempts_of


async def move_changes_the_time(scene: Scene) -> None:
    """A moved message is due exactly at its new time, whether it is earlier or later, near or far."""
    await scene.put("sooner", 86_400_000)
    await scene.put("later", 10)
    (generated,) = await scene.generate([20], bucket=2)
    codes = await scene.edit(
        Edits(
            ["sooner", "later", generated],
            ts=[scene.now + 5, scene.now + 86_400_000, scene.now + 3_600_000],
        )
    )
    assert codes == [Code.OK] * 3
    scene.advance(100)
    assert (await scene.lease()).ids() == ["sooner"]
    assert await scene.try_lease() is None
    scene.advance(3_600_000)
    await _take(scene, "sooner", generated)
    scene.advance(86_400_000)
    await _take(scene, "later")


async def _take(scene: Scene, *ids: str) -> None:
    lease = await scene.lease()
    assert sorted(lease.ids()) == sorted(ids)
    assert set(await scene.delete(lease)) == {Code.OK}


async def edit_changes_only_what_is_given(scene: Scene) -> None:
    """A None column, or a None in it, keeps the value of that field; the other fields are set; the version grows."""
    for name in ("a", "b", "c"):
        await scene.put(name, 50, body=b"old", priority=1, headers={"h": "old"})
    before = [await scene.get(name) for name in ("a", "b", "c")]
    edits = Edits(
        ["a", "b", "c"],
        ts=[None, scene.now + 99, None],
        bodies=[b"new", None, None],
        priorities=[None, None, -9],
        headers=[None, encode_header_change({"h": "new", "i": ""}), b""],
    )
    assert await scene.edit(edits) == [Code.OK] * 3
    a, b, c = [await scene.get(name) for name in ("a", "b", "c")]
    assert (a.ts, a.body, a.priority, a.headers) == (scene.now + 50, b"new", 1, {"h": "old"})
    assert (b.ts, b.body, b.priority, b.headers) == (scene.now + 99, b"old", 1, {"h": "new", "i": ""})
    assert (c.ts, c.body, c.priority, c.headers) == (scene.now + 50, b"old", -9, {"h": "old"})
    for old, new in zip(before, (a, b, c), strict=True):
        assert new.version > old.version
        assert (new.id, new.bucket, new.producer_group) == (old.id, old.bucket, OWNER)
        assert (new.attempts, new.lock_consumer) == (0, "")


async def edited_values_reach_the_consumer(scene: Scene) -> None:
    """A lease carries the edited body, headers and priority, in the edited order."""
    for name in ("a", "b", "c"):
        await scene.put(name, -5, body=name.encode())
    edits = Edits(["c", "a"], priorities=[-1, 1], bodies=[b"C", None], headers=[None, encode_header_change({"x": "y"})])
    assert await scene.edit(edits) == [Code.OK, Code.OK]
    lease = await scene.lease()
    assert lease.ids() == ["c", "b", "a"]
    assert lease.bodies == [b"C", b"b", b"a"]
    assert lease.headers == [b"", b"", encode_headers({"x": "y"})]


async def edited_headers_are_merged(scene: Scene) -> None:
    """U16: an edit sets the headers that it names and removes the headers that it sets to None; all others stay."""
    await scene.put("m", 500, headers={"keep": "1", "change": "old", "drop": "2"})
    (generated,) = await scene.generate([500])
    change = encode_header_change({"change": "new", "add": "3", "drop": None, "nothing": None})
    assert await scene.edit(Edits(["m", generated], headers=[change, change])) == [Code.OK] * 2
    assert (await scene.get("m")).headers == {"keep": "1", "change": "new", "add": "3"}
    assert (await scene.get(generated)).headers == {"change": "new", "add": "3"}
    twice = [encode_header_change({"add": None, "a": "1"}), encode_header_change({"b": "2", "a": None})]
    assert await scene.edit(Edits(["m", "m"], headers=twice)) == [Code.OK] * 2
    assert (await scene.get("m")).headers == {"keep": "1", "change": "new", "b": "2"}
    assert await scene.edit(Edits(["m"], ts=[scene.now])) == [Code.OK]
    assert (await scene.get("m")).headers == {"keep": "1", "change": "new", "b": "2"}


async def merged_headers_stay_within_the_limits(scene: Scene) -> None:
    """U16: an edit that would give a message too many headers is refused and changes nothing;
    headers can be removed.
    """
    half = limits.HEADERS_COUNT_MAX // 2
    first = {f"a{number}": "" for number in range(half)}
    await scene.put("m", 500, body=b"old", headers=first)
    await scene.put("other", 500)
    second = encode_header_change({f"b{number}": "" for number in range(half + 1)})
    edits = Edits(["m", "other"], headers=[second, second], bodies=[b"new", b"new"])
    assert await scene.edit(edits) == [Code.INVALID_HEADERS, Code.OK]
    assert ((await scene.get("m")).body, (await scene.get("m")).headers) == (b"old", first)
    both = [encode_header_change({"a0": None}), second]
    assert await scene.edit(Edits(["m", "m"], headers=both)) == [Code.OK] * 2
    assert len((await scene.get("m")).headers) == 2 * half


async def a_body_may_grow_and_shrink(scene: Scene) -> None:
    """An edit may replace an inline body by one that is stored separately and back, or by an empty body."""
    large = b"L" * (limits.INLINE_BODY_BYTES_MAX + 1)
    await scene.put("m", 500, body=b"small")
    (generated,) = await scene.generate([500])
    for body in (large, b"small", large, large[:-1] + b"!", b""):
        assert await scene.edit(Edits(["m", generated], bodies=[body, body])) == [Code.OK] * 2
        assert [(await scene.get(one)).body for one in ("m", generated)] == [body, body]
    assert await scene.edit(Edits(["m"], bodies=[large])) == [Code.OK]
    assert await scene.edit(Edits(["m"], ts=[scene.now])) == [Code.OK]
    assert (await scene.lease()).bodies == [large]


async def only_the_owner_changes(scene: Scene) -> None:
    """Edit and cancel by another group are NOT_OWNER and change nothing."""
    await scene.put("mine", 50)
    (generated,) = await scene.generate([50])
    before = await scene.get("mine")
    assert await scene.edit(Edits(["mine", generated], bodies=[b"x", b"x"]), owner="another") == [Code.NOT_OWNER] * 2
    assert await scene.cancel("mine", generated, owner="another") == [Code.NOT_OWNER] * 2
    assert await scene.get("mine") == before
    assert await scene.count() == 2


async def a_live_lease_keeps_the_owner_out(scene: Scene) -> None:
    """While a consumer holds the message, edit and cancel are LEASED; from the lease's end on they succeed."""
    await scene.put("held")
    (generated,) = await scene.generate([0])
    await scene.lease(lease_ms=1_000)
    before = await scene.get("held")
    edits = Edits(["held", generated], ts=[scene.now + 9_000] * 2)
    scene.advance(999)
    assert await scene.edit(edits) == [Code.LEASED] * 2
    assert await scene.cancel("held", generated) == [Code.LEASED] * 2
    assert await scene.get("held") == before
    scene.advance(1)
    assert await scene.edit(edits) == [Code.OK] * 2
    assert await scene.cancel("held", generated) == [Code.OK] * 2


async def an_edit_ends_a_lost_lease(scene: Scene) -> None:
    """After an edit of a lost message the attempts stay, the lock is removed and the version is new."""
    await scene.put("lost", body=b"old")
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(1_500)
    assert await scene.edit(Edits(["lost"], bodies=[b"new"])) == [Code.OK]
    found = await scene.get("lost")
    assert (found.ts, found.body) == (lease.expires, b"new")
    assert (found.attempts, found.lock_consumer) == (1, "")
    assert found.version > lease.lease_id
    assert await scene.delete(lease) == [Code.LEASE_LOST]
    assert await scene.count(consumer=WORKER) == 0
    again = await scene.lease("worker-2")
    assert (again.bodies, attempts_of(again)) == ([b"new"], [2])


async def a_moved_lost_message_waits(scene: Scene) -> None:
    """A lost message that is moved ahead is waiting, not processing."""
    await scene.put("lost")
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    assert await scene.edit(Edits(["lost"], ts=[scene.now + 5_000])) == [Code.OK]
    found = await scene.get("lost")
    assert (found.status(scene.now), found.attempts) == (Status.WAITING, 1)
    assert await scene.statuses() == (0, 1, 0)
    assert await scene.extend(lease) == [Code.LEASE_LOST]


async def versions_make_an_edit_conditional(scene: Scene) -> None:
    """With a version, an edit is VERSION_CONFLICT unless the message still has it; with None it has no condition."""
    for name in ("a", "b", "c"):
        await scene.put(name, 50, body=b"old")
    a, b, c = [(await scene.get(name)).version for name in ("a", "b", "c")]
    assert await scene.edit(Edits(["b"], bodies=[b"new"], versions=[b])) == [Code.OK]
    edits = Edits(["a", "b", "c"], bodies=[b"A", b"B", b"C"], versions=[a, b, None])
    assert await scene.edit(edits) == [Code.OK, Code.VERSION_CONFLICT, Code.OK]
    assert [(await scene.get(name)).body for name in ("a", "b", "c")] == [b"A", b"new", b"C"]
    now_b = (await scene.get("b")).version
    assert await scene.edit(Edits(["b", "c"], bodies=[b"B", b"?"], versions=[now_b, c])) == [
        Code.OK,
        Code.VERSION_CONFLICT,
    ]


async def one_of_two_editors_wins(scene: Scene) -> None:
    """Of two edits with the same version, the first succeeds and the second is refused."""
    (generated,) = await scene.generate([50])
    version = (await scene.get(generated)).version
    first = Edits([generated], bodies=[b"first"], versions=[version])
    second = Edits([generated], bodies=[b"second"], versions=[version])
    assert await scene.edit(first) == [Code.OK]
    assert await scene.edit(second) == [Code.VERSION_CONFLICT]
    assert (await scene.get(generated)).body == b"first"


async def refusals_have_an_order(scene: Scene) -> None:
    """NOT_FOUND, then NOT_OWNER, then LEASED, then VERSION_CONFLICT."""
    await scene.put("m")
    await scene.lease()
    stale = Edits(["m", "nobody"], bodies=[b"x", b"x"], versions=[1, 1])
    assert await scene.edit(stale, owner="another") == [Code.NOT_OWNER, Code.NOT_FOUND]
    assert await scene.edit(stale) == [Code.LEASED, Code.NOT_FOUND]


async def cancel_removes(scene: Scene) -> None:
    """A cancelled message is in no query, is never leased, and a second cancel is NOT_FOUND."""
    await scene.put("a", 10)
    await scene.put("b", 10)
    first, second, third = await scene.generate([10, 20, 30])
    assert await scene.cancel("a", second, "nobody") == [Code.OK, Code.OK, Code.NOT_FOUND]
    assert await scene.cancel("a", second) == [Code.NOT_FOUND] * 2
    assert await scene.edit(Edits(["a"], ts=[scene.now])) == [Code.NOT_FOUND]
    found = await scene.storage.get(scene.topic, ["a", "b", first, second, third], scene.now)
    assert [message is not None for message in found] == [False, True, True, False, True]
    assert await scene.count() == 3
    scene.advance(1_000)
    assert sorted((await scene.lease()).ids()) == sorted(["b", first, third])


async def a_named_cancel_is_recognised(scene: Scene) -> None:
    """P3: a repeat of a named cancel is OK for the messages that it cancelled, and for no others, even new messages."""
    await scene.put("a", 10)
    await scene.put("b", 10)
    (generated,) = await scene.generate([10])
    ids = ["a", "nobody", generated, "b"]
    session = scene.session()
    name = ChangeName(session, range(4))
    assert await scene.cancel("a", "nobody", generated, name=ChangeName(session, range(3))) == [
        Code.OK,
        Code.NOT_FOUND,
        Code.OK,
    ]
    assert await scene.cancel(*ids, name=name) == [Code.OK, Code.NOT_FOUND, Code.OK, Code.OK]
    await scene.put("a", 10)
    assert await scene.cancel(*ids, name=name) == [Code.OK, Code.NOT_FOUND, Code.OK, Code.OK]
    assert await scene.count() == 1, "a repeat cancels no message that came later"
    other = ChangeName(scene.session(), range(4))
    assert await scene.cancel(*ids, name=other) == [Code.OK, *[Code.NOT_FOUND] * 3]


async def a_named_cancel_of_many_leaves_gaps(scene: Scene) -> None:
    """In a named cancel of the maximum size every second id may be unknown."""
    await scene.put_many(limits.NAMED_CHANGES_MAX // 2)
    ids = [f"m-{number // 2:05d}" if number % 2 else f"none-{number}" for number in range(limits.NAMED_CHANGES_MAX)]
    name = ChangeName(scene.session(), range(len(ids)))
    expected = [Code.NOT_FOUND, Code.OK] * (len(ids) // 2)
    assert await scene.cancel(*ids, name=name) == expected
    assert await scene.cancel(*ids, name=name) == expected


async def a_cancel_may_ask_for_a_version(scene: Scene) -> None:
    """A message that was changed since it was read is not cancelled: VERSION_CONFLICT, and the message stays."""
    await scene.put("a", 10)
    await scene.put("b", 10)
    (generated,) = await scene.generate([10])
    ids = ["a", "b", generated]
    versions = [(await scene.get(message_id)).version for message_id in ids]
    assert await scene.edit(Edits(["b"], bodies=[b"new"])) == [Code.OK]
    assert await scene.cancel(*ids, versions=versions) == [Code.OK, Code.VERSION_CONFLICT, Code.OK]
    changed = await scene.get("b")
    assert changed.body == b"new"
    step = Cancel(scene.topic, OWNER, ["b"], versions[1:2])
    assert (await scene.transact(step)).code is Code.VERSION_CONFLICT
    step = Cancel(scene.topic, OWNER, ["b"], [changed.version])
    assert (await scene.transact(step, sequence=1)).code is Code.OK
    assert await scene.count() == 0


async def a_lost_message_may_be_cancelled(scene: Scene) -> None:
    """Cancel works on a message that is available after a lost lease, and the old holder gets LEASE_LOST."""
    await scene.put_many(2)
    lease = await scene.lease(lease_ms=1_000)
    scene.advance(1_000)
    assert await scene.cancel(lease.ids()[0]) == [Code.OK]
    assert await scene.delete(lease) == [Code.LEASE_LOST] * 2
    assert (await scene.lease()).ids() == lease.ids()[1:]


async def the_same_id_twice_is_done_in_order(scene: Scene) -> None:
    """Of one id in a call, a second cancel is NOT_FOUND, and a second edit works on the result of the first."""
    await scene.put("m", 50)
    (generated,) = await scene.generate([50])
    for one in ("m", generated):
        assert await scene.edit(Edits([one, one], bodies=[b"1", None], priorities=[None, 7])) == [Code.OK] * 2
        found = await scene.get(one)
        assert (found.body, found.priority) == (b"1", 7)
        assert await scene.cancel(one, one) == [Code.OK, Code.NOT_FOUND]
    assert await scene.count() == 0


async def many_changes_leave_one_message(scene: Scene) -> None:
    """However often a message is moved, it exists once."""
    await scene.put("m", 10)
    (generated,) = await scene.generate([10])
    for step in range(30):
        target = scene.now + (step * 7_919) % 200_000
        assert await scene.edit(Edits(["m", generated], ts=[target, target])) == [Code.OK] * 2
        assert await scene.count() == 2
        assert [message.ts for message in await scene.browse()] == [target] * 2
    scene.advance(200_000)
    assert sorted((await scene.lease()).ids()) == sorted(["m", generated])


async def edits_of_a_part_leave_the_rest(scene: Scene) -> None:
    """Changing every third message of a batch leaves the others unchanged."""
    ids = await scene.generate(list(range(0, 9_000, 100)), bucket=1)
    chosen = ids[::3]
    assert await scene.edit(Edits(chosen, priorities=[5] * len(chosen))) == [Code.OK] * len(chosen)
    assert await scene.cancel(*ids[1::3]) == [Code.OK] * len(ids[1::3])
    found = await scene.storage.get(scene.topic, ids, scene.now)
    expected = [{0: 5, 1: None, 2: 0}[row % 3] for row in range(len(ids))]
    assert [message.priority if message else None for message in found] == expected
    scene.advance(9_000)
    assert (await scene.lease()).ids() == [one for row, one in enumerate(ids) if row % 3 != 1]
