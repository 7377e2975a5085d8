"""A log at several brokers of one store: appends, readers and groups at any of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import dejaq
from dejaq.broker.log import topics
from dejaq.sdk.log.group import LogGroup
from dejaq.storage.log.base import MEMBER_MS
from dejaq.testing.servers.postgres import FreshStorage, shared_server
from dejaq.testing.waiting import eventually
from tests.integration.cluster.crew import Crew

TOPIC = "events"
BUCKETS = 4


@pytest.fixture(params=["memory", "postgres"])
async def crew(request: pytest.FixtureRequest) -> AsyncIterator[Crew]:
    crew, place = Crew(), dict[str, bool]()

    def keys() -> dict[str, Any]:
        if request.param == "memory":
            return {}
        return {"storage": FreshStorage(place, shared_server().dsn, cluster="crew", connections=3)}

    async with AsyncExitStack() as stack:
        for name in ("a", "b"):
            await stack.enter_async_context(crew.make(name, drain_ms=0, **keys()))
        await crew.gathered()
        yield crew


@pytest.fixture
async def clients(crew: Crew) -> AsyncIterator[list[dejaq.Client]]:
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(dejaq.connect(url, follow=False, deadline=20.0)) for url in crew.urls]
        await found[0].create_topic(TOPIC, kind="log", buckets=BUCKETS)
        yield found


async def taken(member: LogGroup, count: int) -> list[dejaq.LogMessage]:
    async with asyncio.timeout(30):
        return [await anext(member) for _ in range(count)]


async def test_batches_appended_at_one_broker_wake_readers_at_the_other(
    clients: list[dejaq.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a notice the reader would look only after this time.
    monkeypatch.setattr(topics, "RENEW_SECONDS", 3_600)
    here, there = (client.log(TOPIC) for client in clients)
    async with there.reader() as reader:
        for number in range(5):
            place = await here.append(b"%d" % number, key=b"k")
            async with asyncio.timeout(10):
                message = await anext(reader)
            assert (message.body, message.offset) == (b"%d" % number, place.offset)


async def test_appends_at_both_brokers_get_dense_offsets(clients: list[dejaq.Client]) -> None:
    logs = [client.log(TOPIC) for client in clients]
    appends = [logs[n % 2].append_batch([b"%d" % n] * 3, bucket=n % BUCKETS) for n in range(60)]
    batches = [batch for (batch,) in await asyncio.gather(*appends)]
    found = [{(m.bucket, m.offset): m.body async for batch in log.read() for m in batch} for log in logs]
    assert found[0] == found[1]
    for bucket in range(BUCKETS):
        assert sorted(o for b, o in found[0] if b == bucket) == list(range(45))
    assert all(found[0][batch.bucket, batch.base] == found[0][batch.bucket, batch.base + 2] for batch in batches)


async def test_a_group_is_divided_among_members_at_both_brokers(clients: list[dejaq.Client]) -> None:
    logs = [client.log(TOPIC) for client in clients]
    async with logs[0].group("billing", name="one") as one:
        await eventually(lambda: len(one.buckets) == BUCKETS, within=20, what="one member has every bucket")
        async with logs[1].group("billing", name="two") as two:
            await eventually(
                lambda: len(one.buckets) == len(two.buckets) == BUCKETS // 2,
                within=20,
                what="two members have half each",
            )
            assert set(one.buckets).isdisjoint(two.buckets)
            (group,) = await logs[0].groups()
            assert sorted(group.members) == ["one", "two"]
            await asyncio.gather(*(logs[0].append_batch([b"x"] * 5, bucket=bucket) for bucket in range(BUCKETS)))
            messages = [*await taken(one, 10), *await taken(two, 10)]
            assert len({(message.bucket, message.offset) for message in messages}) == 5 * BUCKETS
            await two.commit()
        await eventually(lambda: len(one.buckets) == BUCKETS, within=20, what="the buckets return")
        await one.commit()
        await logs[1].append_batch([b"y"], bucket=two_bucket(messages))
        assert [message.body for message in await taken(one, 1)] == [b"y"]


def two_bucket(messages: list[dejaq.LogMessage]) -> int:
    return messages[-1].bucket


async def test_a_reset_at_one_broker_moves_members_at_the_other(clients: list[dejaq.Client]) -> None:
    logs = [client.log(TOPIC) for client in clients]
    await logs[0].append_batch([b"%d" % n for n in range(4)], bucket=1)
    async with logs[1].group("billing", name="one") as one:
        assert [message.offset for message in await taken(one, 4)] == [0, 1, 2, 3]
        await one.commit()
        await logs[0].reset_group("billing", {1: 2})
        assert [message.offset for message in await taken(one, 2)] == [2, 3]


async def test_the_buckets_of_a_broker_that_is_gone_are_divided_among_the_others(
    crew: Crew, clients: list[dejaq.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [client.log(TOPIC) for client in clients]
    await asyncio.gather(*(logs[0].append_batch([b"x"] * 5, bucket=bucket) for bucket in range(BUCKETS)))
    async with logs[0].group("billing", name="one") as one, logs[1].group("billing", name="two") as two:
        await eventually(
            lambda: len(one.buckets) == len(two.buckets) == BUCKETS // 2, within=20, what="two members have half each"
        )
        # The broker still runs, but the store hears nothing of it, and it nothing of the store.
        gone = crew.brokers["b"].central.logs
        monkeypatch.setattr(gone.groups, "look", lambda number=None: None)
        await eventually(lambda: len(one.buckets) == BUCKETS, within=3 * MEMBER_MS / 1_000, what="all buckets")
        offsets: defaultdict[int, list[int]] = defaultdict(list)
        for message in await taken(one, 5 * BUCKETS):
            offsets[message.bucket].append(message.offset)
        assert dict(offsets) == {bucket: list(range(5)) for bucket in range(BUCKETS)}
        await one.commit()
        await taken(two, 10)
        with pytest.raises(dejaq.DejaqError, match="CLAIM_LOST"):
            await two.commit()
