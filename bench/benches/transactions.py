"""Transactions: consume, process and produce in one commit, with one or a hundred messages each way, many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import dejaq
from bench.harness.apart import apart
from bench.harness.figures import Figures, percentile
from bench.harness.payload import BATCH
from bench.harness.server import cpu_seconds
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System

CONCURRENCY = 32
BUCKETS = 16
SIZES = (1, 100)


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per size, each on a server of its own."""
    for size in SIZES:
        with staged(system) as stage:
            figures = apart(measure, stage.server.address, stage.server.pid, plan.transacted, size)
        yield Outcome(
            shape={"messages_each_way": size, "at_once": CONCURRENCY},
            figures=figures,
            actual={"messages": plan.transacted},
        )


async def measure(address: str, pid: int, count: int, size: int) -> Figures:
    """Fill one topic and move its messages to another topic."""
    took: list[tuple[float, float]] = []
    async with dejaq.connect(f"dejaq://{address}") as client:
        for topic in ("in", "out"):
            await client.create_topic(topic, buckets=BUCKETS)
        async with client.producer("in") as producer:
            for start in range(0, count, BATCH):
                await producer.send_batch([b"x" * 100] * min(BATCH, count - start))
        cpu, begun = cpu_seconds(pid), time.perf_counter()
        async with client.consumer("in", name="worker", max_in_flight=4_000) as consumer:
            await asyncio.gather(*(_work(client, consumer, size, count, took) for _ in range(CONCURRENCY)))
        # After the last input, workers wait some time without result.
        seconds, cpu = max(ended for ended, _ in took) - begun, cpu_seconds(pid) - cpu
        left = (await client.count("in"), await client.count("out"))
    if left != (0, count):
        raise RuntimeError(f"{left[0]} inputs are left and {left[1]} of {count} outputs are there")
    commits = sorted(ms for _, ms in took)
    return {
        "transactions_per_s": round(len(took) / seconds),
        "messages_per_s": round(count / seconds),
        "commit_p50_ms": round(percentile(commits, 0.5), 1),
        "commit_p99_ms": round(percentile(commits, 0.99), 1),
        "broker_cpu_us_per_transaction": round(cpu * 1e6 / len(took)),
    }


async def _work(
    client: dejaq.Client, consumer: dejaq.Consumer, size: int, most: int, took: list[tuple[float, float]]
) -> None:
    while len(took) * size < most:
        try:
            batch = await asyncio.wait_for(consumer.take(size), 1.0)
        except TimeoutError:
            return
        begun = time.perf_counter()
        async with client.transaction() as t:
            t.delete(batch)
            for body in batch.bodies:
                t.send("out", body)
        ended = time.perf_counter()
        took.append((ended, (ended - begun) * 1_000))
