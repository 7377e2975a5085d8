"""Many edits in one call: the input has columns, and the result has an outcome for each item."""

from __future__ import annotations

import pytest

import dejaq
from dejaq import limits
from dejaq.errors import Code, InvalidArgument


async def test_columns_change_many_messages_and_refuse_the_others() -> None:
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("t")
        async with client.producer("t", group="g") as producer:
            await producer.send_batch([b"old"] * 3, ids=["a", "b", "c"], delay=3_600)
            results = await producer.edit_batch(
                ["a", "none", "c"],
                bodies=[b"1", b"2", b"3"],
                priorities=[5, 6, 7],
                headers=[{}, {}, {"k": "v"}],
                results=True,
            )
            assert list(results) == [Code.OK, Code.NOT_FOUND, Code.OK]
            found = await client.get("t", ["a", "b", "c"])
            assert [(m.body, m.priority, dict(m.headers)) for m in found if m is not None] == [
                (b"1", 5, {}),
                (b"old", 0, {}),
                (b"3", 7, {"k": "v"}),
            ]
            stale = await producer.edit_batch(["a"], bodies=[b"x"], versions=[1], results=True)
            assert stale[0] is Code.VERSION_CONFLICT
            with pytest.raises(InvalidArgument):
                await producer.edit_batch(["a"], bodies=[])
            with pytest.raises(InvalidArgument):
                await producer.edit_batch(["a"])


async def test_edits_merge_headers_and_remove_those_that_are_none() -> None:
    """U16: headers that an edit does not name stay, for edits by id, by columns, by filter and in a transaction."""
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("t")
        async with client.producer("t", group="g") as producer:
            await producer.send_batch(
                [b""] * 4, ids=["a", "b", "c", "d"], delay=3_600, headers={"keep": "1", "drop": "2"}
            )
            change = {"new": "3", "drop": None}
            await producer.edit("a", headers=change)
            await producer.edit_batch(["b"], headers=[change])
            await producer.edit_where(dejaq.Where(headers={"drop": "2"}), headers=change)
            async with client.transaction(group="g") as transaction:
                transaction.edit("t", "a", headers={"new": None})
            found = await client.get("t", ["a", "b", "c", "d"])
            assert [dict(m.headers) for m in found if m is not None] == [
                {"keep": "1"},
                *[{"keep": "1", "new": "3"}] * 3,
            ]
            with pytest.raises(dejaq.DejaqError) as refused:
                async with client.transaction(group="g") as transaction:
                    transaction.edit("t", "a", headers={f"h{number}": "" for number in range(limits.HEADERS_COUNT_MAX)})
            assert refused.value.code is Code.INVALID_HEADERS


async def test_a_batch_larger_than_a_frame_is_split() -> None:
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
    """Senders that wait for space in the stream are woken one by one, and not all of them each time."""
    import asyncio
    import time

    async with dejaq.Broker(listen="127.0.0.1:0") as broker, dejaq.connect(f"dejaq://{broker.address}") as client:
        await client.create_topic("t")
        async with client.producer("t", group="g") as producer:
            ids = [f"m{n}" for n in range(3_000)]
            await producer.send_batch([b"old"] * len(ids), ids=ids, delay=3_600)
            began = time.process_time()
            await asyncio.gather(*(producer.edit(message_id, body=b"new") for message_id in ids))
            assert time.process_time() - began < 15
