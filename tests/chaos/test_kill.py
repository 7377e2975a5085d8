"""R1, R9 and R4: a broker that is killed under load, at random moments and at each of its named points."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.testing.history.history import check_ledger
from dejaq.testing.history.workload import Load, Workload
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import new_seed, size
from tests.chaos.stores import STORES, broker_on

CYCLES = 10
ROUNDS = size("R1", ci=1, full=30)
MESSAGES = size("R1_MESSAGES", ci=3_000, full=33_400)
POINT_ROUNDS = size("R4", ci=1, full=20)
POINTS = {
    "rocksdb": (
        "storage.before_write",
        "storage.after_write",
        "storage.before_sync",
        "storage.after_sync",
        "broker.before_ack",
        "broker.after_ack",
        "broker.before_push",
        "broker.after_push",
    ),
    # This process has no step of its own between PostgreSQL's write and its sync.
    "postgres": ("storage.before_write", "storage.after_write", "storage.after_sync", "broker.before_push"),
}
HOUR_MS = 3_600_000


async def kill_in_cycles(broker: BrokerProcess, workload: Workload, chance: random.Random) -> None:
    """Kill the broker at random moments of the load's progress, spread evenly over the load."""
    for cycle in range(CYCLES):
        due = round((cycle + chance.random()) * MESSAGES / (CYCLES + 1))
        await eventually(lambda: workload.acknowledged >= due, within=60, what=f"{due} messages are sent", poll=0.001)
        await broker.restart()


@pytest.mark.chaos
@pytest.mark.parametrize("store", STORES)
async def test_r1_r9_killed_under_load_nothing_is_lost_or_early_or_held_twice(
    store: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """G1, G2, G3, G4, G5: ten kills while producers and consumers work, then a full drain and a check of every message.

    R9: one order of effects, each of them within its call, explains every answer about a message.
    """
    seed = new_seed()
    async with broker_on(store, tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        for number in range(ROUNDS):
            load = Load(messages=MESSAGES, lease_seconds=0.8)
            workload = Workload(client, f"mail-{number}", load, seed=seed + number)
            running = asyncio.create_task(workload.run())
            await kill_in_cycles(broker, workload, random.Random(seed + number))
            verdict = await running
            record_property("figure", f"{CYCLES} kills, {verdict}".strip())
            assert not verdict.findings, f"{verdict}\nseed {seed + number}"
            assert verdict.acknowledged == MESSAGES
            assert check_ledger(workload.ledger, workload.left) == [], f"seed {seed + number}"
            await client.delete_topic(f"mail-{number}")
        assert broker.starts == 1 + CYCLES * ROUNDS


class Later:
    """Messages that are due in an hour, so that all of them are still in the store when they are counted."""

    def __init__(self, client: dejaq.Client) -> None:
        self._client = client
        self._acknowledged: dict[str, int] = {}

    async def send(self, count: int) -> None:
        await self._client.create_topic("later", buckets=4)
        async with self._client.producer("later", group="billing") as producer:
            for number in range(count):
                ts = 1_900_000_000_000 + number * 7_000
                name = f"later-{number}" if number % 2 else None
                self._acknowledged[await producer.send(b"x", at=ts, id=name)] = ts

    async def check(self) -> None:
        """The acknowledged messages exist, each once, and the counters agree."""
        messages = [message async for page in self._client.browse("later") for message in page]
        assert len(messages) == len({message.id for message in messages})
        assert {message.id: message.ts for message in messages} == self._acknowledged
        assert await self._client.count("later") == len(messages)
        start = 1_900_000_000_000
        counts = await self._client.histogram("later", start=start, end=start + HOUR_MS, step=60)
        expected = Counter(start + (message.ts - start) // 60_000 * 60_000 for message in messages)
        assert dict(counts) == expected


async def tick_after(work: asyncio.Future[Any], client: dejaq.Client) -> None:
    """When `work` is done, send and consume one message after the other without end: each message passes every point.

    On a slow machine many messages share few writes and pushes, so `work` alone may not reach the point.
    """
    await asyncio.wait([work])
    await client.create_topic("ticks", buckets=1)
    async with client.producer("ticks") as producer, client.consumer("ticks", name="t") as consumer:
        while True:
            await producer.send(b"tick")
            await (await anext(consumer)).delete()


@pytest.mark.chaos
@pytest.mark.parametrize(("store", "point"), [(store, point) for store, points in POINTS.items() for point in points])
async def test_r4_killed_at_a_named_point(store: str, point: str, tmp_path: Path) -> None:
    """G1, G2, G3, G4, G5: a kill at the worst moments loses and duplicates nothing, and the counters still agree."""
    seed = new_seed()
    for number in range(POINT_ROUNDS):
        hit = random.Random(seed + number).randrange(10, 40)
        broker = broker_on(store, tmp_path / f"data-{number}")
        broker.start(env={"DEJAQ_CRASH_AT": f"{point}:{hit}"})
        try:
            await broker.ready()
            async with dejaq.connect(broker.url, deadline=60) as client:
                later = Later(client)
                workload = Workload(client, "mail", Load(messages=300, lease_seconds=0.5), seed=seed + number)
                running = asyncio.gather(workload.run(), later.send(40))
                ticking = asyncio.create_task(tick_after(running, client))
                assert await broker.exited(within=60) == -signal.SIGKILL, f"{point}:{hit} was not reached"
                ticking.cancel()
                await broker.restart()
                await asyncio.gather(ticking, return_exceptions=True)
                verdict, _ = await running
                assert not verdict.findings, f"{verdict}\n{point}:{hit}, seed {seed + number}"
                assert verdict.acknowledged == 300
                assert check_ledger(workload.ledger, workload.left) == [], f"{point}:{hit}, seed {seed + number}"
                await later.check()
        finally:
            broker.close()
