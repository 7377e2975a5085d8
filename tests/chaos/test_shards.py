"""A shard is added to a working cluster: no message is lost, duplicated or early, whenever the mover is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

import dejaq
from dejaq import limits
from dejaq.testing.history.workload import Workload
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.postgres import PostgresServer
from tests.chaos.loading import progressed, under_load

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("cluster")]

POINTS = ("mover.announced:1", "mover.copied:1", "mover.removed:1", "")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), size=1)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
async def brokers(postgres: PostgresServer, etcd: EtcdCluster) -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(postgres.dsn, etcd.url, size=2) as cluster:
        yield cluster


async def storage(brokers: BrokerCluster, etcd: EtcdCluster, *command: str, crash_at: str = "") -> tuple[int, str]:
    """The exit code and the output of a `dejaq storage` command."""
    where = ("--synchronization", etcd.url, "--cluster", brokers.name, "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "dejaq", "storage", *command, *where),
        env=os.environ | {"DEJAQ_CRASH_AT": crash_at},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_a_shard_is_added_under_load(brokers: BrokerCluster, etcd: EtcdCluster, postgres: PostgresServer) -> None:
    """G1 to G5: killed at every point in turn and started again, the move loses, duplicates and hastens no message."""
    second = postgres.new_database("second")

    async def faults(workload: Workload) -> None:
        for number, point in enumerate(POINTS):
            # A broker has completed the transfers of the killed mover; otherwise the load could not progress.
            await progressed(workload, 0.1 * (number + 1))
            options = ("--grace", "0", "--at-once", "1")
            code, output = await storage(brokers, etcd, "add-shard", "second", second, *options, crash_at=point)
            assert code == (-signal.SIGKILL if point else 0), output

    workload = await under_load(brokers, faults)
    code, output = await storage(brokers, etcd, "shards")
    assert code == 0, output
    first, added = (json.loads(line) for line in output.splitlines())
    assert (first["name"], added["name"]) == ("shard-1", "second")
    assert first["buckets"] + added["buckets"] == workload.load.buckets
    assert added["buckets"] > 0
    assert first["state"] == added["state"] == ""


async def test_leased_messages_and_large_bodies_move_too(
    brokers: BrokerCluster, etcd: EtcdCluster, postgres: PostgresServer
) -> None:
    """G3, G12: consumers settle messages after the move of their buckets, and large bodies move completely."""
    third = postgres.new_database("third")
    large = os.urandom(3 * limits.PART_BYTES_MAX // 2)
    async with dejaq.connect(brokers.url) as client:
        await client.create_topic("large", buckets=8, share_bodies=True, max_body_bytes=limits.LARGE_BODY_BYTES_MAX)
        async with client.producer("large") as producer:
            for number in range(16):
                await producer.send(large + bytes([number % 4]), id=f"large-{number}")
        await client.create_topic("mail", buckets=32)
        async with client.producer("mail", group="billing") as producer:
            for number in range(200):
                # Every second message is due at once.
                await producer.send(b"%d" % number, id=f"m-{number}", delay=0.0 if number % 2 else 3_600.0)
            async with client.consumer("mail", name="w", lease=60.0, max_in_flight=40) as consumer:
                held = [await anext(consumer) for _ in range(40)]
                for point in ("bodies.part_adopted:3", ""):
                    code, output = await storage(
                        brokers, etcd, "add-shard", "third", third, "--grace", "0", crash_at=point
                    )
                    assert code == (-signal.SIGKILL if point else 0), output
                for lease in held:
                    await lease.delete()
            assert await client.count("mail") == 160
            await producer.move("m-0", delay=7_200.0)
            await producer.cancel("m-2")
        found = {message.id async for page in client.browse("mail") for message in page}
        assert len(found) == 159
        async with client.consumer("large", name="w", max_messages=16) as consumer:
            read = {lease.id: lease.body async for lease in consumer}
        assert read == {f"large-{number}": large + bytes([number % 4]) for number in range(16)}
    code, output = await storage(brokers, etcd, "add-shard", "third", third)
    assert code != 0
    assert "is one of the storage already" in output
