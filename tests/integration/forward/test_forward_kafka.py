"""Forwarding between DejaQ and a real Kafka: each message arrives once, whichever steps are repeated."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

import dejaq
from dejaq.errors import Unavailable
from dejaq.forward import Forwarder, Parcel, Source, forwarder
from dejaq.forward.forwarder import ForwardStats
from dejaq.forward.kafka import KafkaSink, KafkaSource
from dejaq.forward.log import LogSink, LogSource
from dejaq.testing.servers.kafka import KafkaServer
from dejaq.testing.waiting import eventually, patient
from tests.integration.forward.records import KafkaTopic, Record

WITHIN = 20.0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One server for all tests, which use topics of their own."""
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    asyncio.run(server.start())
    yield server
    server.kill()


@pytest.fixture
async def records(kafka: KafkaServer) -> KafkaTopic:
    topic = KafkaTopic(kafka.address, f"t-{uuid4().hex[:8]}")
    await topic.create()
    return topic


@pytest.fixture
async def client() -> AsyncIterator[dejaq.Client]:
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("timeline", buckets=4)
        await client.create_topic("log", kind="log", buckets=4)
        yield client


async def moved(moving: Forwarder, count: int) -> ForwardStats:
    async with asyncio.timeout(patient(WITHIN)):
        await moving.run(max_messages=count)
    return moving.stats


async def until(moving: Forwarder, *, moved: int, refused: int = 0) -> None:
    """Run until so many messages were moved and refused."""
    running = asyncio.ensure_future(moving.run())
    numbers = moving.stats
    await eventually(lambda: numbers.moved + numbers.refused >= moved + refused, within=WITHIN)
    moving.stop()
    await running
    assert (numbers.moved, numbers.refused) == (moved, refused)


async def in_log(client: dejaq.Client) -> list[dejaq.LogMessage]:
    return [message async for batch in client.log("log").read() for message in batch]


class Killed(Exception):
    """Stands for kill -9 between the write and the acknowledgement."""


class NeverAcks:
    """A source whose process is killed when it would acknowledge for the `nth` time."""

    def __init__(self, source: Source, nth: int = 1) -> None:
        self._source, self._left = source, nth

    async def open(self) -> None:
        await self._source.open()

    async def read(self, limit: int) -> Sequence[Parcel]:
        return await self._source.read(limit)

    async def ack(self, parcels: Sequence[Parcel]) -> None:
        self._left -= 1
        if not self._left:
            raise Killed
        await self._source.ack(parcels)

    async def reject(self, parcel: Parcel, reason: str) -> None:
        await self._source.reject(parcel, reason)

    async def close(self) -> None:
        await self._source.close()


async def test_records_keep_their_keys_order_headers_and_times_in_a_log(
    client: dejaq.Client, records: KafkaTopic
) -> None:
    written = [Record(b"%d" % n, b"k%d" % (n % 7), {"n": b"%d" % n}, ts=1_700_000_000_000 + n) for n in range(300)]
    await records.write([*written, Record(None, b"k1"), Record(b"raw", b"\xff\xfe")])
    assert (await moved(forwarder(client, records.url, "log"), 302)).moved == 302
    by_key: defaultdict[bytes, list[dejaq.LogMessage]] = defaultdict(list)
    for message in await in_log(client):
        by_key[message.key].append(message)
    for number in range(7):
        found = [message for message in by_key[b"k%d" % number] if "kafka-null" not in message.headers]
        assert [message.body for message in found] == [b"%d" % n for n in range(number, 300, 7)]
        assert len({message.bucket for message in found}) == 1
    seven = by_key[b"k0"][1]
    assert (seven.headers["n"], seven.headers["forwarded-at"]) == ("7", "1700000000007")
    assert by_key[b"k1"][-1].headers["kafka-null"] == "true"
    assert by_key[b"\xff\xfe"][0].body == b"raw"
    await records.write([Record(b"new")])
    await moved(forwarder(client, records.url, "log"), 1)
    assert sorted(message.body for message in await in_log(client))[-2:] == [b"new", b"raw"]


