"""Brokers and servers that are killed or cut off while logs are used: one order, dense offsets, nothing is lost.

The runs judge G1 for logs: what was acknowledged is read at its offset by every reader, nothing that was rolled back is
read, and groups miss nothing and repeat only what was not committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.postgres import PostgresServer
from dejaq.testing.servers.process import BrokerProcess
from tests.chaos.log_workload import LogWorkload
from tests.chaos.sizes import size

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("logs")]

KILLS = size("LOG_KILLS", ci=3, full=40)
BATCHES = 40 * KILLS


async def test_r1_a_log_survives_kills_with_dense_offsets_and_one_order(tmp_path: Path) -> None:
    """A broker on the embedded store is killed."""
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:

        async def kill(number: int) -> None:
            await broker.restart()

        await LogWorkload(client, batches=BATCHES).run(KILLS, kill)


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


async def test_r1_r10_a_log_of_two_brokers_survives_kills_of_brokers_and_of_the_server(
    postgres: PostgresServer, etcd: EtcdCluster
) -> None:
    """Each broker of a cluster is killed, and the PostgreSQL server, while clients at both use one log."""
    async with BrokerCluster(postgres.dsn, etcd.url, size=2) as cluster, AsyncExitStack() as stack:
        first, second = cluster.brokers
        urls = [f"{first.url},{second.address}", f"{second.url},{first.address}"]
        one, two = [await stack.enter_async_context(dejaq.connect(url, deadline=90)) for url in urls]

        async def kill(number: int) -> None:
            if number % 3 == 2:
                await asyncio.to_thread(postgres.kill)
                await asyncio.to_thread(postgres.start)
            else:
                await cluster.brokers[number % 3].restart()

        await LogWorkload(one, (two,), batches=BATCHES).run(KILLS, kill)
