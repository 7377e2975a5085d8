"""Measures the memory of a read: how large the broker and Spark's Python workers grow, by the size of the topic.

    python -m bench.scan_memory --rows 1000000 5000000 20000000

Writes the figures to `bench/results/scan_memory.json`. Each topic is read whole by the connector, every column and
without bodies, and discarded (Spark's `noop`); meanwhile the resident memory of the processes is read ten times
per second. The broker is restarted before each read, so that memory from filling the topic does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import dejaq
from bench.figures import keep
from dejaq.pipeline.spark.session import start
from dejaq.testing.servers.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 10_000
IN_FLIGHT = 8
FAR_MS = 30 * 86_400_000
RATE_PER_MS = 10
LOOK_S = 0.1
WORKER = b"pyspark.daemon\0pyspark.worker"


def main() -> None:
    """Fill a topic of each size, read it, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000, 20_000_000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dejaq-memory-") as folder:
        asyncio.run(_measure(Path(folder), arguments.rows))


async def _measure(home: Path, sizes: list[int]) -> None:
    figures: list[dict[str, float]] = []
    spark = await asyncio.to_thread(start)
    options = ["--log-level", "warning", "--journal", "off"]
    try:
        async with BrokerProcess(home / "data", options=options) as broker:
            for rows in sizes:
                topic = f"t{rows}"
                async with dejaq.connect(broker.url) as client:
                    await client.create_topic(topic)
                    await _fill(client, topic, rows)
                broker.terminate()
                await broker.exited()
                await broker.restart()
                figures.append({"rows": rows, **await asyncio.to_thread(_read, spark, broker, topic, rows)})
                print(figures[-1], file=sys.stderr, flush=True)
    finally:
        spark.stop()
    keep("scan_memory", {"reads": figures})


async def _fill(client: dejaq.Client, topic: str, rows: int) -> None:
    """Messages without bodies, with generated ids, one after the other on the timeline."""
    begin = int(time.time() * 1_000) + FAR_MS
    free = asyncio.Semaphore(IN_FLIGHT)

    async def send(first: int) -> None:
        async with free:
            count = min(BATCH, rows - first)
            at = [begin + row // RATE_PER_MS for row in range(first, first + count)]
            await producer.send_batch([b""] * count, at=at)

    async with client.producer(topic, group="bench") as producer, asyncio.TaskGroup() as group:
        for first in range(0, rows, BATCH):
            await free.acquire()
            free.release()
            group.create_task(send(first))


def _read(spark: SparkSession, broker: BrokerProcess, topic: str, rows: int) -> dict[str, float]:
    frame = spark.read.format("dejaq").option("dejaq.url", broker.url).option("subscribe", topic)
    watch = _Watch(broker.pid)
    begun = time.perf_counter()
    with watch:
        frame.option("includeBody", "false").load().write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begun
    return {"rows_per_s": round(rows / seconds), **watch.peaks_mb}


class _Watch:
    """Measures the memory of the broker and of the largest Python worker until its block ends."""

    def __init__(self, broker: int) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.peaks_mb: dict[str, float] = {"broker_before_mb": _resident_mb(broker), "broker_mb": 0.0, "worker_mb": 0.0}

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for name, pids in (("broker_mb", [self._broker]), ("worker_mb", _workers())):
                self.peaks_mb[name] = max(self.peaks_mb[name], *map(_resident_mb, pids), 0.0)


def _workers() -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if WORKER in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def _resident_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    kilobytes = next((line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")), "0")
    return round(int(kilobytes) / 1024, 1)


if __name__ == "__main__":
    main()