async def test_records_become_messages_of_a_timeline_and_come_back(client: dejaq.Client, records: KafkaTopic) -> None:
    await records.write([Record(b"a", b"key", {"priority": b"3", "lang": b"en"}), Record(b"b", b"\xff")])
    await moved(forwarder(client, records.url, "timeline"), 2)
    found = {message.body: message async for page in client.browse("timeline") for message in page}
    assert found[b"a"].headers == {"key": "key", "lang": "en"}
    assert (found[b"a"].priority, found[b"b"].headers) == (3, {"key-base64": "/w=="})
    back = KafkaTopic(records.address, f"{records.name}-back")
    await back.create()
    await moved(forwarder(client, "timeline", back.url), 2)
    there = {one.value: one for one in await back.read()}
    assert (there[b"a"].key, there[b"a"].headers["priority"], there[b"b"].key) == (b"key", b"3", b"\xff")


async def test_messages_of_a_log_keep_their_keys_and_order_in_kafka(client: dejaq.Client, records: KafkaTopic) -> None:
    log = client.log("log")
    keys = [b"k%d" % (n % 5) for n in range(200)]
    await log.append_batch([b"%d" % n for n in range(200)], keys=keys, headers=[{"n": str(n)} for n in range(200)])
    assert (await moved(forwarder(client, "log", records.url), 200)).moved == 200
    there = await records.read()
    for key in set(keys):
        assert [one.value for one in there if one.key == key] == [b"%d" % n for n in range(200) if keys[n] == key]
    assert there[0].headers["n"] == there[0].value
    assert {message.ts_ms for message in await in_log(client)} >= {one.ts for one in there}
    await log.append(b"new")
    await moved(forwarder(client, "log", records.url), 1)
    assert len(await records.read()) == 201


@pytest.mark.parametrize("batch", [7, 50, 400])
async def test_what_a_killed_forwarder_had_appended_to_a_log_is_not_appended_again(
    client: dejaq.Client, records: KafkaTopic, batch: int
) -> None:
    """The batches that are read again have other lengths, with other ends, than those that were appended."""
    await records.write([Record(b"%d" % n, b"k%d" % (n % 9)) for n in range(500)])
    source = KafkaSource(records.url, name="f", group="g")
    with pytest.raises(Killed):
        await Forwarder(NeverAcks(source, nth=2), LogSink(client, "log"), batch=100).run()
    assert len(await in_log(client)) == 200
    again = KafkaSource(records.url, name="f", group="g")
    await moved(Forwarder(again, LogSink(client, "log"), batch=batch), 400)
    assert sorted(int(message.body) for message in await in_log(client)) == list(range(500))


@pytest.mark.parametrize("batch", [7, 300])
async def test_what_a_killed_forwarder_had_written_to_kafka_is_not_written_again(
    client: dejaq.Client, records: KafkaTopic, batch: int
) -> None:
    log = client.log("log")
    await log.append_batch([b"%d" % n for n in range(300)], keys=[b"k%d" % (n % 9) for n in range(300)])
    source = LogSource(client, "log", name="f", group="g")
    with pytest.raises(Killed):
        await Forwarder(NeverAcks(source, nth=2), KafkaSink(records.url, name="f"), batch=100).run()
    source = LogSource(client, "log", name="f", group="g")
    await moved(Forwarder(source, KafkaSink(records.url, name="f"), batch=batch), 200)
    assert sorted(int(one.value or b"") for one in await records.read()) == list(range(300))


async def test_a_message_of_a_timeline_that_was_written_is_not_written_again(
    client: dejaq.Client, records: KafkaTopic
) -> None:
    parcels = [Parcel(id=f"m-{n}", body=b"%d" % n) for n in range(900)]
    sink = KafkaSink(records.url, name="f")
    await sink.open()
    assert await sink.write(parcels[:300]) == {}
    await sink.close()
    sink = KafkaSink(records.url, name="f")
    await sink.open()
    assert await sink.write(list(reversed(parcels))) == {}
    await sink.close()
    assert sorted(int(one.value or b"") for one in await records.read()) == list(range(900))


