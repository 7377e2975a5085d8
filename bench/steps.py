"""What transactions and schedules cost: consume-process-produce in transactions, and 100,000 schedules on one broker.

    python -m bench.steps transactions --messages 20000
    python -m bench.steps cron --schedules 100000 --seconds 40

Writes the figures to `bench/results/transactions.json` and `bench/results/cron.json`. Lateness is by the broker's
clock, in user code; for schedules beside that of a plain timeline at the same rate, in the same process, right after.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import dejaq
from bench.figures import keep
from dejaq.testing.process import BrokerProcess

BATCH = 5_000
CONCURRENCY = 32


def main() -> None:
    """Measure one of the two and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["transactions", "cron"])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dejaq-steps-") as folder:
        work = _transactions if arguments.what == "transactions" else _cron
        figures = asyncio.run(work(Path(folder), arguments))
    keep(arguments.what, figures)


async def _transactions(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """One input and one output a transaction, many at once; then a hundred of each a transaction."""
    figures: dict[str, float] = {"messages": arguments.messages}
    async with BrokerProcess(folder / "data") as broker, dejaq.connect(broker.url) as client:
        for size in (1, 100):
            source, target = f"in-{size}", f"out-{size}"
            for topic in (source, target):
                await client.create_topic(topic, buckets=16)
            async with client.producer(source) as producer:
                for start in range(0, arguments.messages, BATCH):
                    count = min(BATCH, arguments.messages - start)
                    (await producer.send_batch([b"x" * 100] * count)).raise_for_failures()
            took: list[float] = []
            begun = time.perf_counter()
            async with client.consumer(source, name="worker", max_in_flight=4_000) as consumer:
                workers = [
                    _produce(client, consumer, target, size, arguments.messages, took) for _ in range(CONCURRENCY)
                ]
                await asyncio.gather(*workers)
            seconds = time.perf_counter() - begun
            assert (await client.count(source), await client.count(target)) == (0, arguments.messages)
            figures |= {
                f"of_{size}_transactions_per_s": round(len(took) / seconds),
                f"of_{size}_messages_per_s": round(arguments.messages / seconds),
                f"of_{size}_p50_ms": _percentile(took, 0.5),
                f"of_{size}_p99_ms": _percentile(took, 0.99),
            }
    return figures


async def _produce(
    client: dejaq.Client, consumer: dejaq.Consumer, target: str, size: int, most: int, took: list[float]
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
                t.send(target, body)
        took.append((time.perf_counter() - begun) * 1_000)


async def _cron(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Each schedule runs once a minute, at a second of its own."""
    chance = random.Random(1)
    count = arguments.schedules
    async with BrokerProcess(folder / "data") as broker, dejaq.connect(broker.url) as client:
        await client.create_topic("cron", kind="cron", buckets=16)
        begun = time.perf_counter()
        await client.cron("cron").add_many(
            dejaq.Schedule(f"s-{n}", f"{chance.randrange(60)} * * * * *", "{count}") for n in range(count)
        )
        added = time.perf_counter() - begun
        await _lateness(client, "cron", 30)
        cpu = _cpu_s(broker.pid)
        late = await _lateness(client, "cron", arguments.seconds)
        cpu = _cpu_s(broker.pid) - cpu
        await client.delete_topic("cron")
        plain = await _timeline(client, round(len(late) / arguments.seconds), arguments.seconds)
    return {
        "schedules": count,
        "added_per_s": round(count / added),
        "occurrences_per_s": round(len(late) / arguments.seconds),
        "broker_cpu_us_per_occurrence": round(cpu * 1e6 / max(1, len(late))),
        **{f"late_{name}_ms": _percentile(late, p) for name, p in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))},
        **{f"plain_{name}_ms": _percentile(plain, p) for name, p in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))},
    }


async def _timeline(client: dejaq.Client, rate: int, seconds: int) -> list[float]:
    """The same rate as a plain timeline, all of it there before the first is due."""
    await client.create_topic("plain", buckets=16)
    start = client.now_ms() + 5_000
    async with client.producer("plain") as producer:
        for second in range(seconds):
            (await producer.send_batch([b"x"] * rate, at=[start + second * 1_000] * rate)).raise_for_failures()
    return await _lateness(client, "plain", seconds + 5)


async def _lateness(client: dejaq.Client, topic: str, seconds: float) -> list[float]:
    """How late messages reach user code, in ms, for a while; what is overdue at the start is left out."""
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


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values) or [0.0]
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 1)


if __name__ == "__main__":
    main()
