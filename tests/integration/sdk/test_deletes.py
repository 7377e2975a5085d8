"""Deletes that wait for one another go in one frame, and each still gets its own answer."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def taken(producer: dejaq.Producer, consumer: dejaq.Consumer, *, batches: int) -> list[dejaq.Batch]:
    """So many batches of ten, each under a lease of its own."""
    held = []
    for _ in range(batches):
        await producer.send_batch([b"x"] * 10)
        held.append(await consumer.take(10))
    return held


async def test_deletes_that_wait_share_a_frame_and_each_row_has_its_own_answer(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        held = await taken(producer, consumer, batches=8)
        await held[4].release(positions=[3], delay=60)
        # As if the client did not know: then only the broker's answer tells.
        held[4]._portions[0].grant.unsettled.update([3])
        before = wire.sent.count("settle")
        results = await asyncio.gather(*(batch.delete() for batch in held))
    assert [list(result.failed.items()) for result in results] == [
        [(3, dejaq.Code.LEASE_LOST)] if number == 4 else [] for number in range(8)
    ]
    assert wire.sent.count("settle") - before == 2
    assert [len(frame.deletes.settles) for frame in wire.frames if frame.HasField("deletes")] == [6]
    assert await client.count(TOPIC) == 1


@pytest.mark.parametrize("done", [False, True])
async def test_a_frame_that_is_cut_is_sent_again_and_its_deletes_are_definite(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock, done: bool
) -> None:
    """G6: whether the broker had done it or not, every delete is answered as done."""
    async with client.consumer(TOPIC, name="w") as consumer:
        held = await taken(producer, consumer, batches=6)
        wire.cut("deletes", done=done)
        deleting = asyncio.gather(*(batch.delete() for batch in held))
        while not deleting.done():
            await clock.advance(100)
        assert all(result.ok for result in await deleting)
    assert wire.sent.count("deletes") == 2
    assert await client.count(TOPIC) == 0


async def test_a_broker_of_the_first_protocol_gets_a_frame_a_lease(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        held = await taken(producer, consumer, batches=5)
        consumer._connection.protocol = 1
        before = wire.sent.count("settle")
        assert all(result.ok for result in await asyncio.gather(*(batch.delete() for batch in held)))
    assert wire.sent.count("settle") - before == 5
    assert "deletes" not in wire.sent
