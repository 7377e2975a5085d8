"""`dejaq cluster up` and `down`: a whole cluster on one machine, by one command."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dejaq
from tests.acceptance.process import dejaq as run


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not pytest's own: PostgreSQL's user may not enter that."""
    path = Path(tempfile.mkdtemp(prefix="dejaq-trial-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def test_a_cluster_comes_up_serves_and_goes_down(directory: Path):
    up = run("cluster", "up", "--brokers", "2", "--json", "--dir", str(directory))
    try:
        assert up.code == 0, up.err
        told = json.loads(up.out.splitlines()[-1])
        assert told["url"] == "dejaq://" + ",".join(broker["address"] for broker in told["brokers"])
        assert len({broker["pid"] for broker in told["brokers"]}) == 2
        one, other = (f"dejaq://{broker['address']}" for broker in told["brokers"])
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
