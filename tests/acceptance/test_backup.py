"""The backup commands of docs/operations.md: a restored copy has every message acknowledged before the backup."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dejaq
from dejaq.errors import DejaqError
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.postgres import PostgresServer, as_user
from dejaq.testing.servers.process import BrokerProcess
from tests.acceptance.process import dejaq as dejaq_command

PAGE = (Path(__file__).resolve().parents[2] / "docs/operations.md").read_text()
HOSTS = "10.0.0.1,10.0.0.2,10.0.0.3"
ENDPOINTS = "10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"


def block(beginning: str) -> str:
    """The command block of the page that begins with `beginning`."""
    (found,) = [text for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if text.startswith(beginning)]
    return str(found)


def run(commands: str, *, replacing: dict[str, str]) -> None:
    for name, value in replacing.items():
        commands = commands.replace(name, value)
    assert "10.0.0" not in commands
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"


class Site:
    """A cluster, its database and its etcd."""

    def __init__(self, postgres: PostgresServer, etcd: EtcdCluster, folder: Path) -> None:
        self.folder = folder
        self.name = f"shop_{secrets.token_hex(3)}"
        self.postgres = postgres
        self.brokers = BrokerCluster(postgres.dsn, etcd.url, size=2, name=self.name)
        self.replacing = {
            ENDPOINTS: etcd.addresses[0],
            f"dejaq@{HOSTS}/dejaq": f"postgres@{postgres.host}:{postgres.port}/postgres",
            f"replicator@{HOSTS}/": f"postgres@{postgres.host}:{postgres.port}/postgres",
            "-n shop": f"-n {self.name}",
            "EXISTS shop": f"EXISTS {self.name}",
            "--cluster shop": f"--cluster {self.name}",
            "/dejaq/shop/": f"/dejaq/{self.name}/",
            "/var/backups": str(folder),
        }

    def client(self) -> dejaq.Client:
        return dejaq.connect(self.brokers.url, deadline=20)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    # The directory is outside pytest's own directory, because the server runs as another user that may not enter that
    # one.
    with PostgresServer() as postgres, tempfile.TemporaryDirectory(prefix="dejaq-backup-") as folder:
        Path(folder).chmod(0o755)
        async with EtcdCluster(tmp_path, size=1) as etcd:
            place = Site(postgres, etcd, Path(folder))
            async with place.brokers:
                yield place


async def ids_of(client: dejaq.Client, topic: str) -> set[str]:
    return {message.id async for page in client.browse(topic) for message in page}


async def test_a_dump_of_a_working_cluster_is_restored(site: Site) -> None:
    """G1, G3: the restored cluster has every message acknowledged before the dump; leases granted later are void."""
    async with site.client() as client:
        await client.create_topic("mail", buckets=4)
        before, during = {f"before-{n}" for n in range(200)}, {f"during-{n}" for n in range(400)}
        async with client.producer("mail") as producer, client.consumer("mail", name="c", lease=600) as consumer:
            assert (await producer.send_batch([b"x"] * 200, ids=sorted(before), delay=3_600)).ok
            await producer.send(b"x", id="done-before")
            await (await anext(consumer)).delete()
            sending = asyncio.create_task(send_slowly(producer, sorted(during)))
            await asyncio.to_thread(run, block("pg_dump"), replacing=site.replacing)
            await sending
            await producer.send(b"x", id="after")
            held = await anext(consumer)
            await client.create_topic("post", buckets=4)
        for broker in site.brokers.brokers:
            broker.kill()
        await asyncio.to_thread(run, block("psql"), replacing=site.replacing)
        for broker in site.brokers.brokers:
            broker.start()
        await asyncio.gather(*(broker.ready() for broker in site.brokers.brokers))
        await site.brokers.whole()
        there = await ids_of(client, "mail")
        assert before <= there
        assert there - before <= during
        with pytest.raises(DejaqError):
            await held.delete()
        assert {info.name for info in await client.topics()} == {"mail"}
        await client.create_topic("post", buckets=8)
        async with client.producer("mail") as producer, client.consumer("mail", name="c", lease=600) as consumer:
            await producer.send(b"x", id="after")
            again = await anext(consumer)
            assert (again.id, again.version > held.version) == ("after", True)
            await again.delete()


async def send_slowly(producer: dejaq.Producer, ids: list[str]) -> None:
    for one in ids:
        await producer.send(b"x", id=one, delay=3_600)


async def test_a_base_backup_of_the_server_is_restored(site: Site) -> None:
    """G1: the restored cluster has every message acknowledged before the base backup ended."""
    async with site.client() as client:
        await client.create_topic("mail", buckets=4)
        async with client.producer("mail") as producer:
            names = sorted(f"m-{n}" for n in range(300))
            assert (await producer.send_batch([b"x"] * 300, ids=names, delay=3_600)).ok
        await asyncio.to_thread(run, block("pg_basebackup"), replacing=site.replacing)
    copy = site.folder / "shop-base"
    if as_user():
        for path in (copy, *copy.rglob("*")):
            shutil.chown(path, "postgres", "postgres")
    with PostgresServer(copy) as restored:
        broker = BrokerProcess(storage=restored.dsn, options=["--cluster", site.name])
        async with broker, dejaq.connect(broker.url) as client:
            assert await ids_of(client, "mail") == set(names)


async def test_the_directory_of_a_broker_is_copied_and_restored(tmp_path: Path) -> None:
    """G1: the same for the embedded store, by the commands for a single broker."""
    data, copy = tmp_path / "dejaq", tmp_path / "backup"
    copy.mkdir()
    (command,) = [text for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "cp -a /var/lib/dejaq" in text]
    _, copying, _ = command.split(" && ")
    broker = BrokerProcess(data)
    async with broker, dejaq.connect(broker.url, deadline=20) as client:
        await client.create_topic("mail", buckets=4)
        async with client.producer("mail") as producer:
            await producer.send(b"x", id="before", delay=3_600)
            broker.terminate()
            await broker.exited()
            await asyncio.to_thread(run, copying, replacing={"/var/lib": str(tmp_path), "/backup": str(copy)})
            await broker.restart()
            await producer.send(b"x", id="after", delay=3_600)
    shutil.rmtree(data)
    (kept,) = copy.iterdir()
    kept.rename(data)
    async with BrokerProcess(data) as again, dejaq.connect(again.url) as client:
        assert await ids_of(client, "mail") == {"before"}


async def test_a_broker_on_postgresql_names_the_tools_that_back_it_up(site: Site) -> None:
    done = await asyncio.to_thread(dejaq_command, "backup", str(site.folder / "none"), url=site.brokers.brokers[0].url)
    assert done.code == 1
    assert "pg_dump" in done.err
