"""R13, R5: three brokers, three etcd servers and a Patroni cluster of three servers, each on its own machine.

A machine is a network namespace. Where the system permits none, the tests that cut connections are skipped and print
the reason; the tests that kill processes run on loopback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

import dejaq
from dejaq.storage.postgres.connection.connecting import connect
from dejaq.testing.history.workload import Workload
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.network import Network
from dejaq.testing.servers.patroni import PatroniCluster, PatroniServer
from dejaq.testing.waiting import eventually
from tests.chaos.loading import progressed, under_load
from tests.chaos.log_workload import LogWorkload
from tests.chaos.machines import etcd, needs_namespaces, network
from tests.chaos.sizes import FULL, size

__all__ = ["etcd", "network"]
pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("failover"), pytest.mark.timeout(1_800 if FULL else 400)]

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "patroni.yml"
ROUNDS = size("FAILOVERS", ci=1, full=5)
# Seconds after the new primary accepts writes: brokers look for it at least every second.
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
    """Whether some server commits a change, with the quorum that the change needs."""
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
    """Wait until deliveries continue, and return the seconds since a primary accepted writes again."""
    await eventually(lambda: takes_writes(postgres.dsn), within=90, what="a new primary takes writes", poll=0.02)
    writable, deleted = time.monotonic(), workload.deleted
    await eventually(lambda: workload.deleted > deleted, within=60, what="deliveries continue", poll=0.01)
    return time.monotonic() - writable


def record_waits(record_property: Callable[[str, object], None], waits: list[float]) -> None:
    listed = ", ".join(f"{wait:.1f}" for wait in waits)
    record_property(
        "figure", f"{len(waits)} failovers; deliveries went on {listed} s after the new primary took writes"
    )
    assert max(waits) < RESUMED_SECONDS, waits


async def primary_of(postgres: PatroniCluster, *, other_than: PatroniServer | None = None) -> PatroniServer:
    return await asyncio.to_thread(postgres.primary, other_than=other_than)


async def test_r13_the_primary_is_killed_with_its_patroni(
    brokers: BrokerCluster, postgres: PatroniCluster, record_property: Callable[[str, object], None]
) -> None:
    """G1, G3, G6: a standby takes over; no acknowledged message is lost, and deliveries continue."""
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
    record_waits(record_property, waits)


# The harder case is the one of brokers that still reach the old primary; the other case takes as long again.
@pytest.mark.parametrize("seen", [True, False] if FULL else [True], ids=lambda seen: "seen" if seen else "unseen")
async def test_r5_r13_the_primary_is_isolated(
    seen: bool,
    brokers: BrokerCluster,
    postgres: PatroniCluster,
    etcd: EtcdCluster,
    network: Network,
    record_property: Callable[[str, object], None],
) -> None:
    """G1, G3, G6: writes to the old primary have no quorum and are not acknowledged; later it rejoins the cluster."""
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
    record_waits(record_property, waits)


@pytest.mark.skipif(not FULL, reason="a failover takes half a minute; DEJAQ_CHAOS=full runs it for logs too")
async def test_r13_a_log_survives_failovers(brokers: BrokerCluster, postgres: PatroniCluster) -> None:
    """G1 for logs: after each failover the offsets are dense, and nothing that was acknowledged is missing."""
    addresses = [broker.address for broker in brokers.brokers]

    async def kill(number: int) -> None:
        dead = await primary_of(postgres)
        await asyncio.to_thread(dead.kill)
        await primary_of(postgres, other_than=dead)
        await eventually(lambda: takes_writes(postgres.dsn), within=90, what="a new primary takes writes", poll=0.02)
        dead.start()
        await asyncio.to_thread(postgres.whole)

    async with AsyncExitStack() as stack:
        urls = ["dejaq://" + ",".join(addresses[n:] + addresses[:n]) for n in (0, 1)]
        one, two = [await stack.enter_async_context(dejaq.connect(url, deadline=120)) for url in urls]
        await LogWorkload(one, (two,)).run(2, kill)
