"""Bulk changes of messages that match a filter."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq import Where
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC

HOUR_MS = 3_600_000


@pytest.fixture
async def filled(client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock) -> dejaq.Producer:
    """Ten messages, one per hour, of different priorities, every second one of campaign b; and one of another group."""
    now = clock.now_ms()
    await producer.send_batch(
        [b"old"] * 10,
        ids=[f"m{number}" for number in range(10)],
        at=[now + HOUR_MS * (number + 1) for number in range(10)],
        priorities=list(range(10)),
        headers=[{"campaign": "b" if number % 2 else "a"} for number in range(10)],
    )
    async with client.producer(TOPIC, group="other") as other:
        await other.send(b"theirs", id="theirs", at=now + HOUR_MS, headers={"campaign": "b"})
    return producer


async def bodies(client: dejaq.Client) -> dict[str, bytes]:
    return {message.id: message.body async for page in client.browse(TOPIC) for message in page}


async def test_an_edit_by_header_changes_the_messages_of_the_owner(
    client: dejaq.Client, filled: dejaq.Producer
) -> None:
    where = Where(headers={"campaign": "b"})
    assert await filled.count_where(where) == 5
    reported: list[int] = []
    result = await filled.edit_where(where, body=b"new", priority=-1, progress=lambda done, _: reported.append(done))
    assert (result.done, result.matched, result.ok, reported) == (5, 5, True, [5])
    found = await bodies(client)
    assert {one for one, body in found.items() if body == b"new"} == {"m1", "m3", "m5", "m7", "m9"}
    assert found["theirs"] == b"theirs"
    assert await client.count(TOPIC, priorities=(-1, -1)) == 5


async def test_filters_by_time_and_priority(client: dejaq.Client, filled: dejaq.Producer, clock: VirtualClock) -> None:
    now = clock.now_ms()
    assert await filled.count_where(Where(start=now + 2 * HOUR_MS, end=now + 4 * HOUR_MS)) == 2
    assert await filled.count_where(Where(priorities=(3, 6))) == 4
    assert await filled.count_where(Where(priorities=(3, 6), headers={"campaign": "a"})) == 2
    assert (await filled.cancel_where(Where(start=now + 9 * HOUR_MS))).done == 2
    assert sorted(await bodies(client)) == [*(f"m{number}" for number in range(8)), "theirs"]


async def test_moves_to_one_time_or_by_a_distance(
    client: dejaq.Client, filled: dejaq.Producer, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    assert (await filled.move_where(Where(priorities=(0, 1)), delay=5.0)).done == 2
    assert (await filled.move_where(Where(priorities=(2, 3)), shift=-1.5)).done == 2
    times = {m.id: m.ts for page in [await client.get(TOPIC, ["m0", "m1", "m2", "m3", "m4"])] for m in page if m}
    assert times["m0"] == times["m1"] == now + 5_000
    assert (times["m2"], times["m3"]) == (now + 3 * HOUR_MS - 1_500, now + 4 * HOUR_MS - 1_500)
    assert times["m4"] == now + 5 * HOUR_MS


async def test_a_filter_that_matches_nothing_is_an_error(filled: dejaq.Producer) -> None:
    result = await filled.edit_where(Where(headers={"campaign": "none"}), priority=1)
    assert (result.matched, result.done, result.ok) == (0, 0, True)


async def test_leased_messages_are_refused_and_the_others_are_changed(
    client: dejaq.Client, filled: dejaq.Producer
) -> None:
    await filled.send(b"due", id="due")
    async with client.consumer(TOPIC, max_messages=1) as consumer:
        held = await anext(aiter(consumer))
        result = await filled.edit_where(Where(), everything=True, body=b"new")
        assert (result.done, result.refused, result.examples) == (
            10,
            {dejaq.Code.LEASED: 1},
            {"due": dejaq.Code.LEASED},
        )
        await held.delete()


async def test_two_concurrent_edits_of_the_same_messages_never_both_succeed(
    client: dejaq.Client, filled: dejaq.Producer
) -> None:
    """One of the two callers changes each message, and the other caller gets VERSION_CONFLICT."""
    async with client.producer(TOPIC, group="billing") as second:
        results = await asyncio.gather(
            filled.edit_where(Where(), everything=True, body=b"first"),
            second.edit_where(Where(), everything=True, body=b"second"),
        )
    found = list((await bodies(client)).values())
    for result, body in zip(results, (b"first", b"second"), strict=True):
        # If one scanned after the other had changed a message, its own change of that message is the last one.
        assert found.count(body) <= result.done
        assert set(result.refused) <= {dejaq.Code.VERSION_CONFLICT}
        assert result.matched == 10
    assert found.count(b"first") + found.count(b"second") == 10


async def test_one_of_two_edits_of_one_version_is_a_definite_conflict(
    client: dejaq.Client, filled: dejaq.Producer
) -> None:
    [message] = await client.get(TOPIC, ["m5"])
    assert message is not None
    async with client.producer(TOPIC, group="billing") as second:
        outcomes = await asyncio.gather(
            filled.edit("m5", body=b"one", version=message.version),
            second.edit("m5", body=b"two", version=message.version),
            return_exceptions=True,
        )
    codes = {one.code if isinstance(one, dejaq.DejaqError) else one for one in outcomes}
    assert codes == {dejaq.Code.OK, dejaq.Code.VERSION_CONFLICT}


async def test_a_message_that_is_edited_between_the_scan_and_the_cancel_stays(
    client: dejaq.Client, filled: dejaq.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that another producer changed meanwhile is not cancelled, and the caller gets its id."""
    cancel = filled._session.by_owner.cancel

    async def overtaken(ids: list[str], *, versions: list[int] | None = None) -> dejaq.Results:
        async with client.producer(TOPIC, group="billing") as other:
            await other.edit("m3", body=b"keep me")
        return await cancel(ids, versions=versions)

    monkeypatch.setattr(filled._session.by_owner, "cancel", overtaken)
    result = await filled.cancel_where(Where(), everything=True)
    assert (result.done, result.examples) == (9, {"m3": dejaq.Code.VERSION_CONFLICT})
    assert await bodies(client) == {"m3": b"keep me", "theirs": b"theirs"}


