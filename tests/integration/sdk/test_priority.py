"""Topics by priority, as producers and consumers see them."""

from __future__ import annotations

import asyncio

import pytest

import dejaq
from dejaq.broker.delivery.priority_window import WINDOW_ROWS_MIN
from dejaq.timekeeper.clock import VirtualClock

TOPIC = "urgent"
PAST_MS = 1_600_000_000_000


@pytest.fixture
async def urgent(client: dejaq.Client) -> dejaq.TopicInfo:
    return await client.create_topic(TOPIC, buckets=4, kind="priority")


async def test_the_description_of_a_topic_shows_its_kind(client: dejaq.Client, urgent: dejaq.TopicInfo) -> None:
    assert urgent.settings.kind is dejaq.TopicKind.PRIORITY
    assert (await client.describe_topic(TOPIC)).settings.kind is dejaq.TopicKind.PRIORITY


async def test_messages_come_by_priority_then_by_age(client: dejaq.Client, urgent: dejaq.TopicInfo) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch(
            [b""] * 6,
            ids=["c", "a", "e", "b", "d", "f"],
            priorities=[0, -2147483648, 7, -3, 0, 2147483647],
            at=[PAST_MS + n for n in (10, 50, 5, 40, 20, 1)],
        )
    async with client.consumer(TOPIC, max_messages=6) as consumer:
        seen = []
        async for lease in consumer:
            seen.append(lease.id)
            await lease.delete()
    assert seen == ["a", "b", "c", "d", "e", "f"]


async def test_an_urgent_message_overtakes_all_but_a_few(client: dejaq.Client, urgent: dejaq.TopicInfo) -> None:
    """A consumer that has settled nothing holds at most WINDOW_ROWS_MIN messages, so no more precede an urgent one."""
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b""] * 200, priorities=5)
        async with client.consumer(TOPIC) as consumer:
            leases = aiter(consumer)
            first = await anext(leases)
            await producer.send(b"", id="urgent", priority=-1)
            await first.delete()
            before = 0
            while (lease := await anext(leases)).id != "urgent":
                before += 1
                await lease.delete()
            await lease.delete()
    assert before <= 2 * WINDOW_ROWS_MIN


async def test_every_consumer_takes_the_most_urgent_messages_of_the_topic(
    client: dejaq.Client, urgent: dejaq.TopicInfo
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b""] * 40, priorities=list(range(40)))
    async with (
        client.consumer(TOPIC, name="one", max_in_flight=1) as one,
        client.consumer(TOPIC, name="two", max_in_flight=1) as two,
    ):
        pair = (aiter(one), aiter(two))
        for step in range(20):
            leases = await asyncio.gather(*map(anext, pair))
            assert {lease.priority for lease in leases} == {2 * step, 2 * step + 1}
            await asyncio.gather(*(lease.delete() for lease in leases))


async def test_a_message_released_with_a_delay_waits_and_then_follows_its_priority(
    client: dejaq.Client, urgent: dejaq.TopicInfo, clock: VirtualClock
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"", b"", b""], ids=["top", "middle", "last"], priorities=[1, 2, 3])
    async with client.consumer(TOPIC, max_in_flight=1) as consumer:
        leases = aiter(consumer)
        top = await anext(leases)
        assert top.id == "top"
        await top.release(delay=5.0)
        middle = await anext(leases)
        assert middle.id == "middle"
        await clock.advance(5_000)
        await middle.delete()
        again = await anext(leases)
        assert (again.id, again.attempts, again.priority) == ("top", 2, 1)
        await again.delete()


async def test_owners_change_priorities(client: dejaq.Client, urgent: dejaq.TopicInfo) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"", b"", b""], ids=["a", "b", "c"], priorities=[1, 2, 3])
        assert (await producer.edit_batch(["a", "c"], priorities=[9, -9])).ok
    pages = [page async for page in client.browse(TOPIC)]
    assert [message.id for page in pages for message in page] == ["c", "b", "a"]


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1])
async def test_a_priority_has_32_bits(client: dejaq.Client, urgent: dejaq.TopicInfo, priority: int) -> None:
    async with client.producer(TOPIC) as producer:
        with pytest.raises(dejaq.InvalidArgument) as refused:
            await producer.send(b"", priority=priority)
    assert refused.value.code is dejaq.Code.INVALID_PRIORITY


async def test_a_timeline_orders_messages_of_one_time_by_priority(client: dejaq.Client, clock: VirtualClock) -> None:
    await client.create_topic("line", buckets=4)
    at = clock.now_ms()
    async with client.producer("line") as producer:
        await producer.send_batch([b""] * 4, ids=["x", "y", "z", "w"], priorities=[3, -1, 0, -7], at=at)
    async with client.consumer("line", max_messages=4) as consumer:
        seen = []
        async for lease in consumer:
            seen.append(lease.id)
            await lease.delete()
    assert seen == ["w", "y", "z", "x"]