async def test_a_second_forwarder_of_a_name_takes_over_from_the_first(records: KafkaTopic) -> None:
    first, second = KafkaSink(records.url, name="f"), KafkaSink(records.url, name="f")
    await first.open()
    await first.write([Parcel(id="a", body=b"a", lane="l", number=1)])
    await second.open()
    await second.write([Parcel(id="b", body=b"b", lane="l", number=2)])
    with pytest.raises(dejaq.DejaqError, match="has taken over"):
        await first.write([Parcel(id="b", body=b"b", lane="l", number=2)])
    await first.close()
    await second.close()
    assert sorted(one.value or b"" for one in await records.read()) == [b"a", b"b"]


async def test_what_the_sink_refuses_is_counted_and_the_rest_is_moved(client: dejaq.Client, kafka: KafkaServer) -> None:
    await client.create_topic("small", kind="log", buckets=2, max_body_bytes=10)
    source, small = (KafkaTopic(kafka.address, f"t-{uuid4().hex[:8]}") for _ in range(2))
    await source.create(1)
    await small.create(1, max_message_bytes="2000")
    await source.write([Record(b"a"), Record(b"x" * 11), Record(b"b")])
    await until(forwarder(client, source.url, "small"), moved=2, refused=1)
    await client.log("log").append_batch([b"a", b"x" * 3_000, b"b"])
    await until(forwarder(client, "log", small.url), moved=2, refused=1)
    assert [one.value for one in await small.read()] == [b"a", b"b"]


async def test_the_forwarder_continues_after_an_outage_of_kafka(client: dejaq.Client, tmp_path: Path) -> None:
    async with KafkaServer(tmp_path) as server:
        source, target = KafkaTopic(server.address, "source"), KafkaTopic(server.address, "target")
        await source.create()
        await target.create()
        to_log, to_kafka = forwarder(client, source.url, "log"), forwarder(client, "log", target.url)
        running = [asyncio.ensure_future(one.run()) for one in (to_log, to_kafka)]
        await source.write([Record(b"before")])
        await eventually(lambda: to_kafka.stats.moved == 1, within=WITHIN)
        server.kill()
        await client.log("log").append(b"during")
        await eventually(lambda: to_kafka.stats.outages, within=WITHIN, what="the forwarder detects the outage")
        await server.start()
        await source.write([Record(b"after")])

        def continued() -> bool:
            for one in running:
                if one.done():
                    one.result()
            return to_kafka.stats.moved == 3

        await eventually(continued, within=3 * WITHIN, what="the forwarders continue")
        to_log.stop()
        to_kafka.stop()
        await asyncio.gather(*running)
        assert sorted(one.value or b"" for one in await target.read()) == [b"after", b"before", b"during"]


async def test_addresses_that_do_not_work_end_the_forwarder(
    client: dejaq.Client, kafka: KafkaServer, records: KafkaTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(dejaq.InvalidArgument, match="nowhere"):
        await forwarder(client, f"{kafka.url}/nowhere", "log").run()
    with pytest.raises(dejaq.InvalidArgument, match="nowhere"):
        await forwarder(client, "log", f"{kafka.url}/nowhere").run()
    with pytest.raises(dejaq.InvalidArgument, match="is not kafka://HOST:PORT/TOPIC"):
        forwarder(client, "kafka://127.0.0.1:9", "log")
    monkeypatch.setattr("dejaq.forward.kafka.CALL_SECONDS", 0.5)
    with pytest.raises(Unavailable, match=r"Kafka at 127\.0\.0\.1:9"):
        await forwarder(client, "kafka://127.0.0.1:9/x", "log").run()
