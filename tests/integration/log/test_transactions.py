"""Steps on logs in transactions: done together with steps on timelines, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import dejaq
from dejaq.broker.log import topics
from dejaq.errors import Code, DejaqError
from dejaq.sdk.log.group import LogGroup
from dejaq.sdk.log.messages import LogMessage
from dejaq.testing.waiting import eventually
from tests.integration.log.conftest import TOPIC


async def taken(member: LogGroup, count: int) -> list[LogMessage]:
    async with asyncio.timeout(30):
        return [await anext(member) for _ in range(count)]


async def bodies_of(log: dejaq.Log) -> list[bytes]:
    return [body async for batch in log.read() for body in batch.bodies]


async def test_a_lease_is_deleted_with_the_append_of_its_result(client: dejaq.Client) -> None:
    await client.create_topic("orders")
    log = client.log(TOPIC)
    async with client.producer("orders") as producer, client.consumer("orders") as consumer, log.reader() as reader:
        await producer.send(b"order", id="o")
        async with asyncio.timeout(20):
            lease = await anext(consumer)
            async with client.transaction() as t:
                t.delete(lease)
                t.append(log, b"paid", key=b"o", headers={"kind": "order"})
                t.append(log, b"sent", key=b"o")
            messages = [await anext(reader), await anext(reader)]
        assert [(m.body, m.key, m.headers) for m in messages] == [
            (b"paid", b"o", {"kind": "order"}),
            (b"sent", b"o", {}),
        ]
        assert await client.count("orders") == 0


async def test_a_group_commits_with_the_messages_that_it_creates(client: dejaq.Client) -> None:
    await client.create_topic("letters")
    log = client.log(TOPIC)
    await log.append_batch([b"a", b"b", b"c"], bucket=1)
    async with log.group("billing", name="one") as member:
        for message in await taken(member, 3):
            async with client.transaction() as t:
                t.send("letters", message.body, id=f"letter-{message.offset}")
                t.commit_offsets(member)
        assert (await member.committed())[1] == 3
    assert await client.count("letters") == 3


async def test_a_member_that_lost_its_claim_creates_nothing(client: dejaq.Client) -> None:
    await client.create_topic("letters")
    log = client.log(TOPIC)
    await log.append_batch([b"a", b"b"], bucket=1)
    async with log.group("billing", name="one") as member:
        await taken(member, 2)
        transaction = client.transaction()
        transaction.send("letters", b"a")
        transaction.append(log, b"done", bucket=2)
        transaction.commit_offsets(member)
        await log.reset_group("billing", {1: 0})
        with pytest.raises(DejaqError, match=r"CLAIM_LOST.*commit of bucket 1 of 'events' by group 'billing'"):
            await transaction.commit()
    assert await client.count("letters") == 0
    assert await bodies_of(log) == [b"a", b"b"]


async def test_a_step_on_a_log_needs_a_log(client: dejaq.Client) -> None:
    await client.create_topic("letters")
    transaction = client.transaction()
    transaction.append(client.log("letters"), b"a", bucket=0)
    with pytest.raises(DejaqError) as refused:
        await transaction.commit()
    assert refused.value.code is Code.INVALID_ARGUMENT


async def test_each_message_has_one_result_through_rebalances(client: dejaq.Client) -> None:
    """The exactly-once recipe: the output and the commit are one transaction, and members come and go."""
    await client.create_topic("results", kind="log", buckets=2)
    log, results = client.log(TOPIC), client.log("results")
    total = 200
    for number in range(total):
        await log.append(b"%d" % number, key=b"%d" % number)

    async def work(name: str, enough: int) -> None:
        done = 0
        async with log.group("billing", name=name) as member:
            async for batch in member.batches(10):
                transaction = client.transaction()
                for body in batch.bodies:
                    transaction.append(results, body)
                transaction.commit_offsets(member)
                try:
                    await transaction.commit()
                except DejaqError as error:
                    assert error.code is Code.CLAIM_LOST
                done += len(batch)
                if done >= enough:
                    return

    async def come_and_go() -> None:
        for number in range(4):
            await work(f"guest-{number}", 20)

    worker = asyncio.create_task(work("host", total * 10))
    guest = asyncio.create_task(come_and_go())
    try:
        await eventually(lambda: _has_all(results, total), within=60, what="every message has a result", poll=0.05)
    finally:
        for task in (worker, guest):
            task.cancel()
        await asyncio.gather(worker, guest, return_exceptions=True)
    counts = Counter(await bodies_of(results))
    assert counts == {b"%d" % number: 1 for number in range(total)}


async def _has_all(results: dejaq.Log, total: int) -> bool:
    return len(set(await bodies_of(results))) == total


async def test_a_prepared_transaction_is_committed_by_another_client(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"a", b"b"], bucket=0)
    async with log.group("billing", name="one") as member:
        await taken(member, 2)
        async with client.transaction() as t:
            t.append(log, b"c", bucket=0)
            t.append(log, b"d", bucket=1)
            t.commit_offsets(member)
            await t.prepare(log, "payment-7", timeout=600)
    await log.append(b"e", bucket=0)
    assert await bodies_of(log) == [b"a", b"b"]
    (found,) = await log.in_doubt()
    assert (found.name, found.messages, found.offsets) == ("payment-7", 2, 1)
    other = client.log(TOPIC)
    await other.commit_prepared("payment-7")
    await other.commit_prepared("payment-7")
    assert sorted(await bodies_of(log)) == [b"a", b"b", b"c", b"d", b"e"]
    assert await log.in_doubt() == []
    (group,) = await log.groups()
    assert group.committed[0] == 2
    with pytest.raises(DejaqError, match="TOO_LATE"):
        await other.abort_prepared("payment-7")


async def test_a_reader_waits_for_the_outcome_of_a_prepared_transaction(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    async with log.reader() as reader:
        for name in ("first", "second"):
            transaction = client.transaction()
            transaction.append(log, name.encode(), bucket=0)
            await transaction.prepare(log, name)
        await log.append(b"third", bucket=0)
        await log.abort_prepared("first")
        await log.commit_prepared("second")
        async with asyncio.timeout(20):
            assert [(await anext(reader)).body for _ in range(2)] == [b"second", b"third"]


async def test_a_transaction_in_doubt_is_aborted_at_its_deadline(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "RETAIN_SECONDS", 0.05)
    log = client.log(TOPIC)
    transaction = client.transaction()
    transaction.append(log, b"late", bucket=0)
    await transaction.prepare(log, "t", timeout=0.2)
    await log.append(b"next", bucket=0)
    async with log.reader() as reader, asyncio.timeout(20):
        assert (await anext(reader)).body == b"next"
    with pytest.raises(DejaqError, match="TOO_LATE"):
        await log.commit_prepared("t")


async def test_only_changes_of_logs_are_prepared(client: dejaq.Client) -> None:
    await client.create_topic("letters")
    transaction = client.transaction()
    transaction.send("letters", b"x")
    with pytest.raises(DejaqError, match="only changes of logs"):
        await transaction.prepare(client.log(TOPIC), "t")
