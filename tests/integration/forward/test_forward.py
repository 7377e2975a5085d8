"""Forwarding between topics and real Redis streams: each message arrives once, whichever steps are repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import redis.asyncio as redis_client

import dejaq
from dejaq.domain.bodies.packing import MARK
from dejaq.forward import Forwarder, Parcel, forwarder
from dejaq.forward.forwarder import ForwardStats
from dejaq.forward.topic import TopicSink, TopicSource
from dejaq.testing.servers.redis import RedisServer
from dejaq.testing.waiting import eventually, patient

WITHIN = 20.0


async def messages(client: dejaq.Client, topic: str) -> dict[str, dejaq.Message]:
    return {message.id: message async for page in client.browse(topic) for message in page}


async def moved(moving: Forwarder, count: int) -> ForwardStats:
    async with asyncio.timeout(patient(WITHIN)):
        await moving.run(max_messages=count)
    return moving.stats


async def test_a_message_between_topics_keeps_its_body_and_headers(client: dejaq.Client) -> None:
    """One transaction moves it: the message is in one of the two topics, never in both or in neither."""
    async with client.producer("from") as producer:
        await producer.send_batch([b"%d" % n for n in range(1_200)], ids=[f"m-{n}" for n in range(1_200)])
        await producer.send(b"rich", id="rich", priority=-7, headers={"lang": "en"})
    assert (await moved(forwarder(client, "from", "to", group="mover"), 1_201)).moved == 1_201
    there = await messages(client, "to")
    assert len(there) == 1_201
    rich = there["rich"]
    assert (rich.body, rich.priority, rich.headers, rich.producer_group) == (b"rich", -7, {"lang": "en"}, "mover")
    assert rich.ts <= client.now_ms()
    assert await client.count("from") == 0


async def test_a_delay_is_added_to_the_due_time(client: dejaq.Client) -> None:
    async with client.producer("from") as producer:
        await producer.send(b"x", id="x")
    await moved(forwarder(client, "from", "to", delay=3_600), 1)
    assert 3_590_000 < (await messages(client, "to"))["x"].ts - client.now_ms() <= 3_600_000


async def test_a_message_that_the_target_refuses_stays_and_the_others_are_moved(client: dejaq.Client) -> None:
    await client.create_topic("small", buckets=4, max_body_bytes=10)
    async with client.producer("from") as producer:
        await producer.send_batch([b"x", b"x" * 11, b"y"], ids=["a", "large", "b"])
    stats = await moved(forwarder(client, "from", "small"), 2)
    assert (stats.moved, stats.refused) == (2, 1)
    assert set(await messages(client, "small")) == {"a", "b"}
    left = (await messages(client, "from"))["large"]
    assert left.body == b"x" * 11
    assert left.ts > client.now_ms() + 3_000


async def test_an_id_of_another_message_is_refused_and_a_repeat_is_not(client: dejaq.Client) -> None:
    async with client.producer("to", group="forward") as other:
        await other.send(b"same", id="repeat", delay=60)
        await other.send(b"something else", id="taken")
    async with client.producer("from") as producer:
        await producer.send_batch([b"same", b"mine"], ids=["repeat", "taken"])
    moving = forwarder(client, "from", "to")
    async with asyncio.timeout(patient(WITHIN)):
        await moving.run(idle=0.5)
    assert (moving.stats.moved, moving.stats.refused) == (1, 1)
    assert set(await messages(client, "from")) == {"taken"}
    assert (await messages(client, "to"))["taken"].body == b"something else"


async def test_from_a_stream_to_a_topic(client: dejaq.Client, server: RedisServer, redis: redis_client.Redis) -> None:
    due = client.now_ms() + 60_000
    entry: Any = await redis.xadd("s", {"body": b"\x00\xff", "at": due, "priority": -3, "lang": "en", "header:a": "b"})
    await redis.xadd("s", {"body": "named", "id": "order-17"})
    plain: Any = await redis.xadd("s", {"city": "Ulm", "n": "1"})
    assert (await moved(forwarder(client, f"{server.url}/s", "to"), 3)).moved == 3
    there = list((await messages(client, "to")).values())
    first = next(message for message in there if message.id.endswith(entry.decode()))
    assert (first.body, first.ts, first.priority, first.headers) == (b"\x00\xff", due, -3, {"lang": "en", "a": "b"})
    assert next(message for message in there if message.id == "order-17").body == b"named"
    last = next(message for message in there if message.id.endswith(plain.decode()))
    assert json.loads(last.body) == {"city": "Ulm", "n": "1"}
    assert (await redis.xpending("s", "dejaq-forward-to-to"))["pending"] == 0
    assert await redis.xlen("s") == 3


async def test_from_a_topic_to_a_stream_and_back(
    client: dejaq.Client, server: RedisServer, redis: redis_client.Redis
) -> None:
    async with client.producer("from") as producer:
        await producer.send_batch([b"%d" % n for n in range(700)], ids=[f"m-{n}" for n in range(700)])
        await producer.send(b"rich", id="rich", priority=4, headers={"lang": "en"})
    await moved(forwarder(client, "from", f"{server.url}/0/s"), 701)
    assert await redis.xlen("s") == 701
    await moved(forwarder(client, f"{server.url}/s", "to", trim=True), 701)
    there = await messages(client, "to")
    assert {name: message.body for name, message in there.items() if name != "rich"} == {
        f"m-{n}": b"%d" % n for n in range(700)
    }
    assert (there["rich"].priority, there["rich"].headers) == (4, {"lang": "en"})
    assert await redis.xlen("s") == 0


async def test_a_repeat_is_added_to_a_stream_once(server: RedisServer, redis: redis_client.Redis) -> None:
    from dejaq.forward.redis import StreamSink

    sink = StreamSink(f"{server.url}/s")
    await sink.open()
    await sink.write([Parcel(id="a", body=b"1"), Parcel(id="b", body=b"2")])
    await sink.write([Parcel(id="b", body=b"2"), Parcel(id="c", body=b"3")])
    await sink.close()
    entries: Any = await redis.xrange("s")
    assert [fields[b"id"] for _, fields in entries] == [b"a", b"b", b"c"]


async def test_an_entry_that_was_written_and_not_acknowledged_is_not_written_twice(
    client: dejaq.Client, server: RedisServer, redis: redis_client.Redis
) -> None:
    """As after a crash between the two: the entry is read again, recognised by its id, and acknowledged."""
    from dejaq.forward.redis import StreamSource

    for number in range(10):
        await redis.xadd("s", {"body": str(number)})
    sink, source = TopicSink(client, "to"), StreamSource(f"{server.url}/s", name="me", group="dejaq-forward-to-to")
    await source.open()
    await sink.open()
    assert await sink.write(await source.read(6)) == {}
    await source.close()
    await sink.close()
    assert (await moved(forwarder(client, f"{server.url}/s", "to", name="me"), 10)).moved == 10
    assert sorted(message.body for message in (await messages(client, "to")).values()) == [b"%d" % n for n in range(10)]
    assert (await redis.xpending("s", "dejaq-forward-to-to"))["pending"] == 0


async def test_the_forwarder_waits_for_a_queue_that_is_unavailable(
    client: dejaq.Client, server: RedisServer, redis: redis_client.Redis
) -> None:
    await redis.xadd("s", {"body": "before"})
    moving = forwarder(client, f"{server.url}/s", "to")
    running = asyncio.ensure_future(moving.run())
    await eventually(lambda: moving.stats.moved == 1, within=WITHIN)
    server.kill()
    await eventually(lambda: moving.stats.outages, within=WITHIN, what="the forwarder detects the outage")
    await server.start()
    await redis.connection_pool.disconnect()
    await redis.xadd("s", {"body": "after"})
    await eventually(lambda: moving.stats.moved == 2, within=WITHIN, what="the forwarder continues")
    moving.stop()
    await running
    assert sorted(message.body for message in (await messages(client, "to")).values()) == [b"after", b"before"]


async def test_a_stop_moves_messages_that_were_read_and_releases_the_rest(client: dejaq.Client) -> None:
    gate = asyncio.Event()

    class Slow(TopicSink):
        async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
            await gate.wait()
            return await super().write(parcels)

    async with client.producer("from") as producer:
        await producer.send_batch([b"x"] * 30, ids=[f"m-{n}" for n in range(30)])
    moving = Forwarder(TopicSource(client, "from", batch=10), Slow(client, "to"), batch=10)
    running = asyncio.ensure_future(moving.run())

    async def taken() -> bool:
        return await client.count("from", status="processing") > 0

    await eventually(taken, within=WITHIN)
    moving.stop()
    gate.set()
    await running
    assert moving.stats.moved == await client.count("to") <= 10
    assert await client.count("from", status="available") == 30 - moving.stats.moved


async def test_the_forwarder_ends_when_no_message_comes_for_a_while(client: dejaq.Client) -> None:
    async with asyncio.timeout(patient(WITHIN)):
        await forwarder(client, "from", "to").run(idle=0.05)


@pytest.mark.parametrize(
    ("source", "sink", "says"),
    [
        ("from", "from", "to itself"),
        ("amqp://x/y", "to", "'amqp' is no kind of queue"),
        ("from", "redis://127.0.0.1", "is not redis://HOST:PORT/STREAM"),
        ("from", "redis://u:secret@127.0.0.1/x/y/z", r"u:\*\*\*@127.0.0.1"),
        ("no topic", "to", "is not a topic name"),
    ],
)
async def test_invalid_addresses_are_refused(client: dejaq.Client, source: str, sink: str, says: str) -> None:
    with pytest.raises(dejaq.InvalidArgument, match=says):
        forwarder(client, source, sink)


async def test_a_key_that_is_no_stream_and_a_missing_topic_end_the_forwarder(
    client: dejaq.Client, server: RedisServer, redis: redis_client.Redis
) -> None:
    await redis.set("text", "x")
    with pytest.raises(dejaq.InvalidArgument, match="is no stream but a string"):
        await forwarder(client, "from", f"{server.url}/text").run()
    with pytest.raises(dejaq.InvalidArgument, match="WRONGTYPE"):
        await forwarder(client, f"{server.url}/text", "to").run()
    with pytest.raises(dejaq.Missing, match="nowhere"):
        await forwarder(client, "from", "nowhere").run()


async def test_a_damaged_body_is_refused_and_the_rest_is_moved(
    client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D15: the forwarder ended at a body with a damaged zstd mark, and again after every restart."""
    async with client.producer("from") as producer:
        with monkeypatch.context() as unsealed:
            unsealed.setattr("dejaq.sdk.producing.producer.sealed_column", lambda bodies, *_: bodies)
            await producer.send_batch([MARK + b"\x01nonsense"], ids=["damaged"])
        await producer.send_batch([b"a", b"b"], ids=["a", "b"])
    stats = await moved(forwarder(client, "from", "to"), 2)
    assert (stats.moved, stats.refused) == (2, 1)
    assert set(await messages(client, "to")) == {"a", "b"}
    assert set(await messages(client, "from")) == {"damaged"}


