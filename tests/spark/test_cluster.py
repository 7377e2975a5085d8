"""The journals of several brokers on one PostgreSQL become one lake, with one row per message."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dejaq
from dejaq.cli.main import run
from dejaq.pipeline.lake.lake import Lake
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EACH = 60
# Of the due messages: how many are released once, and how many are rejected.
AGAIN = BAD = 3


def test_the_lake_of_three_brokers_has_one_row_per_message_though_one_broker_is_killed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G9: brokers move, cancel, deliver or reject messages that another broker created; each message has one row."""
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    results = asyncio.run(live(tmp_path, journal, lake, capsys))
    assert results["audit"]["balanced"]
    assert len({file.parent.name for file in journal.rglob("*.parquet")}) == 3, "each broker has written records"
    figures = {name: results["audit"][name] for name in ("created", "deleted", "cancelled", "dead_lettered", "pending")}
    assert figures == {
        # Dead letters were created a second time, in the dead-letter topic, where they are pending.
        "created": 6 * EACH + BAD,
        "deleted": 3 * EACH - BAD,
        "cancelled": EACH,
        "dead_lettered": BAD,
        "pending": 2 * EACH + BAD,
    }
    assert results["audit"]["on_timeline"] == 2 * EACH + BAD
    # Each released message was delivered again.
    assert (results["accuracy"]["delivered"], results["retries"]["releases"]) == (3 * EACH + AGAIN, AGAIN)
    assert results["traffic"]["created"] == 6 * EACH + BAD
    messages = rows_of(spark, lake)
    assert len({(row["topic"], row["id"]) for row in messages}) == len(messages) == 6 * EACH + BAD
    assert all(row["born"] is not None for row in messages)
    handed = [row for row in messages if row["delivered"]]
    assert all(row["lateness_ms"] is not None and row["created_ms"] <= row["first_lease_ms"] for row in handed)
    assert sum(row["moves"] for row in messages) == EACH
    # The journals are read in reverse order of the brokers: the rows are the same.
    other = tmp_path / "other"
    for part in ("broker-2", "broker-1", ""):
        assert run(["pipeline", "run", "--journal", str(journal / part), "--lake", str(other)]) == 0
    assert rows_of(spark, other) == messages


def rows_of(spark: SparkSession, lake: Path) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in Lake.existing(spark, str(lake)).read("messages").collect()]
    return sorted(rows, key=lambda row: (row["topic"], row["id"]))


async def live(tmp_path: Path, journal: Path, lake: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Send and consume at each of three brokers, kill one, and audit the cluster, which continues."""
    async with AsyncExitStack() as stack:
        etcd = await stack.enter_async_context(EtcdCluster(tmp_path / "etcd", size=1))
        cluster = BrokerCluster(shared_server().dsn, etcd.url, data=tmp_path / "data", journal=journal)
        await stack.enter_async_context(cluster)
        client = await stack.enter_async_context(dejaq.connect(cluster.url, deadline=30))
        await client.create_topic("mail", buckets=12)
        for number, broker in enumerate(cluster.brokers):
            async with dejaq.connect(broker.url, follow=False) as here, here.producer("mail", group="g") as producer:
                soon = [f"soon-{number}-{n}" for n in range(EACH)]
                late = [f"late-{number}-{n}" for n in range(EACH)]
                assert (await producer.send_batch([b"x"] * EACH, ids=soon, delay=0)).ok
                assert (await producer.send_batch([b"x"] * EACH, ids=late, delay=3_600)).ok
                if number == 2:
                    assert (await producer.cancel([f"late-0-{n}" for n in range(EACH)])).ok
                    assert (await producer.move([f"late-1-{n}" for n in range(EACH)], delay=7_200)).ok
        consumers = [
            asyncio.create_task(consume(broker.url, f"c-{number}", client))
            for number, broker in enumerate(cluster.brokers)
        ]
        await asyncio.gather(*consumers)
        await cluster.brokers[0].restart()
        await cluster.whole()
        arguments = ["--journal", str(journal), "--settle", "60", "--lake", str(lake), "--url", cluster.url]
        arguments += ["--output", str(tmp_path / "report.html"), "--live", "--json"]
        assert await asyncio.to_thread(run, ["pipeline", "report", *arguments]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


async def consume(url: str, name: str, watcher: dejaq.Client) -> None:
    """Delete messages until nothing is due any more."""
    async with dejaq.connect(url, follow=False) as client, client.consumer("mail", name=name) as consumer:

        async def take() -> None:
            async for lease in consumer:
                number = lease.id.rsplit("-", 1)[1]
                if number == "0" and lease.attempts == 1:
                    await lease.release(delay=0)
                elif number == "1":
                    await lease.reject("not what it should be")
                else:
                    await lease.delete()

        taking = asyncio.create_task(take())
        await eventually(lambda: done(watcher), within=30, what="all due messages are consumed", poll=0.1)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def done(client: dejaq.Client) -> bool:
    return await client.count("mail") == 2 * EACH
