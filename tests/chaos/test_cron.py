"""R1 for schedules: brokers that are killed create each occurrence exactly once."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import new_seed, size

CYCLES = size("CRON", ci=4, full=60)
SCHEDULES = size("CRON_SCHEDULES", ci=30, full=300)
TOPIC = "ticks"


@pytest.mark.chaos
async def test_each_occurrence_comes_once_though_the_broker_is_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """G11: no occurrence is left out or created twice, whatever the cron unit did when its broker was killed."""
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        await each_once(client, lambda _: broker.restart(), record_property)


@pytest.mark.chaos
@pytest.mark.xdist_group("cluster")
async def test_each_occurrence_comes_once_though_the_brokers_of_a_cluster_are_killed_in_turn(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """G11: over two shards each broker checks the schedules, one wins; if it is killed, another continues."""
    name = f"cron_{secrets.token_hex(4)}"
    shards = [f"eu={shared_server().dsn}", f"us={shared_server().new_database(name)}"]
    async with (
        EtcdCluster(tmp_path, size=1) as etcd,
        BrokerCluster(shards[0], etcd.url, size=2, options=("--storage", shards[1])) as cluster,
    ):

        async def kill(cycle: int) -> None:
            await cluster.brokers[cycle % len(cluster.brokers)].restart()

        async with dejaq.connect(cluster.url, deadline=60) as client:
            await each_once(client, kill, record_property)


async def each_once(
    client: dejaq.Client, kill: Callable[[int], Awaitable[None]], record_property: Callable[[str, object], None]
) -> None:
    """Create schedules and consume their occurrences while `kill` is called at random moments."""
    seed = new_seed()
    chance = random.Random(seed)
    seen: Counter[str] = Counter()
    await client.create_topic(TOPIC, kind="cron", buckets=4)
    cron = client.cron(TOPIC)

    async def consume() -> None:
        async with client.consumer(TOPIC, name="worker") as consumer:
            async for batch in consumer.batches():
                # Only first deliveries count, which `attempts` identifies; a repeat of a first delivery counts too.
                seen.update(lease.id for lease in batch if lease.attempts == 1)
                await batch.delete()

    consuming = asyncio.create_task(consume())
    await cron.add_many(dejaq.Schedule(f"s-{n}", "@every 1s", "{count}", missed="all") for n in range(SCHEDULES))
    for cycle in range(CYCLES):
        due = round((cycle + chance.random()) * SCHEDULES)
        await eventually(lambda: seen.total() >= due, within=60, what=f"{due} occurrences came", poll=0.005)
        await kill(cycle)
    await eventually(lambda: seen.total() >= SCHEDULES * (CYCLES + 2), within=60, what="the other occurrences came")
    infos = [info async for info in cron.all()]
    for info in infos:
        await cron.pause(info.name)
    await eventually(lambda: _empty(client, consuming), within=60, what="all messages are consumed")
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    record_property("figure", f"{CYCLES} kills, {seen.total()} occurrences of {SCHEDULES} schedules")
    assert [(name, count) for name, count in seen.items() if count > 1] == [], f"seed {seed}"
    for info in infos:
        made = sorted(one for one in seen if one.startswith(f"{info.name}:"))
        assert made == _without_gaps(made), f"{info.name} left out an occurrence, seed {seed}"


async def _empty(client: dejaq.Client, consuming: asyncio.Task[None]) -> bool:
    assert not consuming.done()
    return await client.count(TOPIC) == 0


def _without_gaps(ids: list[str]) -> list[str]:
    """The ids that must exist from the first to the last, one per second."""
    name = ids[0].partition(":")[0]

    def moment(text: str) -> datetime:
        plain = text.partition(":")[2].rstrip("Z")
        return datetime.strptime(plain, "%Y%m%dT%H%M%S.%f" if "." in plain else "%Y%m%dT%H%M%S")

    first, last = moment(ids[0]), moment(ids[-1])
    count = round((last - first).total_seconds())
    fraction = f"{first:%f}"[:3] if first.microsecond else ""
    return [
        f"{name}:{first + timedelta(seconds=n):%Y%m%dT%H%M%S}" + (f".{fraction}" if fraction else "") + "Z"
        for n in range(count + 1)
    ]
