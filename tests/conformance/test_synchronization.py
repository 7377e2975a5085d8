"""Every synchronization passes every check of its conformance suite, on real etcd servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dejaq.synchronization.embedded import EmbeddedSynchronization, client_of
from dejaq.synchronization.etcd.endpoints import Endpoints
from dejaq.synchronization.etcd.service import EtcdSynchronization
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.gate import Gate
from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.synchronization import CHECKS, Stage, StageMember, SynchronizationCheck
from dejaq.timekeeper.clock import SystemClock

TTL = 2.0


class LocalStage:
    def __init__(self) -> None:
        self._hubs: dict[str, Hub] = {}

    def member(self, cluster: str) -> StageMember:
        place = LocalSynchronization(self._hubs.setdefault(cluster, Hub()))
        return StageMember(place, place.cut, place.mend)


class EtcdStage:
    """Each member connects to each server through connections of its own that the test can cut."""

    def __init__(self, gates: list[list[Gate]]) -> None:
        self._gates = gates

    def member(self, cluster: str) -> StageMember:
        gates = self._gates.pop()

        def cut() -> None:
            for gate in gates:
                gate.close()

        def mend() -> None:
            for gate in gates:
                gate.open()

        endpoints = Endpoints(tuple(gate.address for gate in gates))
        return StageMember(EtcdSynchronization(endpoints, cluster=cluster, clock=SystemClock(), ttl=TTL), cut, mend)


@pytest.fixture(scope="module")
def etcd_addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    one, three = (EtcdCluster(tmp_path_factory.mktemp("etcd"), size=size) for size in (1, 3))

    async def start() -> None:
        await asyncio.gather(one.start(), three.start())

    try:
        asyncio.run(start())
        yield {"etcd": one.addresses, "three_etcd": three.addresses}
    finally:
        one.kill()
        three.kill()


async def test_the_embedded_etcd_passes_every_check(tmp_path: Path) -> None:
    """The checks run one after the other on one etcd process, which is what a broker has."""
    own = f"{HOST}:{free_port()}"
    embedded = EmbeddedSynchronization(data=tmp_path / "etcd", peers=[own], own=own, cluster="x", clock=SystemClock())
    await embedded.open()
    try:
        for check in CHECKS:
            async with AsyncExitStack() as stack:
                gates = [[await stack.enter_async_context(Gate(client_of(own)))] for _ in range(4)]
                await check.run(EtcdStage(gates))
    finally:
        await embedded.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_local(check: SynchronizationCheck) -> None:
    await check.run(LocalStage())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("servers", ["etcd", "three_etcd"])
async def test_etcd(servers: str, check: SynchronizationCheck, etcd_addresses: dict[str, list[str]]) -> None:
    async with AsyncExitStack() as stack:
        gates = [
            [await stack.enter_async_context(Gate(address)) for address in etcd_addresses[servers]] for _ in range(4)
        ]
        stage: Stage = EtcdStage(gates)
        await check.run(stage)


def test_every_check_has_a_description() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [check.name for check in CHECKS if not check.about.rstrip().endswith(".")] == []
