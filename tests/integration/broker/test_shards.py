"""A broker on two shards: topics on all shards or on one, its journal, and the check of its list of shards."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

import dejaq
from dejaq.errors import ClusterRefused
from dejaq.journal.verification import verify
from dejaq.testing.servers.postgres import shared_server


@pytest.fixture
def shards() -> dict[str, str]:
    name = f"shards_{secrets.token_hex(4)}"
    return {"a": shared_server().dsn, "b": shared_server().new_database(name)}


@pytest.fixture
def cluster() -> str:
    return f"shards_{secrets.token_hex(4)}"


def setting(shards: dict[str, str]) -> str:
    return " ".join(f"{name}={dsn}" for name, dsn in shards.items())


async def test_a_broker_works_on_two_shards(tmp_path: Path, shards: dict[str, str], cluster: str) -> None:
    async with (
        dejaq.Broker(data=tmp_path, storage=setting(shards), cluster=cluster, listen="127.0.0.1:0") as broker,
        dejaq.connect(f"dejaq://{broker.address}") as client,
    ):
        assert (await client.info()).brokers[0].storage == "postgres, 2 shards"
        await client.create_topic("mail", buckets=16)
        await client.create_topic("urgent", kind="priority")
        shown = (await client.info()).shards
        assert [(shard.name, shard.moving, shard.state) for shard in shown] == [("a", 0, ""), ("b", 0, "")]
        buckets = sum([topic.settings.buckets for topic in await client.topics()])
        assert sum(shard.buckets for shard in shown) == buckets
        # A priority topic is whole, on the first shard; both have some of the others.
        assert shown[0].buckets > shown[1].buckets > 0
        async with client.producer("mail") as mail, client.producer("urgent") as urgent:
            for number in range(10):
                await mail.send_batch([b"x"] * 10, ids=[f"m-{number}-{row}" for row in range(10)], delay=0)
            for priority in (5, -5, 0):
                await urgent.send(b"%d" % priority, priority=priority)
        async with client.consumer("urgent", name="u") as consumer:
            bodies = []
            for _ in range(3):
                lease = await anext(consumer)
                bodies.append(lease.body)
                await lease.delete()
        assert bodies == [b"-5", b"0", b"5"]
        async with client.consumer("mail", name="w") as consumer:
            for _ in range(100):
                await (await anext(consumer)).delete()
        assert [await client.count(topic) for topic in ("mail", "urgent")] == [0, 0]
    report = verify(tmp_path / "journal")
    assert report.findings == []
    assert report.events == 3 * 103


async def test_a_broker_refuses_shards_other_than_those_of_its_cluster(shards: dict[str, str], cluster: str) -> None:
    async with dejaq.Broker(storage=setting(shards), cluster=cluster):
        pass
    third = shared_server().new_database(f"third_{secrets.token_hex(4)}")
    for other, message in (
        ({"a": shards["a"]}, "one of the shards a, b"),
        ({**shards, "c": third}, "dejaq storage add-shard"),
        ({"a": shards["b"], "b": shards["a"]}, "is shard 'b' of its cluster, not 'a'"),
    ):
        with pytest.raises(ClusterRefused, match=message):
            await dejaq.Broker(storage=setting(other), cluster=cluster).start()
