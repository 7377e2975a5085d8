"""The deduplication window as a client sees it, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import dejaq
from tests.conformance.backends import memory, postgres, rocksdb, sharded


@pytest.fixture(params=[memory, rocksdb, postgres, sharded], ids=lambda backend: backend.__name__)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dejaq.Client]:
    async with dejaq.Broker(storage=request.param(tmp_path)(), drain_ms=0) as broker, dejaq.connect(broker) as client:
        yield client


async def test_an_order_is_created_once_whichever_producer_sends_it_again(client: dejaq.Client) -> None:
    """U7: the id was free again after the delivery."""
    made = await client.create_topic("orders", buckets=4, dedup="24h", max_dedup_ids=2)
    assert (made.settings.dedup_ms, made.settings.max_dedup_ids) == (86_400_000, 2)
    assert not (await client.create_topic("orders", buckets=4, dedup=timedelta(days=1), max_dedup_ids=2)).created
    async with client.producer("orders") as producer, client.consumer("orders", name="w") as consumer:
        assert await producer.send(b"x", id="order-1") == "order-1"
        await (await anext(consumer)).delete()
    async with client.producer("orders") as other:
        assert await other.send(b"x", id="order-1") == "order-1"
        results = await other.send_batch([b"y", b"y"], ids=["order-1", "order-2"])
        assert not results.failed
        assert await client.count("orders") == 1
        (found,) = await client.get("orders", ["order-1"])
        assert found is None


async def test_a_repeat_with_a_relative_time_changes_nothing(client: dejaq.Client) -> None:
    """U7: a repeat with a delay was ID_TAKEN while the message existed, because its time was a later one."""
    await client.create_topic("orders", buckets=4)
    async with client.producer("orders") as producer:
        first = await asyncio.gather(producer.send(b"now", id="now"), producer.send(b"later", id="later", delay=60))
        (before,) = await client.get("orders", ["later"])
        assert before is not None
        times: list[dict[str, Any]] = [{"delay": 61}, {"delay": timedelta(minutes=2)}, {}]
        for number, time in enumerate(times):
            assert await producer.send(b"later", id="later", **time) == "later"
            assert (await producer.send_batch([b"now", b"later"], ids=["now", "later"], **time)).ok
            async with client.transaction() as transaction:
                transaction.send("orders", b"new", id=f"new-{number}", **time)
                transaction.send("orders", b"later", id="later", **time)
        assert await client.get("orders", ["later"]) == [before]
        assert await client.count("orders") == len(first) + len(times)
        # What travels together keeps its own kind of time; other content is another message as before.
        answers = await asyncio.gather(
            producer.send(b"later", id="later", at=before.ts + 1),
            producer.send(b"now", id="now"),
            producer.send(b"other", id="later", delay=60),
            producer.send(b"later", id="later", at=before.ts),
            return_exceptions=True,
        )
        refused = [answer.code if isinstance(answer, dejaq.Conflict) else answer for answer in answers]
        assert refused == [dejaq.Code.ID_TAKEN, "now", dejaq.Code.ID_TAKEN, "later"]


async def test_a_fan_out_with_a_relative_time_may_be_repeated(client: dejaq.Client) -> None:
    """U7: in one transaction, and with each topic by itself."""
    await client.create_topic("orders", buckets=1)
    await client.create_topic("audit", buckets=1)
    for delay, atomic in ((60, None), (61, None), (62, False)):
        assert (await client.fan_out(["orders", "audit"], b"x", id="order-1", delay=delay, atomic=atomic)).ok
    assert await client.count("orders") == await client.count("audit") == 1
    with pytest.raises(dejaq.Conflict):
        await client.fan_out(["orders", "audit"], b"x", id="order-1", at=client.now_ms() + 3_600_000)


async def test_ids_beyond_the_limit_are_refused_until_it_is_raised(client: dejaq.Client) -> None:
    """U7: a topic remembers no more ids than its limit, and refuses ids that it could not remember."""
    await client.create_topic("orders", buckets=1, dedup=3600.0, max_dedup_ids=1)
    async with client.producer("orders") as producer:
        await producer.send(b"x", id="order-1")
        with pytest.raises(dejaq.LimitExceeded):
            await producer.send(b"x", id="order-2")
        await client.edit_topic("orders", max_dedup_ids=2)
        await producer.send(b"x", id="order-2")
        await producer.send(b"without an own id")
    assert await client.count("orders") == 3


@pytest.mark.parametrize("dedup", ["soon", "31d", -1, "24 hours"])
async def test_an_invalid_window_is_refused(client: dejaq.Client, dedup: str | float) -> None:
    with pytest.raises(dejaq.InvalidArgument) as refused:
        await client.create_topic("orders", dedup=dedup)
    assert refused.value.code is dejaq.Code.INVALID_SETTING
