"""Fixtures: a network of machines and three etcd servers on it, for tests that cut connections between machines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.network import Network


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network.open() as machines:
        yield machines


@pytest.fixture(scope="module")
def etcd(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), size=3, network=network)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.kill()


def needs_namespaces(network: Network) -> None:
    """Skip the test, with the reason, where connections cannot be cut."""
    if network.reason is not None:
        pytest.skip(f"no network namespaces: {network.reason}")
