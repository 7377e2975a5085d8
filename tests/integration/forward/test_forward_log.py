"""Forwarding between logs, timelines and real Redis streams."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio as redis_client

import dejaq
from dejaq.forward import Forwarder, forwarder
from dejaq.forward.log import LogSink, LogSource
from dejaq.forward.topic import TopicSource
from dejaq.testing.servers.redis import RedisServer
from dejaq.testing.waiting import eventually
from tests.integration.forward.test_forward import messages, moved
from tests.integration.forward.test_forward_kafka import Killed, NeverAcks


@pytest.fixture
async def logs(client: dejaq.Client) -> tuple[dejaq.Log, dejaq.Log]:
    """Two logs with different numbers of buckets."""
    await client.create_topic("events", kind="log", buckets=4)
    await client.create_topic("copy", kind="log", buckets=3)
    return client.log("events"), client.log("copy")


async def all_of(log: dejaq.Log) -> list[dejaq.LogMessage]:
    return [message async for batch in log.read() for message in batch]


async def test_a_log_is_copied_with_its_keys_and_order(client: dejaq.Client, logs: tuple[dejaq.Log, dejaq.Log]) -> None:
    events, copy = logs
    keys = [b"k%d" % (n % 11) for n in range(300)]
    await events.append_batch([b"%d" % n for n in range(300)], keys=keys)
    await events.append_batch([b"plain-%d" % n for n in range(50)], headers=[{"a": "b"}] * 50)
    await moved(forwarder(client, "events", "copy"), 350)
    found = await all_of(copy)
    for key in set(keys):
        assert [m.body for m in found if m.key == key] == [b"%d" % n for n in range(300) if keys[n] == key]
    plain = [message for message in found if message.body.startswith(b"plain")]
    assert [message.body for message in plain] == [b"plain-%d" % n for n in range(50)]
    assert plain[0].headers["a"] == "b"
    assert (await events.groups())[0].lag == 0


@pytest.mark.parametrize("batch", [13, 100, 500])
async def test_what_a_killed_forwarder_had_copied_is_not_copied_again(
    client: dejaq.Client, logs: tuple[dejaq.Log, dejaq.Log], batch: int
) -> None:
    events, copy = logs
    await events.append_batch([b"%d" % n for n in range(400)], keys=[b"k%d" % (n % 9) for n in range(400)])
    killed = Forwarder(
        NeverAcks(LogSource(client, "events", name="f", group="g"), nth=2), LogSink(client, "copy"), batch=100
    )
    with pytest.raises(Killed):
        await killed.run()
    assert len(await all_of(copy)) == 200
    again = Forwarder(LogSource(client, "events", name="f", group="g"), LogSink(client, "copy"), batch=batch)
    await moved(again, 300)
    assert sorted(int(message.body) for message in await all_of(copy)) == list(range(400))


async def test_a_log_set_back_by_much_is_copied_again(client: dejaq.Client, logs: tuple[dejaq.Log, dejaq.Log]) -> None:
    """The broker does not remember the names of the first batches any more, and refuses them."""
    events, copy = logs
    for _ in range(3):
        await events.append_batch([b"x"] * 1_000, bucket=0)
    await moved(Forwarder(LogSource(client, "events", name="f", group="g"), LogSink(client, "copy"), batch=400), 3_000)
    await copy.append_batch([b"other"] * 10)
    await events.reset_group("g", "beginning")
    await moved(Forwarder(LogSource(client, "events", name="f", group="g"), LogSink(client, "copy"), batch=90), 3_000)
    # What it finds there is not appended again.
    assert len([message for message in await all_of(copy) if message.body == b"x"]) == 3_000


async def test_a_log_becomes_a_timeline_and_a_timeline_a_log(
    client: dejaq.Client, logs: tuple[dejaq.Log, dejaq.Log]
) -> None:
    events, copy = logs
    await events.append(b"a", key=b"order-7", headers={"lang": "en", "priority": "4"})
    await moved(forwarder(client, "events", "to"), 1)
    (there,) = (await messages(client, "to")).values()
    assert (there.body, there.priority, there.headers) == (b"a", 4, {"lang": "en", "key": "order-7"})
    assert there.id.startswith("log:")
    await moved(forwarder(client, "to", "copy"), 1)
    (back,) = await all_of(copy)
    assert (back.body, back.key, back.headers["priority"]) == (b"a", b"order-7", "4")
    assert await client.count("to") == 0


async def test_a_log_and_a_stream(
    client: dejaq.Client, logs: tuple[dejaq.Log, dejaq.Log], server: RedisServer, redis: redis_client.Redis
) -> None:
    events, copy = logs
    await events.append_batch([b"%d" % n for n in range(120)], keys=[b"k%d" % (n % 3) for n in range(120)])
    await moved(forwarder(client, "events", f"{server.url}/s"), 120)
    assert await redis.xlen("s") == 120
    killed = forwarder(client, f"{server.url}/s", "copy", batch=50)
    killed._source = NeverAcks(killed._source, nth=2)
    with pytest.raises(Killed):
        await killed.run()
    await moved(forwarder(client, f"{server.url}/s", "copy", batch=50), 70)
    found = await all_of(copy)
    assert sorted(int(message.body) for message in found) == list(range(120))
    assert {message.key for message in found} == {b"k0", b"k1", b"k2"}


@pytest.mark.parametrize(("source", "sink"), [("events", "copy"), ("events", "to"), ("from", "copy")])
async def test_topics_of_one_store_need_no_acknowledgement_of_their_own(
    client: dejaq.Client,
    logs: tuple[dejaq.Log, dejaq.Log],
    source: str,
    sink: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write and the acknowledgement are one transaction, so nothing can happen between them."""

    async def fails(*_: object) -> None:
        raise AssertionError("it was acknowledged by itself")

    monkeypatch.setattr(LogSource, "ack", fails)
    monkeypatch.setattr(TopicSource, "ack", fails)
    async with client.producer("from") as producer:
        await producer.send_batch([b"%d" % n for n in range(100)])
    await client.log("events").append_batch([b"%d" % n for n in range(100)])
    await moved(forwarder(client, source, sink, batch=30), 100)
    there = await all_of(client.log(sink)) if sink == "copy" else list((await messages(client, "to")).values())
    assert sorted(int(message.body) for message in there) == list(range(100))
    left = await client.count("from") if source == "from" else (await client.log("events").groups())[0].lag
    assert left == 0


