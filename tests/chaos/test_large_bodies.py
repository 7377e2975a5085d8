"""Large bodies and kill -9: each body is whole or absent, no part is left over, and memory use stays small."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from pathlib import Path

import asyncpg
import pytest

import dejaq
from dejaq import limits
from dejaq.domain.bodies.large import PART_BYTES
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually

MAX = limits.LARGE_BODY_BYTES_MAX
BODY = os.urandom(5 * PART_BYTES // 2)
# An upload of this body writes six times: its record, three parts, its end, and the message that refers to it.
POINTS = ["storage.after_part:2", "storage.after_write:5", "storage.before_sync:6"]


async def left(path: Path) -> tuple[int, dict[bytes, int]]:
    """The number of large bodies that no message refers to, and by table the number of records without a body."""
    storage = RocksStorage(path, journal=False)
    await storage.open(0)
    try:
        idle = await storage.bodies.reclaim(2**60)
        tables = (keys.LARGE, keys.LARGE_PART, keys.LARGE_USES)
        return idle, {one: len(list(storage._database.scan_keys(one, keys.after(one)))) for one in tables}
    finally:
        await storage.close()


@pytest.mark.chaos
@pytest.mark.parametrize("point", POINTS)
async def test_kill_minus_nine_during_an_upload(point: str, tmp_path: Path) -> None:
    """G1, R4: the client repeats the interrupted upload; one whole body exists, and is removed with its message."""
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        await client.create_topic("mail", buckets=4, max_body_bytes=MAX)
        await broker.restart(env={"DEJAQ_CRASH_AT": point})
        async with client.producer("mail") as producer:
            sending = asyncio.ensure_future(producer.send(BODY, id="a"))
            await eventually(lambda: not broker.running, within=30, what=f"the broker is killed at {point}")
            await broker.restart()
            assert await sending == "a"
            (found,) = await client.get("mail", ["a"])
            assert found is not None
            assert found.body == BODY
            await producer.send(BODY, id="b", delay=60)
        async with client.consumer("mail", name="c") as consumer:
            lease = await anext(consumer)
            assert (lease.id, lease.body) == ("a", BODY)
            await lease.delete()
    # After a kill behind the end of the upload, the client may have uploaded a second body, to which no message refers.
    idle, there = await left(tmp_path / "data")
    assert idle in (0, 1)
    assert there == {keys.LARGE: 1, keys.LARGE_PART: 3, keys.LARGE_USES: 1}


@pytest.mark.chaos
async def test_kill_minus_nine_during_large_bodies_on_postgresql() -> None:
    """G1, G12, R4: after kills during transfers, acknowledged bodies are whole; later no part is left over."""
    dsn, cluster = shared_server().dsn, f"large_{secrets.token_hex(4)}"
    bodies = {f"m{number}": os.urandom(5 * PART_BYTES // 2) for number in range(4)}
    async with (
        BrokerProcess(storage=dsn, options=("--cluster", cluster)) as broker,
        dejaq.connect(broker.url, deadline=60) as client,
    ):
        await client.create_topic("mail", buckets=4, max_body_bytes=MAX, share_bodies=True)
        other = await asyncpg.connect(dsn, server_settings={"search_path": cluster})

        async def parts() -> int:
            return int(await other.fetchval("SELECT count(*) FROM large_part"))

        async def reached(count: int) -> bool:
            return await parts() >= count

        async with client.producer("mail") as producer:
            sending = asyncio.gather(*(producer.send(body, id=one) for one, body in bodies.items()))
            # An interrupted upload is kept for an hour, so the second kill is during the uploads that were started
            # again.
            for count in (3, 9):
                await eventually(lambda: reached(count), within=30, what=f"{count} parts", poll=0.001)
                await broker.restart()
            assert sorted(await sending) == sorted(bodies)
        left = dict(bodies)
        async with client.consumer("mail", name="c", lease=60.0, fetch_large=False, max_messages=4) as consumer:
            async for lease in consumer:
                read = b""
                async for part in lease.parts():
                    if not read and len(left) == len(bodies):
                        await broker.restart()
                    read += part
                assert read == left.pop(lease.id)
                await lease.delete()
        assert left == {}
    storage = PostgresStorage(dsn, cluster=cluster)
    await storage.open(0)
    assert await parts() >= 3 * len(bodies)
    assert await storage.bodies.reclaim(2**60) >= len(bodies)
    await storage.close()
    assert await parts() == 0
    assert await other.fetchval("SELECT count(*) FROM large_body") == 0
    await other.close()


def peak_bytes(pid: int) -> int:
    """The largest amount of memory that a process has used so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.mark.chaos
async def test_the_broker_uses_little_memory(tmp_path: Path) -> None:
    """S7: with eight uploads and downloads of 64 MiB at once, the broker's memory grows by less than six bodies.

    The growth does not depend on the number of bodies: RocksDB buffers up to 192 MiB of writes and caches 64 MiB of
    reads, and each transfer holds a few parts in memory.
    """
    count = 8
    body = os.urandom(MAX)
    digest = hashlib.sha256(body).digest()
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        await client.create_topic("mail", buckets=4, max_body_bytes=MAX)
        before = peak_bytes(broker.pid)
        async with client.producer("mail") as producer:
            await asyncio.gather(*(producer.send(body, id=f"m{n}") for n in range(count)))
        uploaded = peak_bytes(broker.pid)

        async def read(lease: dejaq.Lease) -> None:
            seen = hashlib.sha256()
            async for part in lease.parts():
                seen.update(part)
            assert seen.digest() == digest
            await lease.delete()

        async with client.consumer("mail", name="c", fetch_large=False, max_messages=count) as consumer:
            await asyncio.gather(*[read(lease) async for lease in consumer])
        after = peak_bytes(broker.pid)
        assert after - before < 6 * MAX, f"grown by {(uploaded - before) >> 20} and {(after - before) >> 20} MiB"
