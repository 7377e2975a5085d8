"""Large bodies from one SDK to another: as a whole or in parts, through every operation that moves a message."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

import dejaq
from dejaq import limits
from dejaq.broker.metrics import BODIES_FOUND, BODIES_RECLAIMED, DOWNLOADED, UPLOADED
from dejaq.domain.bodies.large import PART_BYTES, Reference, declare, sealed_parts
from dejaq.errors import Code, DejaqError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock

LARGE, OTHER = os.urandom(5 * PART_BYTES // 2), os.urandom(PART_BYTES + 1)
TEXT = b"many words that are said again and again, " * 200_000
MAX = limits.LARGE_BODY_BYTES_MAX


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    storage = RocksStorage(tmp_path / "data", journal=True)
    async with dejaq.Broker(storage=storage, listen="127.0.0.1:0") as broker:
        yield broker


@pytest.fixture(params=["embedded", "grpc"])
async def client(broker: dejaq.Broker, request: pytest.FixtureRequest) -> AsyncIterator[dejaq.Client]:
    target = broker if request.param == "embedded" else f"dejaq://{broker.address}"
    async with dejaq.connect(target, deadline=20.0) as client:
        await client.create_topic("mail", buckets=4, max_body_bytes=MAX)
        yield client


def stats(broker: dejaq.Broker) -> float:
    """The number of large bodies in the store."""
    return float(broker.central.storage.stats()["large_bodies"])


async def test_a_large_body_is_a_body_like_any_other(client: dejaq.Client, broker: dejaq.Broker) -> None:
    async with client.producer("mail") as producer:
        generated = await producer.send(LARGE)
        assert await producer.send(LARGE, id="a", headers={"k": "v"}) == "a"
    (found,) = await client.get("mail", [generated])
    assert found is not None
    assert (found.body, found.large, found.size) == (LARGE, None, len(LARGE))
    async with client.consumer("mail", name="c", max_messages=2) as consumer:
        leases = [lease async for lease in consumer]
        assert {lease.id for lease in leases} == {generated, "a"}
        for lease in leases:
            assert lease.body == LARGE
            assert lease.size == len(LARGE)
            assert b"".join([part async for part in lease.parts()]) == LARGE
            await lease.delete()
    assert stats(broker) == 0


async def test_a_large_body_can_be_read_in_parts(client: dejaq.Client) -> None:
    """Without fetching the whole body, user code holds one part at a time."""
    async with client.producer("mail") as producer:
        await producer.send(LARGE, id="a")
        await producer.send(b"small", id="b")
    pages = [message async for page in client.browse("mail") for message in page]
    assert {message.id: (message.body, message.size) for message in pages} == {
        "a": (b"", len(LARGE)),
        "b": (b"small", 5),
    }
    for message in pages:
        assert b"".join([part async for part in client.body_parts(message)]) == (
            LARGE if message.id == "a" else b"small"
        )
    async with client.consumer("mail", name="c", fetch_large=False) as consumer:
        leases = {lease.id: lease for lease in [await anext(consumer), await anext(consumer)]}
        lease = leases["a"]
        with pytest.raises(DejaqError) as refused:
            assert lease.body
        assert refused.value.code is Code.BODY_UNREADABLE
        sizes = [len(part) async for part in lease.parts()]
        assert sizes == [PART_BYTES, PART_BYTES, PART_BYTES // 2]
        assert await lease.read() == lease.body == LARGE
        assert await leases["b"].read() == b"small"


async def test_many_large_bodies_at_once_with_small_bodies_between(client: dejaq.Client) -> None:
    bodies = [b"x", LARGE, OTHER, b"", LARGE]
    async with client.producer("mail") as producer:
        named = await producer.send_batch(bodies, ids=[f"m{n}" for n in range(5)])
        made = await producer.send_batch(bodies)
        assert named.ok
        assert made.ok
        assert len(set(made.ids)) == 5
        again = await producer.send_batch(bodies, ids=[f"m{n}" for n in range(5)], at=[0] * 5, results=True)
        assert [again[row] for row in range(5)] == [Code.ID_TAKEN] * 5
    found = await client.get("mail", [*named.ids, *made.ids])
    assert [message.body for message in found if message] == bodies * 2
    async with client.consumer("mail", name="c", max_messages=10) as consumer:
        seen: list[bytes] = []
        async for batch in consumer.batches():
            assert sum(map(len, batch.bodies)) <= limits.CREDIT_BYTES_DEFAULT
            seen += batch.bodies
            await batch.delete()
    assert sorted(seen) == sorted(bodies * 2)


async def test_a_body_above_the_topics_limit_is_refused_before_it_is_sent(
    client: dejaq.Client, broker: dejaq.Broker
) -> None:
    await client.create_topic("small", buckets=2, max_body_bytes=2 * PART_BYTES)
    async with client.producer("small") as producer:
        for body in (LARGE, bytes(MAX + 1)):
            with pytest.raises(DejaqError) as refused:
                await producer.send(body)
            assert refused.value.code is Code.BODY_TOO_LARGE
        results = await producer.send_batch([b"fits", LARGE, OTHER], results=True)
        assert [results[row] for row in range(3)] == [Code.OK, Code.BODY_TOO_LARGE, Code.OK]
        with pytest.raises(DejaqError) as refused:
            await producer.edit(results.ids[0], body=LARGE)
        assert refused.value.code is Code.BODY_TOO_LARGE
    assert broker.central.metrics.value(UPLOADED, "small") == len(OTHER)


async def test_two_concurrent_edits_with_large_bodies(client: dejaq.Client, broker: dejaq.Broker) -> None:
    """One edit wins and the other is a definite conflict; the body that the loser uploaded is reclaimed."""
    async with client.producer("mail") as producer:
        await producer.send(b"first", id="a", delay=60)
        (before,) = await client.get("mail", ["a"])
        assert before is not None

        async def edit(body: bytes) -> Code:
            try:
                return await producer.edit("a", body=body, version=before.version)
            except DejaqError as error:
                return error.code

        codes = await asyncio.gather(edit(LARGE), edit(OTHER))
        assert sorted(codes) == [Code.OK, Code.VERSION_CONFLICT]
        (after,) = await client.get("mail", ["a"])
        assert after is not None
        assert after.body == (LARGE if codes[0] is Code.OK else OTHER)
        edited = await producer.edit_batch(["a"], bodies=[LARGE + b"!"])
        assert edited.ok
    assert stats(broker) == 2
    await broker.central.storage.bodies.reclaim(2**60)
    assert stats(broker) == 1


async def test_transactions_replies_and_fan_out_carry_large_bodies(client: dejaq.Client, broker: dejaq.Broker) -> None:
    await client.create_topic("out", buckets=4, max_body_bytes=MAX)
    async with client.producer("mail", group="g") as producer:
        waiting = asyncio.ensure_future(producer.request(LARGE, id="ask", timeout=20))
        async with client.consumer("mail", name="c") as consumer:
            lease = await anext(consumer)
            assert lease.body == LARGE
            async with client.transaction(group="g") as t:
                t.send("out", OTHER, id="made")
                t.send("out", b"small", id="small")
            await lease.delete(reply=LARGE + b"!")
        reply = await waiting
        assert reply.body == LARGE + b"!"
    async with client.transaction(group="g") as t:
        t.edit("out", "small", body=LARGE)
    found = await client.get("out", ["made", "small"])
    assert [message.body for message in found if message] == [OTHER, LARGE]
    result = await client.fan_out(["mail", "out"], OTHER, id="both")
    assert result.ok
    for topic in ("mail", "out"):
        (message,) = await client.get(topic, ["both"])
        assert message is not None
        assert message.body == OTHER


async def test_dead_letters_keep_large_bodies(client: dejaq.Client, broker: dejaq.Broker) -> None:
    async with client.producer("mail") as producer:
        await producer.send(LARGE, id="a")
    async with client.consumer("mail", name="c") as consumer:
        await (await anext(consumer)).reject("no use")
    dead = client.dead_letters("mail")
    await dead.redrive(ids=["a"])
    (message,) = await client.get("mail", ["a"])
    assert message is not None
    assert message.body == LARGE
    await client.delete_topic("mail")
    await eventually(lambda: stats(broker) == 0, within=10, what="the body is removed with its topic")


async def test_compressed_parts(client: dejaq.Client, broker: dejaq.Broker) -> None:
    """Where even the compressed body does not fit a message, each part is compressed by itself."""
    await client.create_topic("packed", buckets=2, max_body_bytes=MAX, compression="zstd")
    mixed = OTHER + TEXT
    async with client.producer("packed") as producer:
        await producer.send(TEXT, id="fits")
        await producer.send(mixed, id="mixed")
    found = await client.get("packed", ["fits", "mixed"], fetch_large=False)
    assert [message.large is None for message in found if message] == [True, False]
    found = await client.get("packed", ["fits", "mixed"])
    assert [message.body for message in found if message] == [TEXT, mixed]
    assert broker.central.metrics.value(UPLOADED, "packed") < len(mixed) // 4


async def test_the_sdk_asks_before_it_uploads(client: dejaq.Client, broker: dejaq.Broker) -> None:
    """G12: in a topic that shares bodies, a body that the broker has is not sent again and is stored once."""
    await client.create_topic("shared", buckets=4, max_body_bytes=MAX, share_bodies=True)
    async with client.producer("shared") as producer:
        for number in range(4):
            await producer.send(LARGE, id=f"m{number}")
    assert broker.central.metrics.value(UPLOADED, "shared") == len(LARGE)
    assert broker.central.metrics.value(BODIES_FOUND, "shared") == 3 * len(LARGE)
    assert stats(broker) == 1
    found = await client.get("shared", [f"m{number}" for number in range(4)])
    assert [message.body for message in found if message] == [LARGE] * 4
    async with client.producer("shared") as producer:
        await producer.cancel(["m0", "m1", "m2"])
        assert stats(broker) == 1
        await producer.cancel("m3")
    # The SDK found the body, so the store keeps it for some time for a message that may refer to it.
    assert stats(broker) == 1
    await broker.central.storage.bodies.reclaim(broker.central.clock.now_ms() + 2 * limits.UPLOAD_KEEP_MS)
    assert stats(broker) == 0


async def test_a_reference_that_expired_is_uploaded_again(client: dejaq.Client, broker: dejaq.Broker) -> None:
    """A body that was uploaded and then reclaimed before its message was created causes no error in user code."""
    async with client.producer("mail") as producer:
        upload, taken = producer._session.large.upload, 0

        async def late(*arguments: object) -> bytes:
            nonlocal taken
            reference = await upload(*arguments)  # type: ignore[arg-type]
            if not taken:
                await broker.central.storage.bodies.reclaim(2**60)
            taken += 1
            return reference

        producer._session.large.upload = late  # type: ignore[assignment,method-assign]
        await producer.send(LARGE, id="a")
    assert taken == 2
    (message,) = await client.get("mail", ["a"])
    assert message is not None
    assert message.body == LARGE


async def test_user_code_that_gives_up_waiting_loses_nothing(client: dejaq.Client) -> None:
    """A wait that is cancelled while a body is fetched leaves the message to the next caller."""
    async with client.producer("mail") as producer:
        await producer.send(LARGE, id="a")
    async with client.consumer("mail", name="c") as consumer:
        fetch, begun, gate = consumer._settler.bodies.fetch, asyncio.Event(), asyncio.Event()

        async def slow(*arguments: object) -> bytes:
            begun.set()
            await gate.wait()
            return await fetch(*arguments)  # type: ignore[arg-type]

        consumer._settler.bodies.fetch = slow  # type: ignore[assignment,method-assign]
        waiting = asyncio.ensure_future(anext(consumer))
        await begun.wait()
        waiting.cancel()
        await asyncio.wait((waiting,))
        gate.set()
        lease = await anext(consumer)
        assert (lease.id, lease.body, lease.attempts) == ("a", LARGE, 1)


async def test_a_missing_body_is_an_error_when_it_is_read(client: dejaq.Client, broker: dejaq.Broker) -> None:
    async with client.producer("mail") as producer:
        await producer.send(LARGE, id="a", delay=60)
        (message,) = await client.get("mail", ["a"], fetch_large=False)
        assert message is not None
        await producer.edit("a", body=OTHER)
        with pytest.raises(DejaqError) as refused:
            assert [part async for part in client.body_parts(message)]
        assert refused.value.code is Code.BODY_MISSING
        current = await client.fetched(message)
        assert current is not None
        assert current.body == OTHER
        await producer.cancel("a")
        assert await client.fetched(message) is None


async def frames(head: carrier.UploadHead | None, parts: list[bytes]) -> AsyncIterator[carrier.UploadFrame]:
    if head is not None:
        yield carrier.UploadFrame(head=head)
    for part in parts:
        yield carrier.UploadFrame(part=part)


async def test_invalid_uploads_are_refused_and_leave_nothing(broker: dejaq.Broker) -> None:
    """S7: a clear code for uploads that are cut, wrong, headless, too long or for another topic; others continue."""
    async with dejaq.connect(f"dejaq://{broker.address}") as client:
        await client.create_topic("mail", buckets=4, max_body_bytes=MAX)
        transport = WebSocketTransport(str(broker.address))
        parts = list(sealed_parts(LARGE))
        declared = declare(parts, len(LARGE))
        good = {"topic": "mail", "size": declared.size, "stored": declared.stored, "digest": declared.digest}
        cases: list[tuple[dict[str, object] | None, list[bytes], Code]] = [
            (good, parts[:2], Code.INVALID_ARGUMENT),
            (good | {"digest": bytes(32)}, parts, Code.INVALID_ARGUMENT),
            (good, [*parts, b"more"], Code.INVALID_ARGUMENT),
            (good, [b"", *parts], Code.INVALID_ARGUMENT),
            (good, [bytes(2 * PART_BYTES)], Code.INVALID_ARGUMENT),
            (good | {"bucket": 4}, parts, Code.INVALID_ARGUMENT),
            (good | {"size": MAX + 1}, parts, Code.BODY_TOO_LARGE),
            (good | {"topic": "none"}, parts, Code.TOPIC_NOT_FOUND),
            (None, parts, Code.INVALID_ARGUMENT),
            (None, [], Code.INVALID_ARGUMENT),
        ]
        for head, sent, code in cases:
            message = carrier.UploadHead(**head) if head is not None else None  # type: ignore[arg-type]
            with pytest.raises(DejaqError) as refused:
                await transport.upload("Carrier.Upload", frames(message, sent), carrier.BodyReference, 10.0)
            assert refused.value.code is code, (head, refused.value)

        unknown = Reference(declared.size, declared.stored, declared.digest, 77).pack()
        asked = [
            (carrier.DownloadRequest(topic="mail", id="a", reference=unknown), Code.BODY_MISSING),
            (carrier.DownloadRequest(topic="mail", id="a", reference=b"x"), Code.INVALID_ARGUMENT),
            (carrier.DownloadRequest(topic="mail", id="", reference=unknown), Code.INVALID_ARGUMENT),
            (carrier.DownloadRequest(topic="mail", id="a", reference=unknown, first_part=9), Code.INVALID_ARGUMENT),
            (carrier.DownloadRequest(topic="none", id="a", reference=unknown), Code.TOPIC_NOT_FOUND),
        ]
        for request, code in asked:
            with pytest.raises(DejaqError) as refused:
                assert [part async for part in transport.stream("Carrier.Download", request, carrier.BodyPart)]
            assert refused.value.code is code

        async def cut() -> AsyncIterator[carrier.UploadFrame]:
            yield carrier.UploadFrame(head=carrier.UploadHead(**good))  # type: ignore[arg-type]
            yield carrier.UploadFrame(part=parts[0])
            await asyncio.Event().wait()

        with pytest.raises(DejaqError):
            await transport.upload("Carrier.Upload", cut(), carrier.BodyReference, 0.3)
        await transport.close()
        await eventually(lambda: broker.central.bodies.under_way == 0, within=10, what="the cut upload is dropped")
        assert stats(broker) == 0
        assert await broker.central.storage.bodies.reclaim(2**60) == 0


async def test_bodies_are_fetched_before_they_are_due() -> None:
    """G2: the bodies that are due first are fetched in time, as many as fit the buffer, and each is read once."""
    clock = VirtualClock()
    async with dejaq.Broker(clock=clock, drain_ms=0) as broker, dejaq.connect(broker, clock=clock) as client:
        await client.create_topic("mail", buckets=4, max_body_bytes=MAX)
        bodies = [OTHER + bytes([number]) for number in range(3)]
        async with client.producer("mail") as producer:
            for number in (2, 1, 0):
                await producer.send(bodies[number], id=f"m{number}", delay=3.0 + number / 2)

        def read() -> float:
            return broker.central.metrics.value(DOWNLOADED, "mail") / len(bodies[0])

        async with client.consumer("mail", name="c", prefetch=5.0, max_messages=3) as consumer:
            consumer._ahead._bytes_max = 5 * len(OTHER) // 2
            await eventually(lambda: read() == 2 and consumer._ahead.idle, within=10, what="two bodies are fetched")
            seen = []
            for number in range(3):
                taking = asyncio.ensure_future(anext(consumer))
                await asyncio.sleep(0)
                assert not taking.done(), "no message is early"
                await clock.advance(500 if number else 3_000)
                lease = await taking
                seen.append(lease.body)
                await lease.delete()
            assert seen == bodies
            assert read() == 3


async def test_the_broker_removes_unused_uploads_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G8: an upload to which no message refers is removed by the broker itself."""
    monkeypatch.setattr(limits, "UPLOAD_KEEP_MS", 30_000)
    clock = VirtualClock()
    store = RocksStorage(tmp_path / "data")
    async with (
        dejaq.Broker(storage=store, clock=clock, drain_ms=0) as broker,
        dejaq.connect(broker, clock=clock) as client,
    ):
        await client.create_topic("mail", buckets=4, max_body_bytes=MAX)
        async with client.producer("mail") as producer:
            await producer._session.large.upload("mail", 0, LARGE, producer._session.terms)
            await producer.send(OTHER, id="kept")
            assert stats(broker) == 2
            await clock.advance(70_000)
            await eventually(lambda: stats(broker) == 1, within=10, what="the idle upload is reclaimed")
            # The broker counts it once it has the store's answer.
            reclaimed = partial(broker.central.metrics.value, BODIES_RECLAIMED)
            await eventually(lambda: reclaimed() == 1, within=10, what="it is counted")
        (kept,) = await client.get("mail", ["kept"])
        assert kept is not None
        assert kept.body == OTHER