@pytest.mark.parametrize("source", ["events", "from"])
async def test_a_message_that_a_log_refuses_stays_and_the_others_are_moved(
    client: dejaq.Client, logs: tuple[dejaq.Log, dejaq.Log], source: str
) -> None:
    await client.create_topic("small", kind="log", buckets=2, max_body_bytes=10)
    bodies = [b"%d" % n for n in range(20)]
    bodies[7] = b"x" * 11
    async with client.producer("from") as producer:
        await producer.send_batch(bodies)
    await client.log("events").append_batch(bodies)
    moving = forwarder(client, source, "small")
    running = asyncio.ensure_future(moving.run())
    await eventually(lambda: moving.stats.moved + moving.stats.refused >= 20, within=30)
    moving.stop()
    await running
    assert (moving.stats.moved, moving.stats.refused) == (19, 1)
    assert {message.body for message in await all_of(client.log("small"))} == {*bodies} - {bodies[7]}
    if source == "from":
        assert [message.body for message in (await messages(client, "from")).values()] == [bodies[7]]


async def test_two_forwarders_divide_the_buckets_of_a_log(
    client: dejaq.Client, logs: tuple[dejaq.Log, dejaq.Log]
) -> None:
    events, copy = logs
    both = [forwarder(client, "events", "copy", name=name) for name in ("one", "two")]
    running = [asyncio.ensure_future(one.run()) for one in both]
    sent = 0
    async with asyncio.timeout(60):
        while not all(one.stats.moved for one in both):
            await events.append_batch([b"%d" % n for n in range(sent, sent + 40)], keys=[b"%d" % n for n in range(40)])
            sent += 40
    await eventually(lambda: sum(one.stats.moved for one in both) >= sent, within=30)
    for one in both:
        one.stop()
    await asyncio.gather(*running)
    assert sorted(int(message.body) for message in await all_of(copy)) == list(range(sent))
