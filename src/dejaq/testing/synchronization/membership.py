"""Checks of membership: kept while it is renewed, over by the member's own clock before others see it go."""

from __future__ import annotations

import time
from math import isfinite

from dejaq.testing.synchronization.stage import Member, Scene
from dejaq.testing.waiting import eventually

SECONDS = 20.0


async def a_member_may_serve_while_it_is_open(scene: Scene) -> None:
    """`serving_until` lies ahead between `open` and `close`, and not behind them."""
    member = await scene.join()
    assert member.place.serving_until() > time.monotonic()
    assert member.place.failure is None
    await member.place.close()
    assert member.place.serving_until() < time.monotonic()


async def a_bound_record_goes_with_its_member(scene: Scene) -> None:
    """Who leaves takes its bound records with it at once; the others stay."""
    one, other = await scene.place(), await scene.place()
    await one.put("members/one", b"1", expected=0, bound=True)
    await one.put("topics/mail", b"live")
    await one.put("members/one", b"2", bound=True)
    assert await other.get("members/one") is not None
    await one.close()
    assert await other.get("members/one") is None
    assert await other.get("topics/mail") is not None


async def a_bound_record_outlives_many_renewals(scene: Scene) -> None:
    """A member that lives on keeps its records past the time that one promise lasts."""
    one, other = await scene.place(), await scene.place()
    record = await one.put("members/one", b"1", expected=0, bound=True)
    first = one.serving_until()
    if isfinite(first):
        await eventually(lambda: time.monotonic() > first + 1, within=SECONDS, what="the promise is over", poll=0.2)
    assert await other.get("members/one") == record
    assert one.serving_until() > time.monotonic()


async def a_member_that_is_cut_off_knows_before_the_others(scene: Scene) -> None:
    """When others see a member vanish, it has stopped by its own clock; mended, it is back with a later token."""
    member, other = await scene.join(), await scene.place()
    record = await member.place.put("members/one", b"1", expected=0, bound=True)
    assert record is not None
    member.cut()

    async def vanished() -> bool:
        # Read first: were it the other way round, the member could stop between the two looks.
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


def _failed(member: Member) -> bool:
    return member.place.failure is not None
