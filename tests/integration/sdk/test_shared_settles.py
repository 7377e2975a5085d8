"""Batches of leases: deletes or extensions that wait share a frame, and each message has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

import dejaq
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.consuming.grant import Grant
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def taken(producer: dejaq.Producer, consumer: dejaq.Consumer, *, batches: int) -> list[dejaq.Batch]:
    """This number of batches of ten messages, each batch under a lease of its own."""
    held = []
    for _ in range(batches):
        await producer.send_batch([b"x"] * 10)
        held.append(await consumer.take(10))
    return held


async def test_waiting_deletes_share_a_frame_and_each_row_has_its_own_answer(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        held = await taken(producer, consumer, batches=8)
        await held[4].release(positions=[3], delay=60)
        # The client forgets its own release, so only the broker's answer shows that the row is not held.
        held[4]._portions[0].grant.unsettled.update([3])
        before = wire.sent.count("settle")
        results = await asyncio.gather(*(batch.delete(results=True) for batch in held))
    assert [list(result.failed.items()) for result in results] == [
        [(3, dejaq.Code.LEASE_LOST)] if number == 4 else [] for number in range(8)
    ]
    assert wire.sent.count("settle") == before
    assert [len(frame.deletes.settles) for frame in wire.frames if frame.HasField("deletes")] == [8]
    assert await client.count(TOPIC) == 1


@pytest.mark.parametrize("done", [False, True])
async def test_a_frame_that_is_cut_is_sent_again_and_its_deletes_are_definite(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock, done: bool
) -> None:
    """G6: whether or not the broker had done it, every delete is answered as done."""
    async with client.consumer(TOPIC, name="w") as consumer:
        held = await taken(producer, consumer, batches=6)
        wire.cut("deletes", done=done)
        deleting = asyncio.gather(*(batch.delete() for batch in held))
        while not deleting.done():
            await clock.advance(100)
        assert all(result.ok for result in await deleting)
    assert wire.sent.count("deletes") == 2
    assert await client.count(TOPIC) == 0


async def test_a_broker_of_the_first_protocol_gets_one_frame_per_lease(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        held = await taken(producer, consumer, batches=5)
        consumer._connection.protocol = 1
        before = wire.sent.count("settle")
        assert all(result.ok for result in await asyncio.gather(*(batch.delete() for batch in held)))
    assert wire.sent.count("settle") - before == 5
    assert "deletes" not in wire.sent


async def test_extensions_of_many_leases_share_frames(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    """A consumer that held ten thousand messages sent a frame for each, and a busy machine lost some of the leases."""
    async with client.consumer(TOPIC, name="w", lease=6.0, max_in_flight=1_000) as consumer:
        await taken(producer, consumer, batches=70)
        for _ in range(100):
            await clock.advance(100)
        sizes = [len(frame.extends.settles) for frame in wire.frames if frame.HasField("extends")]
        assert sum(sizes) >= 70
        assert max(sizes) == 64
        assert not [frame for frame in wire.frames if frame.settle.kind == carrier.EXTEND]
        assert await client.count(TOPIC, status="processing") == 700


async def test_a_broker_without_shared_extensions_gets_one_frame_per_lease(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    async with client.consumer(TOPIC, name="w", lease=6.0) as consumer:
        await taken(producer, consumer, batches=3)
        consumer._connection.protocol = 2
        for _ in range(50):
            await clock.advance(100)
        assert len([frame for frame in wire.frames if frame.settle.kind == carrier.EXTEND]) >= 3
    assert "extends" not in wire.sent


async def test_an_extension_without_an_answer_delays_no_other_lease(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    async with client.consumer(TOPIC, name="w", lease=6.0) as consumer:
        stuck, *others = await taken(producer, consumer, batches=3)
        await clock.advance(1_000)
        others += await taken(producer, consumer, batches=1)
        extend, waits = consumer._settler.extend, stuck._portions[0].grant.id

        async def slow(grant: Grant, rows: Sequence[int], lease_ms: int) -> None:
            if grant.id == waits:
                await asyncio.Event().wait()
            await extend(grant, rows, lease_ms)

        consumer._extender._settler.extend = slow  # type: ignore[method-assign]
        for _ in range(200):
            await clock.advance(100)
        assert (await asyncio.gather(*(batch.delete(results=True) for batch in others)))[-1].ok
        assert await client.count(TOPIC) == 10


@pytest.mark.parametrize("how", ["delete", "extend", "release", "reject"])
async def test_a_refused_message_of_a_batch_of_leases_raises(
    client: dejaq.Client, producer: dejaq.Producer, how: str
) -> None:
    """U18: a batch whose leases were lost in part looked like one that was settled."""
    ids = ["a", "b", "c", "d"]
    await producer.send_batch([b"x"] * 4, ids=ids)
    async with client.consumer(TOPIC, name="w") as consumer:
        batch = await consumer.take(4)
        lost = [batch.ids[0], batch.ids[2]]
        await batch.delete([0, 2])
        settle: dict[str, Callable[..., Awaitable[dejaq.Results]]] = {
            "delete": batch.delete,
            "extend": partial(batch.extend, 60.0),
            "release": partial(batch.release, delay=60),
            "reject": partial(batch.reject, "no use"),
        }
        with pytest.raises(dejaq.Conflict) as refused:
            await settle[how]()
        assert refused.value.code is dejaq.Code.LEASE_LOST
        assert refused.value.failed == dict.fromkeys(lost, dejaq.Code.LEASE_LOST)
        assert "2 of 4 items failed, 2 were done" in str(refused.value)
        assert (await settle[how](results=True)).failed[0] is dejaq.Code.LEASE_LOST
    assert await client.count(TOPIC) == (0 if how in ("delete", "reject") else 2)
