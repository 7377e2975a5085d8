"""Every synchronization passes every check, on real servers of etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dejaq.synchronization.embedded import EmbeddedSynchronization, client_of
from dejaq.synchronization.etcd.endpoints import Endpoints
from dejaq.synchronization.etcd.service import EtcdSynchronization
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.etcd import EtcdCluster
from dejaq.testing.gate import Gate
from dejaq.testing.process import HOST, free_port
from dejaq.testing.synchronization import CHECKS, Check, Member, Stage
from dejaq.timekeeper.clock import SystemClock

TTL = 2.0


class LocalStage:
    def __init__(self) -> None:
        self._hubs: dict[str, Hub] = {}

    def member(self, cluster: str) -> Member:
        place = LocalSynchronization(self._hubs.setdefault(cluster, Hub()))
        return Member(place, place.cut, place.mend)


class EtcdStage:
    """Each member reaches each server through the gates of its own."""

    def __init__(self, gates: list[list[Gate]]) -> None:
        self._gates = gates

    def member(self, cluster: str) -> Member:
        gates = self._gates.pop()

        def cut() -> None:
            for gate in gates:
                gate.close()

        def mend() -> None:
            for gate in gates:
                gate.open()

        endpoints = Endpoints(tuple(gate.address for gate in gates))
        return Member(EtcdSynchronization(endpoints, cluster=cluster, clock=SystemClock(), ttl=TTL), cut, mend)


@pytest.fixture(scope="module")
def etcd_addresses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, list[str]]]:
    one, three = (EtcdCluster(tmp_path_factory.mktemp("etcd"), size=size) for size in (1, 3))

    async def start() -> None:
        await asyncio.gather(one.start(), three.start())

    try:
        asyncio.run(start())
        yield {"etcd": one.addresses, "three_etcd": three.addresses}
    finally:
        one.kill()
        three.kill()


async def test_the_embedded_etcd_passes_every_check(tmp_path: Path):
    """One after the other on one child, which is what a broker has."""
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
async def test_local(check: Check):
    await check.run(LocalStage())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("servers", ["etcd", "three_etcd"])
async def test_etcd(servers: str, check: Check, etcd_addresses: dict[str, list[str]]):
    async with AsyncExitStack() as stack:
        gates = [
            [await stack.enter_async_context(Gate(address)) for address in etcd_addresses[servers]] for _ in range(4)
        ]
        stage: Stage = EtcdStage(gates)
        await check.run(stage)


def test_every_check_says_what_it_is_about():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [check.name for check in CHECKS if not check.about.rstrip().endswith(".")] == []
