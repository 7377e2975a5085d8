"""Checks of membership: it lasts while it is renewed, and ends by the member's own clock before others see it end."""

from __future__ import annotations

import time
from math import isfinite

from dejaq.testing.synchronization.stage import ClusterScene, StageMember
from dejaq.testing.waiting import eventually

SECONDS = 20.0


async def a_member_may_serve_while_it_is_open(scene: ClusterScene) -> None:
    """`serving_until` is in the future between `open` and `close`, and in the past otherwise."""
    member = await scene.join()
    assert member.place.serving_until() > time.monotonic()
    assert member.place.failure is None
    await member.place.close()
    assert member.place.serving_until() < time.monotonic()


async def a_bound_record_goes_with_its_member(scene: ClusterScene) -> None:
    """A member that leaves removes its bound records at once; the records of others stay."""
    one, other = await scene.place(), await scene.place()
    await one.put("members/one", b"1", expected=0, bound=True)
    await one.put("topics/mail", b"live")
    await one.put("members/one", b"2", bound=True)
    assert await other.get("members/one") is not None
    await one.close()
    assert await other.get("members/one") is None
    assert await other.get("topics/mail") is not None


async def bound_records_that_are_written_together_go_with_their_member(scene: ClusterScene) -> None:
    """Records of one change are all there, replace what was there before, and go with their member."""
    one, other = await scene.place(), await scene.place()
    await one.put("seats/one/0", b"before", bound=True)
    keys = [f"seats/one/{number}" for number in range(64)]
    await one.put_bound({key: key.encode() for key in keys})
    assert {record.key: record.value for record in await other.under("seats/one/")} == {k: k.encode() for k in keys}
    await one.remove(keys[0])
    await one.put_bound({keys[1]: b"after"})
    assert await other.get(keys[0]) is None
    changed = await other.get(keys[1])
    assert changed is not None
    assert changed.value == b"after"
    await one.close()
    assert await other.under("seats/one/") == []


async def a_bound_record_outlives_many_renewals(scene: ClusterScene) -> None:
    """A member keeps its records for longer than one period of membership."""
    one, other = await scene.place(), await scene.place()
    record = await one.put("members/one", b"1", expected=0, bound=True)
    first = one.serving_until()
    if isfinite(first):
        await eventually(
            lambda: time.monotonic() > first + 1, within=SECONDS, what="the membership period ends", poll=0.2
        )
    assert await other.get("members/one") == record
    assert one.serving_until() > time.monotonic()


async def a_member_that_is_cut_off_knows_before_the_others(scene: ClusterScene) -> None:
    """Before others see a member vanish, it has stopped by its own clock; reconnected, it returns
    with a later token.
    """
    member, other = await scene.join(), await scene.place()
    record = await member.place.put("members/one", b"1", expected=0, bound=True)
    assert record is not None
    member.cut()

    async def vanished() -> bool:
        # Read first: in the other order the member could stop between the two reads.
        until = member.place.serving_until()
        gone = await other.get("members/one") is None
        assert not gone or until < time.monotonic(), "the others saw it vanish while it may serve"
        return gone

    await eventually(vanished, within=SECONDS, what="the record vanishes")
    assert member.place.serving_until() < time.monotonic()
    assert _failed(member)
    member.mend()
    await eventually(lambda: member.place.serving_until() > time.monotonic(), within=SECONDS, what="the member is back")
    assert not _failed(member)
    again = await other.get("members/one")
    assert again is not None
    assert again.value == b"1"
    assert again.token > record.token


async def a_member_comes_back_without_what_another_has_taken(scene: ClusterScene) -> None:
    """A member whose membership expired can return although another member has taken one of its records."""
    member, other = await scene.join(), await scene.place()
    place = member.place
    assert await place.put("members/one", b"1", bound=True) is not None
    assert await place.put("work/mail", b"1", expected=0, bound=True, comes_back=False) is not None
    assert await place.put("work/post", b"1", expected=0, bound=True, comes_back=False) is not None
    member.cut()

    async def taken() -> bool:
        return await other.put("work/mail", b"2", expected=0, bound=True, comes_back=False) is not None

    await eventually(taken, within=SECONDS, what="another has taken it")
    member.mend()
    await eventually(lambda: place.serving_until() > time.monotonic(), within=SECONDS, what="the member is back")
    assert await other.get("members/one") is not None
    assert await other.get("work/post") is None
    record = await place.get("work/mail")
    assert record is not None
    assert record.value == b"2"


def _failed(member: StageMember) -> bool:
    return member.place.failure is not None
