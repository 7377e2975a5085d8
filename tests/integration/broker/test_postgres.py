"""A whole broker on PostgreSQL: everything a user does, from the SDK to the journal; only one setting differs."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import dejaq
from dejaq import limits
from dejaq.broker.metrics import UPLOADED
from dejaq.journal.verification import verify
from dejaq.testing.servers.postgres import shared_server

COUNT = 300


async def test_everything_a_user_does(tmp_path: Path) -> None:
    """G1, G4, G5, G6, G9: every operation on messages, their journal records, and a restart."""
    cluster = f"smoke_{secrets.token_hex(4)}"
    data = tmp_path / "data"
    async with (
        dejaq.Broker(data, storage=shared_server().dsn, cluster=cluster) as broker,
        dejaq.connect(broker) as client,
    ):
        await client.create_topic("mail", buckets=8)
        await client.create_topic("out", buckets=2)
        await _work(client)
    async with (
        dejaq.Broker(data, storage=shared_server().dsn, cluster=cluster) as broker,
        dejaq.connect(broker) as client,
    ):
        assert {topic.name for topic in await client.topics()} == {"mail", "out"}
        (later,) = await client.get("mail", ["later"])
        assert later is not None
        assert later.body == b"edited"
        assert await client.count("mail") == 1
        # From the segments of the first broker, in the order of the tickets.
        life = await client.history("mail", "later")
        assert [event.kind for event in life.events] == ["created", "moved", "edited"]
        assert all(event.ticket for event in life.events)
        assert [m.id async for page in client.browse("out") for m in page] == ["reply"]
    report = verify(data / "journal")
    assert report.whole, report.findings
    # At least three events per message: created, leased and deleted.
    assert report.events >= 3 * COUNT


async def _work(client: dejaq.Client) -> None:
    async with client.producer("mail", group="billing") as producer:
        await producer.send_batch([b"%d" % number for number in range(COUNT)], delay=0.05)
        await producer.send(b"later", id="later", delay=3_600)
        await producer.send(b"never", id="never", delay=3_600)
        again = await producer.send_batch([b"later"], ids=["never"], delay=9_999, results=True)
        assert [*again.codes] == [dejaq.Code.ID_TAKEN]
        await producer.move(["later"], delay=7_200)
        await producer.edit("later", body=b"edited")
        await producer.cancel(["never"])
    seen: set[bytes] = set()
    async with client.consumer("mail", name="worker-1", lease=30.0) as consumer:
        async for lease in consumer:
            if lease.body == b"7" and lease.attempts == 1:
                await lease.release(delay=0.05)
                continue
            seen.add(lease.body)
            if lease.body == b"8":
                async with client.transaction(group="billing") as transaction:
                    transaction.delete(lease)
                    transaction.send("out", b"done", id="reply", delay=60)
            else:
                await lease.delete()
            if len(seen) == COUNT:
                break
    assert seen == {b"%d" % number for number in range(COUNT)}
    assert await client.count("mail") == 1
    assert sum(count for _, count in await client.histogram("mail", start=0, end=2_000_000_000_000, step=10**9)) == 1


async def test_bodies_are_shared_and_large_bodies_are_sent_in_parts() -> None:
    """G12: bodies above 32 KiB are stored once and sent once; bodies above 1 MiB are sent in parts."""
    cluster = f"bodies_{secrets.token_hex(4)}"
    medium, large = os.urandom(40_000), os.urandom(2_500_000)
    async with (
        dejaq.Broker(storage=shared_server().dsn, cluster=cluster) as broker,
        dejaq.connect(broker) as client,
    ):
        await client.create_topic("shared", buckets=4, share_bodies=True, max_body_bytes=limits.LARGE_BODY_BYTES_MAX)
        async with client.producer("shared") as producer:
            for body in (medium, large, b"small"):
                results = await producer.send_batch([body] * 3)
                assert results.ok
        assert broker.central.metrics.value(UPLOADED, "shared") == len(medium) + len(large)
        async with client.consumer("shared", name="c", max_messages=9) as consumer:
            seen = []
            async for batch in consumer.batches():
                seen += batch.bodies
                await batch.delete()
        assert sorted(seen) == sorted([medium, large, b"small"] * 3)
        assert await broker.central.storage.bodies.reclaim(2**60) == 2
