"""`dejaq cluster up` and `dejaq cluster down`: one command starts and stops a whole cluster on one machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

import dejaq
from dejaq.testing.servers.process import free_port
from tests.acceptance.process import dejaq as run


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory outside pytest's own, which the user that runs PostgreSQL may not enter."""
    path = Path(tempfile.mkdtemp(prefix="dejaq-trial-"))
    yield path
    if (path / "trial.json").exists():
        # A test that fails, as with a planted bug, must not leave a cluster behind.
        run("cluster", "down", "--dir", str(path))
    shutil.rmtree(path, ignore_errors=True)


async def test_a_cluster_comes_up_serves_and_goes_down(directory: Path) -> None:
    up = run("cluster", "up", "--brokers", "2", "--json", "--dir", str(directory))
    try:
        assert up.code == 0, up.err
        answer = json.loads(up.out.splitlines()[-1])
        assert answer["url"] == "dejaq://" + ",".join(broker["address"] for broker in answer["brokers"])
        assert len({broker["pid"] for broker in answer["brokers"]}) == 2
        one, other = (f"dejaq://{broker['address']}" for broker in answer["brokers"])
        async with dejaq.connect(one, follow=False) as here, dejaq.connect(other, follow=False) as there:
            await here.create_topic("mail")
            async with here.producer("mail") as producer, there.consumer("mail", max_messages=1) as consumer:
                sent = await producer.send(b"hello")
                lease = await anext(consumer)
                assert (lease.id, lease.body) == (sent, b"hello")
                await lease.delete()
        again = run("cluster", "up", "--dir", str(directory))
        assert again.code == 1
        assert "end it with `dejaq cluster down`" in again.err
    finally:
        down = run("cluster", "down", "--json", "--dir", str(directory))
    assert json.loads(down.out)["ended"] == ["broker-0", "broker-1", "postgres", "etcd-0"]
    assert run("cluster", "down", "--dir", str(directory)).code == 1


async def test_a_trial_cluster_to_which_a_shard_was_added_starts_again(directory: Path) -> None:
    """U10: the cluster could not start again, and the error gave only its own code as the hint."""
    where = ("--dir", str(directory))
    first_port = str(free_port())
    try:
        up = run("cluster", "up", "--brokers", "1", "--port", first_port, *where)
        assert up.code == 0, up.err
        assert f"dejaq://127.0.0.1:{first_port}" in up.out
        ports = json.loads((directory / "trial.json").read_text())
        server = f"postgres://postgres@127.0.0.1:{ports['postgres']}"
        connection = await asyncpg.connect(f"{server}/postgres")
        await connection.execute("CREATE DATABASE second")
        await connection.close()
        url = f"dejaq://127.0.0.1:{first_port}"
        async with dejaq.connect(url) as client:
            await client.create_topic("mail")
            async with client.producer("mail") as producer:
                await producer.send(b"x", id="kept", delay=3_600)
        etcd = f"etcd://127.0.0.1:{ports['etcd-0-client']}"
        options = ("--cluster", "trial", "--synchronization", etcd, "--grace", "0")
        added = run("storage", "add-shard", "second", f"{server}/second", *options)
        assert added.code == 0, added.err
        assert run("cluster", "down", *where).code == 0
        again = run("cluster", "up", "--brokers", "1", "--port", first_port, *where)
        assert again.code == 0, again.err
        async with dejaq.connect(url) as client:
            (message,) = await client.get("mail", ["kept"])
            assert message is not None
            (broker,) = (await client.info()).brokers
            assert "2 shards" in broker.storage
        assert list((directory / "broker-0" / "journal").iterdir()), "the broker keeps a journal"
        # Files that the user has put into the directory stay.
        (directory / "notes.txt").write_text("mine")
    finally:
        down = run("cluster", "down", "--erase", *where)
    assert "notes.txt" in down.out
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


def test_a_directory_with_other_files_is_refused_and_left_alone(directory: Path) -> None:
    """U3: `down --erase` removed the directory with every other file in it."""
    (directory / "thesis.txt").write_text("years of work")
    (directory / "cluster.json").write_text('{"url": "", "brokers": [], "servers": {}}')
    up = run("cluster", "up", "--dir", str(directory))
    assert up.code == 1
    assert "holds files that are not of a trial cluster" in up.err
    run("cluster", "down", "--erase", "--dir", str(directory))
    assert (directory / "thesis.txt").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_a_directory_that_postgresql_may_not_enter_is_named(directory: Path) -> None:
    """U25: the command ended with INTERNAL and the output of initdb."""
    directory.chmod(0o755)
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    up = run("cluster", "up", "--dir", str(closed / "cluster"))
    assert up.code == 1
    assert f"may not enter {closed};" in up.err
    assert "INTERNAL" not in up.err


def test_a_port_that_is_taken_is_refused(directory: Path) -> None:
    """U3: the brokers of a trial cluster used other ports without saying so."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        up = run("cluster", "up", "--port", str(taken.getsockname()[1]), "--brokers", "1", "--dir", str(directory))
    assert "PORT_TAKEN" in up.err
