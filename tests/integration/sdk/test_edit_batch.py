"""Many edits at once: columns in, an outcome by item out."""

from __future__ import annotations

import pytest

import dejaq
from dejaq.errors import Code, InvalidArgument


async def test_columns_change_many_messages_and_refuse_the_others() -> None:
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("t")
        async with client.producer("t", group="g") as producer:
            await producer.send_batch([b"old"] * 3, ids=["a", "b", "c"], delay=3_600)
            results = await producer.edit_batch(
                ["a", "none", "c"], bodies=[b"1", b"2", b"3"], priorities=[5, 6, 7], headers=[{}, {}, {"k": "v"}]
            )
            assert list(results) == [Code.OK, Code.NOT_FOUND, Code.OK]
            found = await client.get("t", ["a", "b", "c"])
            assert [(m.body, m.priority, dict(m.headers)) for m in found if m is not None] == [
                (b"1", 5, {}),
                (b"old", 0, {}),
                (b"3", 7, {"k": "v"}),
            ]
            stale = await producer.edit_batch(["a"], bodies=[b"x"], versions=[1])
            assert stale[0] is Code.VERSION_CONFLICT
            with pytest.raises(InvalidArgument):
                await producer.edit_batch(["a"], bodies=[])
            with pytest.raises(InvalidArgument):
                await producer.edit_batch(["a"])


async def test_a_batch_larger_than_a_frame_is_cut() -> None:
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("t")
        async with client.producer("t", group="g") as producer:
            ids = [f"m{n}" for n in range(20)]
            await producer.send_batch([b"old"] * 20, ids=ids, delay=3_600)
            large = b"x" * 1_000_000
            assert (await producer.edit_batch(ids, bodies=[large] * 20)).ok
            (last,) = await client.get("t", ["m19"])
            assert last is not None
            assert last.body == large


async def test_thousands_of_single_edits_at_once_are_quick() -> None:
    """Senders that wait for room in the stream are woken one by one, not all for each place."""
    import asyncio
    import time

    async with dejaq.Broker(listen="127.0.0.1:0") as broker, dejaq.connect(f"dejaq://{broker.address}") as client:
        await client.create_topic("t")
        async with client.producer("t", group="g") as producer:
            ids = [f"m{n}" for n in range(3_000)]
            await producer.send_batch([b"old"] * len(ids), ids=ids, delay=3_600)
            began = time.monotonic()
            await asyncio.gather(*(producer.edit(message_id, body=b"new") for message_id in ids))
            assert time.monotonic() - began < 15
