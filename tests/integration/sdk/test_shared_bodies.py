"""Bodies that the broker has are referred to by digest and not sent again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import dejaq
from dejaq.domain.bodies.packing import NAMED_BYTES_MIN, digest_of
from dejaq.storage.base import Capabilities
from dejaq.storage.memory.store import MemoryStorage
from tests.integration.sdk.cutting import CuttingTransport
from tests.unit.broker.client import Batches, RawClient

LARGE = os.urandom(200_000)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    async with dejaq.Broker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def wire(broker: dejaq.Broker) -> CuttingTransport:
    return CuttingTransport(broker.transport())


@pytest.fixture
async def client(wire: CuttingTransport) -> AsyncIterator[dejaq.Client]:
    async with dejaq.connect(wire, deadline=5.0) as client:
        await client.create_topic("shared", buckets=4, share_bodies=True)
        yield client


def sent(wire: CuttingTransport) -> list[int]:
    """The approximate number of body bytes in each create frame."""
    return [sum(map(len, frame.create.bodies)) for frame in wire.frames if frame.HasField("create")]


async def bodies(client: dejaq.Client, topic: str = "shared") -> list[bytes]:
    return [message.body async for page in client.browse(topic) for message in page]


async def test_a_large_body_is_sent_once(client: dejaq.Client, wire: CuttingTransport) -> None:
    async with client.producer("shared") as producer, client.producer("shared", group="other") as other:
        await producer.send(LARGE)
        assert sent(wire) == [0, len(LARGE)]
        await producer.send(LARGE, id="second")
        await other.send(LARGE)
        assert (await producer.send_batch([LARGE, b"small", LARGE])).ok
    assert sent(wire) == [0, len(LARGE), 0, 0, 5]
    assert sorted(await bodies(client), key=len) == [b"small", *[LARGE] * 5]


async def test_a_body_that_was_removed_is_sent_again(client: dejaq.Client, wire: CuttingTransport) -> None:
    async with client.producer("shared") as producer:
        await producer.send(LARGE, id="a")
        await producer.cancel("a")
        await producer.send(LARGE, id="b")
    assert sent(wire) == [0, len(LARGE), 0, len(LARGE)]
    assert await bodies(client) == [LARGE]


async def test_a_create_with_a_digest_is_repeated_after_a_broken_session(
    client: dejaq.Client, wire: CuttingTransport
) -> None:
    """G5: the same batch under the same name is created once."""
    async with client.producer("shared") as producer:
        wire.cut("create", done=True, after=1)
        await producer.send(LARGE)
        wire.cut("create", done=True)
        await producer.send(LARGE)
    assert await bodies(client) == [LARGE, LARGE]


async def test_small_bodies_and_other_topics_are_sent_at_once(client: dejaq.Client, wire: CuttingTransport) -> None:
    await client.create_topic("plain", buckets=4)
    small = b"s" * (NAMED_BYTES_MIN - 1)
    async with client.producer("shared") as producer, client.producer("plain") as plain:
        await producer.send(small)
        await plain.send(LARGE)
    assert sent(wire) == [len(small), len(LARGE)]


async def test_an_unknown_digest_is_refused_and_changes_nothing(client: dejaq.Client, broker: dejaq.Broker) -> None:
    """G6, G12: a digest must match completely and belong to the same topic, otherwise it is refused."""
    await client.create_topic("other", buckets=4, share_bodies=True)
    await client.create_topic("plain", buckets=4)
    async with client.producer("shared") as producer:
        await producer.send(LARGE, id="there")
    cases = [
        ("shared", [bytes(32)], dejaq.Code.BODY_MISSING),
        ("shared", [digest_of(LARGE)[:16] + bytes(16)], dejaq.Code.BODY_MISSING),
        ("shared", [b"short"], dejaq.Code.BODY_MISSING),
        ("shared", [digest_of(LARGE)] * 2, dejaq.Code.INVALID_ARGUMENT),
        ("other", [digest_of(LARGE)], dejaq.Code.BODY_MISSING),
        ("plain", [digest_of(LARGE)], dejaq.Code.BODY_MISSING),
    ]
    for topic, digests, code in cases:
        raw = await (await RawClient(broker.transport()).open()).produce(topic)
        answer = await raw.ask(create=Batches().natural(["x"], 0, bodies=[b""], digests=digests))
        assert answer.error.code == code, topic
        await raw.close()
        assert await client.get(topic, ["x"]) == [None]


async def test_a_store_that_cannot_share_bodies_reports_it() -> None:
    class Plain(MemoryStorage):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, shares_bodies=False)

    async with dejaq.Broker(storage=Plain()) as broker, dejaq.connect(broker) as client:
        with pytest.raises(dejaq.InvalidArgument, match="the storage 'memory' cannot share bodies"):
            await client.create_topic("shared", share_bodies=True)
