"""Measures whether a scan disturbs delivery: how late messages are with and without a scan of a topic of millions.

    python -m bench.scan_accuracy --pending 5000000 --rounds 3

Writes the figures to `bench/results/scan_accuracy.json`. Messages that fall due at `--rate` a second are consumed all
the time; in turns, a process of its own scans everything pending as a Spark task does, again and again, or does not.
Lateness is by the broker's clock, in user code. Medians of the rounds. The scanning process gives way to the others
(`--nice 0` makes it their equal), since a real reader has cores of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import dejaq
from bench.figures import keep
from bench.harness.window import Window
from dejaq.testing.servers.process import BrokerProcess
from pyspark_dejaq.options import Options
from pyspark_dejaq.reading import PendingReader

BATCH = 5_000
FAR_MS = 30 * 86_400_000
LEAD_S = 2.0
DELETES_IN_FLIGHT = 8
GOAL = 2.0


def main() -> None:
    """Fill a topic, measure deliveries with and without a scan, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--nice", type=int, default=10, help="the nice value of the scanning process")
    parser.add_argument("--scan", metavar="URL", help="be the process that scans")
    arguments = parser.parse_args()
    if arguments.scan:
        os.nice(arguments.nice)
        scan(arguments.scan)
        return
    with tempfile.TemporaryDirectory(prefix="dejaq-scan-") as folder:
        asyncio.run(_measure(Path(folder), arguments))


def scan(url: str) -> None:
    """Read the whole topic until stdin closes; prints the rows and seconds of each scan."""
    while True:
        begun, rows = time.perf_counter(), 0
        reader = PendingReader(Options.parse({"dejaq.url": url, "subscribe": "t"}))
        for partition in reader.partitions():
            for batch in reader.read(partition):
                rows += batch.num_rows
        print(f"{rows} {time.perf_counter() - begun:.2f}", flush=True)


async def _measure(home: Path, arguments: argparse.Namespace) -> None:
    quiet: list[list[float]] = []
    scanned: list[list[float]] = []
    scans: list[str] = []
    async with (
        BrokerProcess(home / "data", options=["--log-level", "warning"]) as broker,
        dejaq.connect(broker.url) as client,
    ):
        await client.create_topic("t")
        await _fill(client, arguments.pending)
        await _watch(client, arguments.rate, 5)
        for _ in range(arguments.rounds):
            quiet.append(await _watch(client, arguments.rate, arguments.seconds))
            command = [sys.executable, "-m", "bench.scan_accuracy", "--scan", broker.url]
            command += ["--nice", str(arguments.nice)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            scanned.append(await _watch(client, arguments.rate, arguments.seconds))
            process.kill()
            scans += process.communicate()[0].splitlines()
    figures = {name: _summary(rounds) for name, rounds in (("without_scan", quiet), ("during_scan", scanned))}
    rates = [int(rows) / float(seconds) for rows, seconds in map(str.split, scans)]
    keep(
        "scan_accuracy",
        {
            "pending": arguments.pending,
            "due_per_s": arguments.rate,
            "scanner_nice": arguments.nice,
            **figures,
            "p99_ratio": round(figures["during_scan"]["p99_ms"] / figures["without_scan"]["p99_ms"], 2),
            "goal_ratio": GOAL,
            "whole_scans": len(rates),
            "scan_rows_per_s": round(median(rates)) if rates else None,
        },
    )


async def _fill(client: dejaq.Client, pending: int) -> None:
    start = client.now_ms() + FAR_MS
    async with client.producer("t", group="bench") as producer:
        for number in range(0, pending, BATCH):
            times = [start + (number + row) // 10 for row in range(BATCH)]
            await producer.send_batch([b"x" * 100] * BATCH, at=times)


async def _watch(client: dejaq.Client, rate: int, seconds: int) -> list[float]:
    """Create messages over some seconds and consume them; returns how late each was, in ms."""
    late: list[float] = []
    wanted, start = rate * seconds, client.now_ms() + int(LEAD_S * 1_000)
    chance = random.Random(wanted)
    async with client.producer("t", group="bench") as producer:
        times = sorted(start + chance.randrange(seconds * 1_000) for _ in range(wanted))
        for number in range(0, wanted, BATCH):
            part = times[number : number + BATCH]
            await producer.send_batch([b"x" * 100] * len(part), at=part)
    window = Window(DELETES_IN_FLIGHT)
    async with client.consumer("t", name="watch") as consumer:
        async for batch in consumer.batches(500):
            now_ms = time.time_ns() / 1e6
            late += [now_ms - ts for ts in batch.ts]
            # As in the accuracy bench: the next messages do not wait for the answer to the last delete.
            await window.add(batch.delete())
            if len(late) >= wanted:
                break
        await window.drain()
    return late


def _summary(rounds: list[list[float]]) -> dict[str, float]:
    def share(part: float) -> float:
        return round(median(sorted(late)[int(len(late) * part)] for late in rounds), 2)

    return {"p50_ms": share(0.5), "p99_ms": share(0.99), "p999_ms": share(0.999)}


if __name__ == "__main__":
    main()
