"""The SDK compresses bodies: user code does not see it, the broker does not unpack them, and sizes are limited."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

import dejaq
from dejaq import limits
from dejaq.domain.bodies.packing import MARK
from dejaq.forward import forwarder
from dejaq.storage.memory.store import MemoryStorage
from tests.unit.broker.client import Batches, RawClient

BODY = json.dumps([{"name": "Ada", "city": "London", "number": n} for n in range(100)]).encode()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
async def client(storage: MemoryStorage) -> AsyncIterator[dejaq.Client]:
    async with dejaq.Broker(storage=storage) as broker, dejaq.connect(broker) as client:
        await client.create_topic("packed", buckets=4, compression="zstd")
        await client.create_topic("plain", buckets=4)
        yield client


async def stored(client: dejaq.Client, topic: str) -> list[bytes]:
    """The stored bytes, read by a client that does not unpack them."""
    async with client.consumer(topic, name="raw") as consumer:
        count = await client.count(topic)
        return [(await anext(consumer)).raw_body for _ in range(count)]


async def test_user_code_does_not_see_compression(client: dejaq.Client) -> None:
    async with client.producer("packed") as producer:
        await producer.send(BODY, id="a")
        await producer.send_batch([BODY, b"small", MARK + b"odd"], ids=["b", "c", "d"])
    bodies = {"a": BODY, "b": BODY, "c": b"small", "d": MARK + b"odd"}
    assert {m.id: m.body for m in await client.get("packed", list(bodies)) if m} == bodies
    assert {m.id: m.body async for page in client.browse("packed") for m in page} == bodies
    async with client.consumer("packed", name="c", max_messages=4) as consumer:
        batch = await consumer.take(4)
        assert dict(zip(batch.ids, batch.bodies, strict=True)) == bodies
        assert {lease.id: lease.body for lease in batch} == bodies


async def test_stored_bodies_are_smaller(client: dejaq.Client) -> None:
    async with client.producer("packed") as producer:
        await producer.send(BODY)
    (body,) = await stored(client, "packed")
    assert len(body) < len(BODY) / 10


async def test_an_edit_and_a_repeat_compress_in_the_same_way(client: dejaq.Client) -> None:
    """G5: a repeat with the same content is recognised."""
    async with client.producer("packed") as producer:
        now = client.now_ms() + 60_000
        for _ in range(2):
            await producer.send(BODY, id="a", at=now)
        await producer.send(b"x", id="b", at=now)
        await producer.edit("a", body=b"short now")
        await producer.edit("b", body=BODY + b"!")
        await producer.edit_batch(["b"], bodies=[BODY + b"?"])
    found = await client.get("packed", ["a", "b"])
    assert [m.body for m in found if m] == [b"short now", BODY + b"?"]


async def test_a_body_above_the_limit_is_accepted_when_its_compressed_size_is_below(client: dejaq.Client) -> None:
    large = b"0123456789" * (limits.BODY_BYTES_MAX // 5)
    async with client.producer("packed") as producer, client.producer("plain") as plain:
        await producer.send(large, id="large")
        with pytest.raises(dejaq.LimitExceeded, match="BODY_TOO_LARGE"):
            await plain.send(large)
    async with client.consumer("packed", name="c") as consumer:
        assert (await anext(consumer)).body == large


async def test_a_body_keeps_its_compression_in_any_topic(client: dejaq.Client) -> None:
    """Dead letters and transactions move bodies without changing them."""
    async with client.producer("packed") as producer:
        await producer.send(BODY, id="a")
    await forwarder(client, "packed", "plain").run(max_messages=1)
    async with client.transaction() as step:
        step.send("packed", MARK + b"by a transaction", id="b")
    found = [*await client.get("plain", ["a"]), *await client.get("packed", ["b"])]
    assert [m.body for m in found if m] == [BODY, MARK + b"by a transaction"]


async def test_a_decompression_bomb_is_an_error_only_for_the_consumer_that_reads_it(storage: MemoryStorage) -> None:
    """S7, G8: no message is lost, and the stored bytes can still be read."""
    import zstandard

    bomb = MARK + b"\x01" + zstandard.ZstdCompressor().compress(bytes(limits.DECOMPRESSED_BYTES_MAX + 1))
    async with dejaq.Broker(storage=storage) as broker, dejaq.connect(broker) as client:
        await client.create_topic("packed", buckets=1, compression="zstd")
        raw = await (await RawClient(broker.transport()).open()).produce("packed")
        await raw.ask(create=Batches().natural(["bomb"], 0, bodies=[bomb]))
        await raw.close()
        async with client.producer("packed") as producer:
            await producer.send(BODY, id="good")
        shown = {m.id: m.body async for page in client.browse("packed") for m in page}
        assert shown == {"bomb": bomb, "good": BODY}
        async with client.consumer("packed", name="c", max_messages=2) as consumer:
            leases = {lease.id: lease async for lease in consumer}
        assert leases["good"].body == BODY
        with pytest.raises(
            dejaq.LimitExceeded, match="BODY_UNREADABLE: the compressed body says it has 67108865 bytes"
        ):
            _ = leases["bomb"].body
        assert leases["bomb"].raw_body == bomb


async def test_an_unknown_compression_is_refused(client: dejaq.Client) -> None:
    with pytest.raises(dejaq.InvalidArgument, match="compression='brotli' is none of none, zstd"):
        await client.create_topic("other", compression="brotli")
