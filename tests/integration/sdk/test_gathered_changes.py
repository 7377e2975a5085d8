"""Small changes that are waiting are sent together in one frame, and each gets an answer of its own."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport

IDS = [f"m-{number}" for number in range(10)]


async def answers(*changes: object) -> list[object]:
    """The answer to each change, or the code of its refusal."""
    done = await asyncio.gather(*changes, return_exceptions=True)  # type: ignore[call-overload]
    return [one.code if isinstance(one, dejaq.DejaqError) else None for one in done]


async def test_waiting_cancels_share_a_frame_and_each_has_its_own_answer(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await producer.send_batch([b"x"] * 10, ids=IDS, delay=60)
    asked = [*IDS[:5], "missing", *IDS[5:]]
    assert await answers(*map(producer.cancel, asked)) == [
        dejaq.Code.NOT_FOUND if one == "missing" else None for one in asked
    ]
    assert [len(frame.cancel.ids) for frame in wire.frames if frame.HasField("cancel")] == [11]
    assert await client.count(TOPIC) == 0


async def test_changes_of_another_kind_do_not_share_a_frame(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await producer.send_batch([b"x"] * 10, ids=IDS, delay=60)
    moves = [producer.move(one, delay=90) for one in IDS[:4]]
    edits = [producer.edit(one, body=one.encode()) for one in IDS[4:8]]
    stale = [producer.edit(one, body=b"z", version=1) for one in IDS[6:8]]
    assert await answers(*moves, *edits, *stale) == [None] * 8 + [dejaq.Code.VERSION_CONFLICT] * 2
    assert [len(frame.edit.ids) for frame in wire.frames if frame.HasField("edit")] == [4, 4, 2]
    found = {message.id: message async for page in client.browse(TOPIC) for message in page}
    assert [found[one].body for one in IDS] == [b"x"] * 4 + [one.encode() for one in IDS[4:8]] + [b"x"] * 2
    assert min(found[one].ts for one in IDS[:4]) > max(found[one].ts for one in IDS[4:])


@pytest.mark.parametrize("done", [False, True])
async def test_a_frame_that_is_cut_is_sent_again_and_its_changes_are_definite(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock, done: bool
) -> None:
    """G6: whether or not the broker had done it, every cancel is answered as done."""
    await producer.send_batch([b"x"] * 10, ids=IDS, delay=60)
    wire.cut("cancel", done=done)
    cancelling = asyncio.gather(*map(producer.cancel, IDS))
    while not cancelling.done():
        await clock.advance(100)
    assert all(result.ok for result in await cancelling)
    assert await client.count(TOPIC) == 0


async def test_many_changes_at_once_are_split_into_frames(producer: dejaq.Producer, wire: CuttingTransport) -> None:
    await producer.send_batch([b"x"] * 10, ids=IDS, delay=60)
    await asyncio.gather(*(producer.edit(one, body=b"y" * 100_000) for one in IDS))
    assert [len(frame.edit.ids) for frame in wire.frames if frame.HasField("edit")] == [2, 2, 2, 2, 2]


async def test_a_change_whose_caller_was_cancelled_is_not_sent(client: dejaq.Client, producer: dejaq.Producer) -> None:
    await producer.send_batch([b"x"] * 10, ids=IDS, delay=60)
    cancelling = [asyncio.ensure_future(producer.cancel(one)) for one in IDS]
    await asyncio.sleep(0)
    for one in cancelling[5:]:
        one.cancel()
    await asyncio.gather(*cancelling, return_exceptions=True)
    assert {message.id async for page in client.browse(TOPIC) for message in page} == set(IDS[5:])


async def test_gets_of_one_moment_are_one_call_and_each_has_its_own_answer(
    client: dejaq.Client, producer: dejaq.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("other")
    await producer.send_batch([one.encode() for one in IDS], ids=IDS, delay=60)
    call, asked = CuttingTransport.call, list[list[str]]()

    async def counted(*arguments: object) -> object:
        if arguments[1] == "Carrier.Get":
            asked.append(list(arguments[2].ids))  # type: ignore[attr-defined]
        return await call(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CuttingTransport, "call", counted)
    wanted = [*IDS[:3], "missing", IDS[0]]
    found = await asyncio.gather(*(client.get(TOPIC, [one]) for one in wanted), client.get("other", IDS))
    bodies = [[message.body if message else None for message in messages] for messages in found]
    assert bodies == [[b"m-0"], [b"m-1"], [b"m-2"], [None], [b"m-0"], [None] * 10]
    assert asked == [wanted, IDS]


async def test_gets_that_are_too_large_together_are_called_alone(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    await producer.send_batch([b"x" * 1_000_000] * 10, ids=IDS, delay=60)
    found = await asyncio.gather(*(client.get(TOPIC, [one]) for one in IDS))
    assert [len(message.body) for [message] in found if message is not None] == [1_000_000] * 10


async def test_gets_of_a_missing_topic_fail_alone(client: dejaq.Client, producer: dejaq.Producer) -> None:
    await producer.send(b"x", id="here", delay=60)
    found = await asyncio.gather(client.get("nowhere", ["a"]), client.get(TOPIC, ["here"]), return_exceptions=True)
    assert isinstance(found[0], dejaq.DejaqError)
    assert found[0].code is dejaq.Code.TOPIC_NOT_FOUND
    assert not isinstance(found[1], BaseException)
    assert found[1][0] is not None


async def test_two_changes_of_one_message_never_share_a_frame(producer: dejaq.Producer, wire: CuttingTransport) -> None:
    await producer.send_batch([b"x"] * 10, ids=IDS, delay=60)
    changes = [producer.edit(one, priority=number) for number, one in enumerate([*IDS[:3], IDS[0], IDS[1]])]
    assert await answers(*changes) == [None] * 5
    assert [list(frame.edit.ids) for frame in wire.frames if frame.HasField("edit")] == [IDS[:3], IDS[:2]]


async def test_a_wrong_argument_of_one_caller_raises_there_and_nowhere_else(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    await producer.send_batch([b"x"] * 10, ids=IDS, delay=60)
    wrong: list[str] = [7]  # type: ignore[list-item]
    found = await asyncio.gather(client.get(TOPIC, wrong), client.get(TOPIC, IDS[:1]), return_exceptions=True)
    assert isinstance(found[0], TypeError)
    assert not isinstance(found[1], BaseException)
    edits = [producer.edit(one, priority=1, version="x") for one in IDS[:2]]  # type: ignore[arg-type]
    refused = await asyncio.gather(*edits, producer.edit(IDS[2], priority=1), return_exceptions=True)
    assert [type(one) for one in refused[:2]] == [TypeError, TypeError]
    assert refused[2] is dejaq.Code.OK
