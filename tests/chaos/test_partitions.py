"""R5: one of three brokers is cut off from clients, storage or etcd: completely, one way, or from some servers.

Every broker, etcd server and storage is a machine of its own: a network namespace in which packets are dropped.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

import dejaq
from dejaq.testing.history.workload import Workload
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.network import Network
from dejaq.testing.servers.postgres import PostgresServer
from dejaq.testing.waiting import eventually
from tests.chaos.loading import PACE_SECONDS, progressed, under_load
from tests.chaos.log_workload import LogWorkload
from tests.chaos.machines import etcd, needs_namespaces, network
from tests.chaos.sizes import FULL
from tests.pace import take_time

__all__ = ["etcd", "network"]
pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("partitions"), pytest.mark.timeout(900 if FULL else 400)]

SECONDS = (10, 30) if FULL else (3,)
MEMBER_TTL_SECONDS = 5.0
BACK_SECONDS = 60.0
# The messages per second of the two producers, and how long the load lasts after the cut.
MESSAGES_SECOND = 2 / PACE_SECONDS
LOAD_SECONDS = 4.0


@dataclass(frozen=True)
class Way:
    """The target of the cut, which packets are dropped, and whether the broker must report that it is cut off."""

    to: str
    inward: bool
    outward: bool
    cut_off: bool = False

    def __str__(self) -> str:
        which = {(True, True): "cut", (True, False): "deaf", (False, True): "dumb"}[self.inward, self.outward]
        return f"{which} to {self.to}"


WAYS = [
    Way("clients", inward=False, outward=True),
    Way("storage", inward=True, outward=False),
    Way("etcd", inward=True, outward=False, cut_off=True),
    Way("one etcd", inward=True, outward=True),
]
MORE = [
    Way("clients", inward=True, outward=False),
    Way("clients", inward=True, outward=True),
    Way("storage", inward=False, outward=True),
    Way("storage", inward=True, outward=True),
    Way("etcd", inward=False, outward=True, cut_off=True),
    Way("etcd", inward=True, outward=True, cut_off=True),
    Way("brokers", inward=True, outward=True),
    Way("brokers", inward=True, outward=False),
]


@pytest.fixture(scope="module")
def postgres(network: Network) -> Iterator[PostgresServer]:
    with PostgresServer(machine=network.machine("postgres")) as server:
        yield server


@pytest.fixture
async def brokers(network: Network, postgres: PostgresServer, etcd: EtcdCluster) -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(postgres.dsn, etcd.url, network=network) as cluster:
        yield cluster


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("way", [*WAYS, *MORE] if FULL else WAYS, ids=str)
async def test_r5_a_connection_of_a_broker_is_cut(
    way: Way,
    seconds: float,
    network: Network,
    brokers: BrokerCluster,
    postgres: PostgresServer,
    etcd: EtcdCluster,
    record_property: Callable[[str, object], None],
) -> None:
    """G3, G7: no message is lost, early or leased twice; the broker stops by its own clock if it must, and recovers."""
    needs_namespaces(network)
    machine = brokers.machines[0]
    hosts = {
        "clients": [network.host],
        "storage": [postgres.host],
        "etcd": [one.host for one in etcd.machines],
        "one etcd": [etcd.machines[0].host],
        "brokers": [one.host for one in brokers.machines[1:]],
    }[way.to]

    async def faults(workload: Workload) -> None:
        await progressed(workload, 0.1)
        began = time.monotonic()
        machine.cut(hosts, inward=way.inward, outward=way.outward)
        try:
            if way.cut_off:
                await eventually(
                    lambda: says_cut_off(brokers), within=15, what="the broker reports that it is cut off", poll=0.05
                )
                took = time.monotonic() - began
                record_property("figure", f"{way}: the broker stopped by its own clock after {took:.1f} s")
                assert took < MEMBER_TTL_SECONDS + 1.0
            await eventually(lambda: time.monotonic() > began + seconds, within=seconds + 1, poll=0.05)
            # The other brokers continue during the cut.
            deleted = workload.deleted
            await eventually(lambda: workload.deleted > deleted, within=30, what="deliveries continue", poll=0.01)
            if way.to == "one etcd":
                info = await brokers.info(0)
                assert info is not None
                assert not info.brokers[0].degradations, "two of three etcd servers are a quorum"
        finally:
            machine.mend()
        await brokers.whole(within=BACK_SECONDS)

    # The load lasts longer than the cut; its first part does not wait for the cut.
    await under_load(brokers, faults, messages=round(MESSAGES_SECOND * (seconds + LOAD_SECONDS)))


async def says_cut_off(brokers: BrokerCluster) -> bool:
    info = await brokers.info(0)
    return info is not None and any("cut off" in why for why in info.brokers[0].degradations)


@pytest.mark.parametrize("way", [*WAYS, *MORE] if FULL else WAYS[1:2], ids=str)
async def test_r5_a_broker_of_a_log_is_cut(
    way: Way, network: Network, brokers: BrokerCluster, postgres: PostgresServer, etcd: EtcdCluster
) -> None:
    """G1 for logs: clients at a broker that is cut off and at the others see one order, and a group misses nothing."""
    needs_namespaces(network)
    hosts = {
        "clients": [network.host],
        "storage": [postgres.host],
        "etcd": [one.host for one in etcd.machines],
        "one etcd": [etcd.machines[0].host],
        "brokers": [one.host for one in brokers.machines[1:]],
    }[way.to]
    addresses = [broker.address for broker in brokers.brokers]

    async def cut(number: int) -> None:
        brokers.machines[0].cut(hosts, inward=way.inward, outward=way.outward)
        try:
            await take_time(SECONDS[0])
        finally:
            brokers.machines[0].mend()
        await brokers.whole(within=BACK_SECONDS)

    async with AsyncExitStack() as stack:
        urls = ["dejaq://" + ",".join(addresses[n:] + addresses[:n]) for n in (0, 1)]
        one, two = [await stack.enter_async_context(dejaq.connect(url, deadline=90)) for url in urls]
        await LogWorkload(one, (two,)).run(1, cut)
