"""The journals of several brokers on one PostgreSQL make one lake, with one row a message."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dejaq
from dejaq.cli.main import run
from dejaq.pipeline.lake import Lake
from dejaq.testing.brokers import BrokerCluster
from dejaq.testing.etcd import EtcdCluster
from dejaq.testing.postgres import shared_server
from dejaq.testing.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EACH = 60
# Of what is due: how many are given back once, and how many are refused for good.
AGAIN = BAD = 3


def test_the_lake_of_three_brokers_has_one_row_a_message_though_one_is_killed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G9: what one broker created another moved, cancelled, delivered or buried; one row tells each message's life."""
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    told = asyncio.run(live(tmp_path, journal, lake, capsys))
    assert told["audit"]["balanced"]
    assert len({file.parent.name for file in journal.rglob("*.parquet")}) == 3, "each broker has told something"
    figures = {name: told["audit"][name] for name in ("created", "deleted", "cancelled", "dead_lettered", "pending")}
    assert figures == {
        # Those that were buried were created in the other topic, where they are pending.
        "created": 6 * EACH + BAD,
        "deleted": 3 * EACH - BAD,
        "cancelled": EACH,
        "dead_lettered": BAD,
        "pending": 2 * EACH + BAD,
    }
    assert told["audit"]["on_timeline"] == 2 * EACH + BAD
    # Each that was given back came again.
    assert (told["accuracy"]["delivered"], told["retries"]["releases"]) == (3 * EACH + AGAIN, AGAIN)
    assert told["traffic"]["created"] == 6 * EACH + BAD
    messages = rows_of(spark, lake)
    assert len({(row["topic"], row["id"]) for row in messages}) == len(messages) == 6 * EACH + BAD
    assert all(row["born"] is not None for row in messages)
    handed = [row for row in messages if row["delivered"]]
    assert all(row["lateness_ms"] is not None and row["created_ms"] <= row["first_lease_ms"] for row in handed)
    assert sum(row["moves"] for row in messages) == EACH
    # The journals of the last brokers come first: the rows are the same.
    other = tmp_path / "other"
    for part in ("broker-2", "broker-1", ""):
        assert run(["pipeline", "run", "--journal", str(journal / part), "--lake", str(other)]) == 0
    assert rows_of(spark, other) == messages


def rows_of(spark: SparkSession, lake: Path) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in Lake.existing(spark, str(lake)).read("messages").collect()]
    return sorted(rows, key=lambda row: (row["topic"], row["id"]))


async def live(tmp_path: Path, journal: Path, lake: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Traffic through each of three brokers, the death of one, and the audit of the cluster that goes on."""
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
    """Delete what comes until nothing is due any more."""
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
        await eventually(lambda: done(watcher), within=30, what="everything due is taken", poll=0.1)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def done(client: dejaq.Client) -> bool:
    return await client.count("mail") == 2 * EACH
