"""Every client works with TLS, users and rights: workers, forwarders, the connector, the cluster."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pytest

import dejaq
from dejaq.errors import DejaqError
from dejaq.forward import forwarder
from dejaq.security.keys import digest_of, new_secret
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.servers.postgres import FreshStorage, as_user, shared_server
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually, patient
from pyspark_dejaq.options import Options
from pyspark_dejaq.reading import PendingReader
from pyspark_dejaq.writing import write_rows
from tests.integration.security.certificates import Certificates

ROOT_ID, ROOT = new_secret(secrets.token_bytes)
BOB_ID, BOB = new_secret(secrets.token_bytes)


@pytest.fixture
def settings(tmp_path: Path, certificates: Certificates) -> dict[str, Any]:
    """TLS on every endpoint, two users with keys, and rights."""
    auth = tmp_path / "auth.toml"
    keys = [("root", ROOT_ID, ROOT), ("bob", BOB_ID, BOB)]
    tables = [f'[[keys]]\nid = "{one}"\ndigest = "{digest_of(text)}"\nuser = "{user}"\n' for user, one, text in keys]
    auth.write_text("".join(tables))
    return {
        "listen": "127.0.0.1:0",
        "tls_cert": certificates.server.cert,
        "tls_key": certificates.server.key,
        "auth": str(auth),
        "admins": "user:root",
        "drain_ms": 0,
    }


def url_of(broker: dejaq.Broker) -> str:
    assert broker.central.server is not None
    return f"dejaqs://{broker.central.server.address}"


@pytest.fixture
async def url(
    settings: dict[str, Any], certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """A protected broker; what connects gets its credentials from the environment, as in a deployment."""
    monkeypatch.setenv("DEJAQ_CA", str(certificates.ca))
    monkeypatch.setenv("DEJAQ_API_KEY", BOB)
    async with dejaq.Broker(**settings) as broker:
        async with dejaq.connect(url_of(broker), api_key=ROOT) as root:
            for name in ("from", "to"):
                await root.create_topic(name, buckets=1)
        yield url_of(broker)


async def permit(url: str, *operations: str) -> None:
    """Let bob do these things with both topics."""
    async with dejaq.connect(url, api_key=ROOT) as root:
        for name in ("from", "to"):
            await root.rights().allow("user:bob", operations, name)


async def test_a_worker_needs_the_right_to_consume(url: str) -> None:
    async with dejaq.connect(url) as client:
        done = asyncio.Event()

        @client.worker("from")
        async def handle(lease: dejaq.Lease) -> None:
            done.set()

        with pytest.raises(dejaq.PermissionDenied):
            await handle.run()
        await permit(url, "consume", "produce")
        async with client.producer("from") as producer:
            await producer.send(b"x")
        running = asyncio.create_task(handle.run())
        async with asyncio.timeout(patient(10)):
            await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_forwarder_moves_with_the_rights_of_its_user(url: str) -> None:
    async with dejaq.connect(url) as client:
        with pytest.raises(dejaq.PermissionDenied):
            await forwarder(client, "from", "to").run(max_messages=1)
        await permit(url, "consume", "produce")
        async with client.producer("from") as producer:
            await producer.send_batch([b"x"] * 10)
        async with asyncio.timeout(patient(10)):
            await forwarder(client, "from", "to").run(max_messages=10)
    async with dejaq.connect(url, api_key=ROOT) as root:
        assert (await root.count("from"), await root.count("to")) == (0, 10)


async def test_the_connector_of_spark_reads_and_writes_with_the_rights_of_its_user(url: str) -> None:
    """The tasks of Spark run these functions; executors get DEJAQ_CA and DEJAQ_API_KEY in their environment."""
    rows = pa.record_batch(
        {"id": ["a", "b"], "ts": pa.array([int(time.time() * 1_000) + 3_600_000] * 2), "body": pa.array([b"x", b"y"])}
    )
    writing = Options.parse({"dejaq.url": url, "topic": "to", "group": "spark"})

    def read() -> list[str]:
        found = PendingReader(Options.parse({"dejaq.url": url, "subscribe": "to"}))
        return sorted(
            row["id"] for part in found.partitions() for batch in found.read(part) for row in batch.to_pylist()
        )

    for work in (lambda: write_rows(writing, "job", iter([rows])), read):
        with pytest.raises(Exception, match="right"):
            await asyncio.to_thread(work)
    await permit(url, "produce", "read")
    await asyncio.to_thread(write_rows, writing, "job", iter([rows]))
    assert await asyncio.to_thread(read) == ["a", "b"]


async def test_the_metrics_of_a_protected_broker_need_a_key(url: str, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    address = f"https://{url.removeprefix('dejaqs://')}/metrics"

    def get(headers: dict[str, str]) -> str:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), context=context) as answer:
            return str(answer.read().decode())

    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(get, {})
    assert "dejaq_tls_certificate_expiry_seconds" in await asyncio.to_thread(get, {"Authorization": f"Bearer {BOB}"})


async def test_a_cluster_delivers_at_the_other_broker_with_tls_keys_and_rights(
    settings: dict[str, Any], certificates: Certificates
) -> None:
    keys = {**settings, "tls_peer_ca": certificates.ca}
    hub, storage = Hub(), SharedMemoryStorage()
    one = dejaq.Broker(broker="one", synchronization=LocalSynchronization(hub), storage=storage, **keys)
    two = dejaq.Broker(broker="two", synchronization=LocalSynchronization(hub), storage=storage, **keys)
    async with one, two:
        await eventually(lambda: list(one.central.cluster.connections) == ["two"], within=10)
        terms: dict[str, Any] = {"ca": certificates.ca, "follow": False}
        async with dejaq.connect(url_of(one), api_key=ROOT, **terms) as root:
            await root.create_topic("mail")
            await root.rights().allow("user:bob", ["consume"], "mail")
            async with (
                dejaq.connect(url_of(two), api_key=BOB, **terms) as bob,
                bob.consumer("mail") as consumer,
                root.producer("mail") as producer,
            ):
                await producer.send(b"x")
                (lease,) = await consumer.take(1, timeout=patient(10))
                await lease.delete()
                with pytest.raises(dejaq.PermissionDenied):
                    await bob.delete_topic("mail")


async def test_a_store_in_postgresql_is_reached_over_tls_and_only_with_the_right_authority(
    certificates: Certificates,
) -> None:
    server = shared_server()
    pair = certificates.make_server(names=("127.0.0.1", "localhost"), name="postgres")
    for source, name in ((pair.cert, "server.crt"), (pair.key, "server.key")):
        target = server.path / name
        shutil.copy(source, target)
        target.chmod(0o600)
        if as_user():
            shutil.chown(target, "postgres", "postgres")
    control = await asyncpg.connect(server.dsn)
    await control.execute("ALTER SYSTEM SET ssl = on")
    await control.execute("SELECT pg_reload_conf()")
    mark = "&" if "?" in server.dsn else "?"

    def dsn(ca: Path) -> str:
        return f"{server.dsn}{mark}sslmode=verify-full&sslrootcert={ca}"

    async def is_on() -> bool:
        return bool(await control.fetchval("SHOW ssl") == "on")

    try:
        await eventually(is_on, within=10)
        reached = FreshStorage({}, dsn(certificates.ca), cluster="tls")
        await reached.open(1)
        assert await control.fetchval("SELECT bool_or(ssl) FROM pg_stat_ssl")
        await reached.close()
        with pytest.raises(DejaqError, match="certificate"):
            await PostgresStorage(dsn(certificates.other_ca), cluster="tls").open(1)
    finally:
        await control.execute("ALTER SYSTEM RESET ssl")
        await control.execute("SELECT pg_reload_conf()")
        await control.close()
