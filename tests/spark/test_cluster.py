"""The journals of several brokers on one PostgreSQL make one lake, and its audit balances."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.cli.main import run
from dejaq.testing.brokers import BrokerCluster
from dejaq.testing.etcd import EtcdCluster
from dejaq.testing.postgres import shared_server
from dejaq.testing.waiting import eventually

pytestmark = pytest.mark.usefixtures("spark")
EACH = 60


def test_the_audit_of_three_brokers_balances_though_one_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G9: what one broker created another delivered; each tells its part, and the sum is right."""
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    audit = asyncio.run(live(tmp_path, journal, lake, capsys))
    assert audit["balanced"]
    assert len({file.parent.name for file in journal.rglob("*.parquet")}) == 3, "each broker has told something"
    (balance,) = audit["balance"]
    assert (balance["created"], balance["deleted"]) == (6 * EACH, 3 * EACH)
    assert (balance["cancelled"], balance["pending"], balance["on_timeline"]) == (EACH, 2 * EACH, 2 * EACH)
    assert run(["pipeline", "accuracy", "--lake", str(lake), "--json"]) == 0
    hours = json.loads(capsys.readouterr().out)["hours"]
    # Whoever leased a message knows when it was due, be it another than its creator.
    assert (sum(row["delivered"] for row in hours), sum(row["unknown"] for row in hours)) == (3 * EACH, 0)


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
                    await producer.cancel([f"late-0-{n}" for n in range(EACH)])
        consumers = [
            asyncio.create_task(consume(broker.url, f"c-{number}", client))
            for number, broker in enumerate(cluster.brokers)
        ]
        await asyncio.gather(*consumers)
        await cluster.brokers[0].restart()
        await cluster.whole()
        arguments = ["--journal", str(journal), "--settle", "60", "--lake", str(lake), "--url", cluster.url]
        assert await asyncio.to_thread(run, ["pipeline", "audit", *arguments, "--live", "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


async def consume(url: str, name: str, watcher: dejaq.Client) -> None:
    """Delete what comes until nothing is due any more."""
    async with dejaq.connect(url, follow=False) as client, client.consumer("mail", name=name) as consumer:

        async def take() -> None:
            async for lease in consumer:
                await lease.delete()

        taking = asyncio.create_task(take())
        await eventually(lambda: done(watcher), within=30, what="everything due is taken", poll=0.1)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def done(client: dejaq.Client) -> bool:
    return await client.count("mail") == 2 * EACH
