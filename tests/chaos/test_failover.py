"""R13, R5: three brokers, three etcd and a Patroni cluster of three PostgreSQL, each on a machine of its own.

A machine is a network namespace. Where the system permits none, the reason is printed and the tests that cut ways are
skipped with it; the kills run on loopback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from dejaq.storage.postgres.connecting import connect
from dejaq.testing.brokers import BrokerCluster
from dejaq.testing.etcd import EtcdCluster
from dejaq.testing.network import Network
from dejaq.testing.patroni import PatroniCluster, PatroniServer
from dejaq.testing.waiting import eventually
from dejaq.testing.workload import Workload
from tests.chaos.loading import progressed, under_load
from tests.chaos.machines import etcd, needs_namespaces, network
from tests.chaos.sizes import FULL, size

__all__ = ["etcd", "network"]
pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("failover"), pytest.mark.timeout(1_800 if FULL else 180)]

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "patroni.yml"
ROUNDS = size("FAILOVERS", ci=1, full=5)
# After the new primary takes writes: brokers look for it at least once a second.
RESUMED_SECONDS = 4.0


@pytest.fixture(scope="module")
def postgres(network: Network, etcd: EtcdCluster) -> Iterator[PatroniCluster]:
    with PatroniCluster(network, etcd=etcd.addresses, configuration=CONFIGURATION) as cluster:
        yield cluster


@pytest.fixture
async def brokers(network: Network, postgres: PatroniCluster, etcd: EtcdCluster) -> AsyncIterator[BrokerCluster]:
    await asyncio.to_thread(postgres.whole)
    async with BrokerCluster(postgres.dsn, etcd.url, network=network) as cluster:
        yield cluster


async def takes_writes(dsn: str) -> bool:
    """Whether some server commits a change, with the quorum that it needs."""
    try:
        async with asyncio.timeout(1.0):
            connection = await connect(dsn, seconds=1.0)
            try:
                await connection.execute("CREATE TABLE IF NOT EXISTS probe (n int); INSERT INTO probe VALUES (1)")
            finally:
                connection.terminate()
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError, asyncpg.InterfaceError):
        return False
    return True


async def resumed(workload: Workload, postgres: PatroniCluster) -> float:
    """Wait until deliveries go on; the seconds from when writes were taken again."""
    await eventually(lambda: takes_writes(postgres.dsn), within=90, what="a new primary takes writes", poll=0.02)
    writable, deleted = time.monotonic(), workload.deleted
    await eventually(lambda: workload.deleted > deleted, within=60, what="deliveries go on", poll=0.01)
    return time.monotonic() - writable


def tell(record_property: Callable[[str, object], None], waits: list[float]) -> None:
    told = ", ".join(f"{wait:.1f}" for wait in waits)
    record_property("figure", f"{len(waits)} failovers; deliveries went on {told} s after the new primary took writes")
    assert max(waits) < RESUMED_SECONDS, waits


async def primary_of(postgres: PatroniCluster, *, other_than: PatroniServer | None = None) -> PatroniServer:
    return await asyncio.to_thread(postgres.primary, other_than=other_than)


async def test_r13_the_primary_is_killed_with_its_patroni(
    brokers: BrokerCluster, postgres: PatroniCluster, record_property: Callable[[str, object], None]
):
    """G1, G3, G6: a standby takes over; nothing acknowledged is lost, and deliveries go on when it takes writes."""
    waits: list[float] = []

    async def faults(workload: Workload) -> None:
        for number in range(ROUNDS):
            await progressed(workload, (number + 1) / (ROUNDS + 2))
            dead = await primary_of(postgres)
            await asyncio.to_thread(dead.kill)
            await primary_of(postgres, other_than=dead)
            waits.append(await resumed(workload, postgres))
            dead.start()
            await asyncio.to_thread(postgres.whole)
        await brokers.whole()

    await under_load(brokers, faults)
    tell(record_property, waits)


# Brokers that still see the old primary are the harder case; the other takes as long again.
@pytest.mark.parametrize("seen", [True, False] if FULL else [True], ids=lambda seen: "seen" if seen else "unseen")
async def test_r5_r13_the_primary_is_isolated(
    seen: bool,
    brokers: BrokerCluster,
    postgres: PatroniCluster,
    etcd: EtcdCluster,
    network: Network,
    record_property: Callable[[str, object], None],
):
    """G1, G3, G6: what the old primary takes meanwhile has no quorum and is not acknowledged; it comes back."""
    needs_namespaces(network)
    waits: list[float] = []

    async def faults(workload: Workload) -> None:
        for number in range(ROUNDS):
            await progressed(workload, (number + 1) / (ROUNDS + 2))
            old = await primary_of(postgres)
            like = [*(machine.host for machine in etcd.machines), *(one.machine.host for one in postgres.servers)]
            old.machine.cut([host for host in like if host != old.machine.host] if seen else [])
            await primary_of(postgres, other_than=old)
            waits.append(await resumed(workload, postgres))
            old.machine.mend()
            await asyncio.to_thread(postgres.whole)
        await brokers.whole()

    await under_load(brokers, faults)
    tell(record_property, waits)