@pytest.mark.parametrize("kept", [True, False])
async def test_a_prefetched_message_is_changed_if_it_still_matches(
    client: dejaq.Client, producer: dejaq.Producer, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan sees the version of the lease. The message is recalled, and the filter is checked again."""
    async with client.consumer(TOPIC, name="holder", prefetch=2.0):
        held = await producer.send(b"x", delay=1, priority=3)

        async def leased() -> bool:
            [message] = await client.get(TOPIC, [held])
            return message is not None and message.lock_consumer == "holder"

        await eventually(leased, within=10, what="the message is prefetched")
        cancel = producer._session.by_owner.cancel

        async def overtaken(ids: list[str], *, versions: list[int] | None = None) -> dejaq.Results:
            if not kept:
                await producer.edit(held, priority=4)
            return await cancel(ids, versions=versions)

        monkeypatch.setattr(producer._session.by_owner, "cancel", overtaken)
        result = await producer.cancel_where(Where(priorities=(3, 3)))
        assert result.done == (1 if kept else 0)
    assert await client.count(TOPIC) == (0 if kept else 1)


async def test_a_change_needs_something_to_change(filled: dejaq.Producer) -> None:
    with pytest.raises(dejaq.InvalidArgument, match="give what to change"):
        await filled.edit_where(Where())
    with pytest.raises(dejaq.InvalidArgument, match="give the new time"):
        await filled.move_where(Where())
    with pytest.raises(dejaq.InvalidArgument) as refused:
        await filled.count_where(Where(priorities=(0, 2**31)))
    assert refused.value.code is dejaq.Code.INVALID_PRIORITY


async def test_thousands_of_messages_are_changed_in_portions(client: dejaq.Client, producer: dejaq.Producer) -> None:
    await producer.send_batch([b""] * 2_500, delay=60.0)
    reported: list[int] = []
    result = await producer.edit_where(
        Where(), everything=True, priority=4, progress=lambda done, _: reported.append(done)
    )
    assert (result.done, reported) == (2_500, [1_000, 2_000, 2_500])
    assert await client.count(TOPIC, priorities=(4, 4)) == 2_500


async def test_an_empty_filter_must_be_confirmed(client: dejaq.Client, filled: dejaq.Producer) -> None:
    """U18: a filter without conditions matches every message of the group, so the caller must confirm it."""
    for change in (
        filled.cancel_where(Where()),
        filled.move_where(Where(headers={}), shift=60),
        filled.move_where(Where(), delay=60),
        filled.edit_where(Where(), priority=4),
    ):
        with pytest.raises(dejaq.InvalidArgument, match="everything=True"):
            await change
    assert await client.count(TOPIC) == 11
    assert (await filled.cancel_where(Where(), everything=True)).done == 10
