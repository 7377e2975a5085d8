"""Cron: schedules that each run once per minute, at different seconds, compared with a plain
timeline at the same rate.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import dejaq
from bench.harness.apart import apart
from bench.harness.figures import Figures, percentile
from bench.harness.server import cpu_seconds
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System

# The first occurrences, which are prepared while the schedules are added, are few and are left out.
WARM_SECONDS = 30
BUCKETS = 16
PERCENTILES = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome. Lateness is measured in user code, by the broker's clock."""
    with staged(system) as stage:
        figures = apart(measure, stage.server.address, stage.server.pid, plan)
    yield Outcome(shape={"schedules": plan.schedules}, figures=figures, actual={"schedules": plan.schedules})


async def measure(address: str, pid: int, plan: Plan) -> Figures:
    """Add the schedules, measure their occurrences, then measure a timeline."""
    chance = random.Random(1)
    count, seconds = plan.schedules, plan.cron_seconds
    async with dejaq.connect(f"dejaq://{address}") as client:
        await client.create_topic("cron", kind="cron", buckets=BUCKETS)
        begun = time.perf_counter()
        await client.cron("cron").add_many(
            dejaq.Schedule(f"s-{n}", f"{chance.randrange(60)} * * * * *", "{count}") for n in range(count)
        )
        added = time.perf_counter() - begun
        await _lateness(client, "cron", WARM_SECONDS)
        cpu = cpu_seconds(pid)
        late = sorted(await _lateness(client, "cron", seconds))
        cpu = cpu_seconds(pid) - cpu
        await client.delete_topic("cron")
        rate = max(1, round(len(late) / seconds))
        plain = sorted(await _timeline(client, rate, seconds))
    return {
        "added_per_s": round(count / added),
        "occurrences_per_s": rate,
        "broker_cpu_us_per_occurrence": round(cpu * 1e6 / max(1, len(late)), 1),
        **{f"lateness_{name}_ms": percentile(late, part) for name, part in PERCENTILES},
        **{f"plain_{name}_ms": percentile(plain, part) for name, part in PERCENTILES},
    }


async def _timeline(client: dejaq.Client, rate: int, seconds: int) -> list[float]:
    """The same rate as a plain timeline; all messages are created before the first is due."""
    await client.create_topic("plain", buckets=BUCKETS)
    start = client.now_ms() + 5_000
    async with client.producer("plain") as producer:
        for second in range(seconds):
            await producer.send_batch([b"x"] * rate, at=[start + second * 1_000] * rate)
    return await _lateness(client, "plain", seconds + 5)


async def _lateness(client: dejaq.Client, topic: str, seconds: float) -> list[float]:
    """How late messages reach user code, in ms, for some time; messages that are overdue at the start are left out."""
    late: list[float] = []
    async with client.consumer(topic, name="watcher", prefetch=1.0) as consumer:
        begun = client.now_ms()

        async def watch() -> None:
            async for batch in consumer.batches():
                now = consumer.now_ms()
                late.extend(now - ts for ts in batch.ts if ts >= begun)
                await batch.delete()

        watching = asyncio.create_task(watch())
        await asyncio.wait((watching,), timeout=seconds)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return late
