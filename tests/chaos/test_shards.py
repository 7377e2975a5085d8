"""A shard is added to a cluster at work: lost 0, doubled 0, early 0, whenever who moves the buckets is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.brokers import BrokerCluster
from dejaq.testing.etcd import EtcdCluster
from dejaq.testing.postgres import PostgresServer
from dejaq.testing.workload import Workload
from tests.chaos.loading import progressed, under_load

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("cluster")]

POINTS = ("mover.told:1", "mover.copied:1", "mover.removed:1", "")


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
    """The end and the words of a `dejaq storage` command."""
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


async def test_a_shard_is_added_under_load(brokers: BrokerCluster, etcd: EtcdCluster, postgres: PostgresServer):
    """G1 to G5: killed at every point in turn and begun again, the move loses, doubles and hastens nothing."""
    second = postgres.new_database("second")

    async def faults(workload: Workload) -> None:
        for number, point in enumerate(POINTS):
            await progressed(workload, (number + 1) / (len(POINTS) + 3))
            code, told = await storage(brokers, etcd, "add-shard", "second", second, "--grace", "0", crash_at=point)
            assert code == (-signal.SIGKILL if point else 0), told

    await under_load(brokers, faults)
    code, told = await storage(brokers, etcd, "shards")
    assert code == 0, told
    assert '"second"' in told
    assert "moving" not in told


async def test_only_what_must_move_moves(
    brokers: BrokerCluster, etcd: EtcdCluster, postgres: PostgresServer, tmp_path: Path
):
    """Messages, leases and producers' repeats are as they were, wherever their bucket is now."""
    third = postgres.new_database("third")
    async with dejaq.connect(brokers.url) as client:
        await client.create_topic("mail", buckets=32)
        producer = client.producer("mail", group="billing")
        for number in range(200):
            await producer.send(b"%d" % number, id=f"m-{number}", delay=0.0 if number % 2 else 3_600.0)
        async with client.consumer("mail", name="w", lease=60.0, prefetch=100) as consumer:
            held = [await anext(consumer) for _ in range(40)]
            code, told = await storage(brokers, etcd, "add-shard", "third", third, "--grace", "0")
            assert code == 0, told
            for lease in held:
                await lease.delete()
        assert await client.count("mail") == 160
        moved = await producer.move("m-0", delay=7_200.0)
        assert moved is None or moved
        found = {message.id async for page in client.browse("mail") for message in page}
        assert len(found) == 160
    code, told = await storage(brokers, etcd, "add-shard", "third", third)
    assert code != 0
    assert "is one of the storage already" in told
