"""A broker that cannot join a cluster prints one clear line and exits with 1; running brokers keep all their messages.

A full disk, a standby and a schema of an older release are tested in tests/integration/storage/test_postgres_faults.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

import dejaq as sdk
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.servers.process import free_port
from tests.acceptance.process import dejaq
from tests.acceptance.test_serve_errors import check


class Site:
    """A cluster of one broker that has a message, and the command that starts another."""

    def __init__(self, brokers: BrokerCluster, etcd: EtcdCluster) -> None:
        self.brokers = brokers
        self.etcd = etcd

    async def refused(self, code: str, *words: str, storage: str | None = None, **options: str) -> None:
        """Another broker with these options must not start; the first broker still has its message."""
        options_of_broker = {
            "storage": storage or shared_server().dsn,
            "synchronization": self.etcd.url,
            "cluster": self.brokers.name,
            "broker": "another",
            **options,
        }
        arguments = [part for name, value in options_of_broker.items() for part in (f"--{name}", value)]
        done = await asyncio.to_thread(dejaq, "serve", "--listen", "127.0.0.1:0", *arguments)
        # Earlier lines may say that no journal is kept without a directory.
        error_lines = [line for line in done.err.splitlines() if " INFO " not in line]
        check(replace(done, err="\n".join(error_lines)), code, *words)
        assert "secret" not in done.err
        async with sdk.connect(self.brokers.url) as client:
            (message,) = await client.get("mail", ["kept"])
            assert message is not None


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with EtcdCluster(tmp_path, size=1) as etcd, BrokerCluster(shared_server().dsn, etcd.url, size=1) as brokers:
        async with sdk.connect(brokers.url) as client:
            await client.create_topic("mail", buckets=4)
            async with client.producer("mail") as producer:
                await producer.send(b"x", id="kept", delay=3_600)
        yield Site(brokers, etcd)


async def test_each_wrong_option_of_a_broker_is_one_clear_line(site: Site) -> None:
    server = shared_server()
    nowhere = f"postgres://u:secret@127.0.0.1:{free_port()}/x"
    await site.refused("STORE_FAILED", "cannot be reached", storage=nowhere)
    await site.refused("STORE_FAILED", "not there; create it", storage=server.dsn_of("postgres", database="nowhere"))
    await site.refused("CLUSTER_REFUSED", "named 'broker-0' already serves", broker="broker-0")
    await site.refused("SYNCHRONIZATION_FAILED", synchronization=f"etcd://127.0.0.1:{free_port()}")


async def test_a_cluster_of_the_same_name_elsewhere_and_missing_rights_are_one_clear_line(site: Site) -> None:
    server, other = shared_server(), f"other_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(server.dsn)
    try:
        await connection.execute(f"CREATE DATABASE {other}")
        await connection.execute(f"CREATE ROLE {other} LOGIN")
        elsewhere = server.dsn_of("postgres", database=other)
        await site.refused("CLUSTER_REFUSED", "another storage", storage=elsewhere)
        await site.refused("STORE_FAILED", "lacks a right", storage=server.dsn_of(other))
        schema = site.brokers.name
        await connection.execute(f'INSERT INTO "{schema}".migration (version) VALUES (99)')
        await site.refused("STORE_NEWER", "99", "upgrade DejaQ")
    finally:
        await connection.close()


async def test_an_etcd_without_its_quorum_is_one_clear_line(site: Site, tmp_path: Path) -> None:
    async with EtcdCluster(tmp_path / "three", size=3) as etcd:
        for server in etcd.servers[:2]:
            server.kill()
        await site.refused("SYNCHRONIZATION_FAILED", synchronization=etcd.url, cluster=f"q_{secrets.token_hex(4)}")
