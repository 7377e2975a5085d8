from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dejaq
from dejaq.sdk.times import to_datetime
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def test_topics_are_created_described_listed_and_deleted(client: dejaq.Client) -> None:
    made = await client.create_topic("new", buckets=3, max_body_bytes=10, durability="relaxed")
    assert (made.created, made.settings.buckets, made.settings.max_body_bytes) == (True, 3, 10)
    assert made.settings.durability is dejaq.Durability.RELAXED
    again = await client.create_topic("new", buckets=3, max_body_bytes=10, durability="relaxed")
    assert not again.created
    with pytest.raises(dejaq.TopicExists):
        await client.create_topic("new", buckets=4)
    assert (await client.describe_topic("new")).state is dejaq.TopicStage.LIVE
    assert {topic.name for topic in await client.topics()} == {TOPIC, "new"}
    await client.delete_topic("new")
    with pytest.raises(dejaq.Missing):
        await client.delete_topic("never-there")


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("", {}, dejaq.Code.INVALID_TOPIC),
        ("no spaces", {}, dejaq.Code.INVALID_TOPIC),
        ("x", {"buckets": 0}, dejaq.Code.INVALID_SETTING),
        ("x", {"buckets": -1}, dejaq.Code.INVALID_SETTING),
        ("x", {"buckets": "many"}, dejaq.Code.INVALID_SETTING),
        ("x", {"durability": "sometimes"}, dejaq.Code.INVALID_SETTING),
    ],
)
async def test_bad_topics_are_refused(
    client: dejaq.Client, name: str, settings: dict[str, Any], code: dejaq.Code
) -> None:
    with pytest.raises(dejaq.InvalidArgument) as refused:
        await client.create_topic(name, **settings)
    assert refused.value.code is code


async def test_queries_are_answered_exactly(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    ids = (await producer.send_batch([b"x"] * 10, at=[now + n * 1_000 for n in range(10)])).ids
    assert await client.count(TOPIC) == 10
    assert await client.count(TOPIC, start=now + 1_000, end=to_datetime(now + 3_000)) == 2
    assert await client.count(TOPIC, status="waiting") == 9
    assert await client.count(TOPIC, status=dejaq.Status.AVAILABLE, group="billing") == 1
    assert await client.count(TOPIC, group="others") == 0
    steps = await client.histogram(TOPIC, start=now, end=now + 10_000, step=5.0)
    assert steps == [(now, 5), (now + 5_000, 5)]
    found = await client.get(TOPIC, [ids[3], "unknown", ids[1]])
    assert [message.id if message else None for message in found] == [ids[3], None, ids[1]]
    with pytest.raises(dejaq.InvalidArgument):
        await client.count(TOPIC, status="lost")
    with pytest.raises(dejaq.InvalidArgument):
        await client.histogram(TOPIC, start=0, end=1, step=0)
    with pytest.raises(dejaq.Missing):
        await client.count("nowhere")


async def test_browsing_continues_after_an_outage(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    await producer.send_batch([b"%02d" % n for n in range(10)], at=[clock.now_ms() + n for n in range(10)])
    bodies: list[bytes] = []
    async for page in client.browse(TOPIC, page_size=3):
        assert len(page) <= 3
        bodies += [message.body for message in page]
        wire.down = not wire.down
        if wire.down:
            asyncio.get_running_loop().call_later(0.05, setattr, wire, "down", False)
    assert bodies == [b"%02d" % n for n in range(10)]
    with pytest.raises(dejaq.InvalidArgument):
        _ = [page async for page in client.browse(TOPIC, page_size=0)]


async def test_the_cluster_shows_its_clients(client: dejaq.Client, clock: VirtualClock) -> None:
    async with client.consumer(TOPIC, name="worker-1"):
        info = await client.info()
    assert info.brokers[0].clock_ms == clock.now_ms()
    assert [(c.state, c.topic, c.who) for c in info.clients] == [("subscribed", TOPIC, "worker-1")]
    pong = await client.ping()
    assert abs(pong.clock_offset_ms) <= pong.uncertainty_ms
    assert client.now_ms() == clock.now_ms()


async def test_a_delete_of_a_topic_whose_answer_was_lost_succeeds(
    client: dejaq.Client, wire: CuttingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = wire.call
    lost: list[str] = []

    async def losing(method: str, *arguments: Any) -> Any:
        answer = await call(method, *arguments)
        if method == "Overseer.DeleteTopic" and not lost:
            lost.append(method)
            await eventually(lambda: _gone(client), within=5)
            raise dejaq.Indefinite
        return answer

    monkeypatch.setattr(wire, "call", losing)
    await client.delete_topic(TOPIC)
    assert lost
    with pytest.raises(dejaq.Missing):
        await client.delete_topic(TOPIC)


async def _gone(client: dejaq.Client) -> bool:
    return TOPIC not in {topic.name for topic in await client.topics()}


async def test_a_page_has_the_cursor_of_the_next(client: dejaq.Client) -> None:
    await client.create_topic("paged")
    async with client.producer("paged") as producer:
        await producer.send_batch([b"%d" % n for n in range(25)], delay=[60.0 + n for n in range(25)])
    bodies: list[bytes] = []
    cursor, pages = b"", 0
    while pages == 0 or cursor:
        page = await client.browse_page("paged", page_size=10, cursor=cursor)
        bodies += [message.body for message in page.messages]
        cursor, pages = page.cursor, pages + 1
    assert bodies == [b"%d" % n for n in range(25)]
    assert pages == 3
    with pytest.raises(dejaq.InvalidArgument, match="page_size=0"):
        await client.browse_page("paged", page_size=0)