async def test_a_stream_is_forwarded_completely_to_each_target(
    client: dejaq.Client, server: RedisServer, redis: redis_client.Redis
) -> None:
    """U21: forwarders to two targets shared a group, and each target got only some entries of the stream."""
    await client.create_topic("other")
    names = {f"m-{n}" for n in range(50)}
    for name in sorted(names):
        await redis.xadd("s", {"body": "x", "id": name})
    for target in ("to", "other"):
        await moved(forwarder(client, f"{server.url}/s", target), 50)
        assert set(await messages(client, target)) == names


async def test_a_new_group_continues_where_the_group_of_the_first_release_ended(
    client: dejaq.Client, server: RedisServer, redis: redis_client.Redis
) -> None:
    """U21: entries that 0.1.0 moved are not moved again; entries that it read and did not acknowledge are moved."""
    added = [await redis.xadd("s", {"body": "x", "id": f"m-{n}"}) for n in range(6)]
    await redis.xgroup_create("s", "dejaq-forward", id="0")
    await redis.xreadgroup("dejaq-forward", "old", {"s": ">"}, count=4)
    await redis.xack("s", "dejaq-forward", *added[:3])
    await moved(forwarder(client, f"{server.url}/s", "to"), 3)
    assert set(await messages(client, "to")) == {"m-3", "m-4", "m-5"}


async def test_a_stop_ends_a_forwarder_whose_sink_is_unavailable(client: dejaq.Client) -> None:
    """The forwarder waited for the sink without end, so only SIGKILL ended it. No entry that was read is lost."""

    class Away(TopicSink):
        async def write(self, parcels: Sequence[Parcel]) -> Mapping[int, str]:
            raise dejaq.Unavailable("away")

    async with client.producer("from") as producer:
        await producer.send(b"x", id="x")
    moving = Forwarder(TopicSource(client, "from"), Away(client, "to"))
    running = asyncio.ensure_future(moving.run())
    await eventually(lambda: moving.stats.outages > 0, within=WITHIN)
    moving.stop()
    async with asyncio.timeout(patient(WITHIN)):
        with pytest.raises(dejaq.Unavailable, match="away"):
            await running
    assert set(await messages(client, "from")) == {"x"}
