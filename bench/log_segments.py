"""What it costs to move the older batches of logs into segment files: python -m bench.log_segments --megabytes 2000.

In process, without a network: batches of 1,000 messages are appended to a log of 16 buckets, eight at a time, once
with segments and once without; then everything is read from the beginning. Prints messages per second, processor time
per message, and the longest step of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from pathlib import Path

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.storage.log.base import Append
from dejaq.storage.rocksdb.log.opening import SegmentSettings
from dejaq.storage.rocksdb.store import RocksStorage

ROWS, BUCKETS, IN_FLIGHT = 1_000, 16, 8
NOW = 1_700_000_000_000


def batch_of(chance: random.Random, size: int) -> bytes:
    """Messages of numbers as text, of which zstd removes about the half."""
    return chance.randbytes(ROWS * size // 2).hex().encode()


class Lag:
    """How late a task is that wants to run each millisecond."""

    def __init__(self) -> None:
        self.late: list[float] = []

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.001)
            self.late.append(time.monotonic() - began - 0.001)

    def take(self) -> str:
        late, self.late = sorted(self.late), []
        return f"loop late p99 {late[len(late) * 99 // 100] * 1e3:.1f} ms, max {late[-1] * 1e3:.1f} ms"


async def append_all(storage: RocksStorage, topic: Topic, batches: list[bytes], count: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for n in numbers:
            append = Append(n % BUCKETS, batches[n % len(batches)], ROWS)
            await storage.logs.append(topic, [append], NOW + n, DIRECT_CALL)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def read_all(storage: RocksStorage, topic: Topic) -> int:
    count = 0
    for bucket in range(BUCKETS):
        at = 0
        while True:
            part = await storage.logs.read(topic, bucket, at, end=None, bytes_max=1 << 20, committed=True, now=NOW)
            if part.next == at:
                break
            count, at = count + sum(one.count for one in part.batches), part.next
    return count


async def measure(folder: Path, megabytes: int, size: int, settings: SegmentSettings, name: str) -> None:
    chance = random.Random(1)
    batches = [batch_of(chance, size) for _ in range(50)]
    count = megabytes * 1_000_000 // len(batches[0])
    storage, topic = (
        RocksStorage(folder, log_segments=settings),
        Topic("log", 1, TopicSettings(kind=TopicKind.LOG, buckets=BUCKETS)),
    )
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    lag = Lag()
    watching = asyncio.create_task(lag.run())
    began, cpu = time.monotonic(), time.process_time()
    await append_all(storage, topic, batches, count)
    spent, cpu = time.monotonic() - began, time.process_time() - cpu
    messages = count * ROWS
    print(f"{name}: append {messages / spent:,.0f}/s, {cpu / messages * 1e6:.2f} us per message, {lag.take()}")
    began, cpu = time.monotonic(), time.process_time()
    await storage.logs.segments.settle()
    spent, cpu = time.monotonic() - began, time.process_time() - cpu
    stats = storage.stats()
    moved, files = stats["log_segments_moved_bytes"], sum(one.stat().st_size for one in (folder / "segments").iterdir())
    print(
        f"  moved {moved / 1e6:,.0f} MB into {files / 1e6:,.0f} MB of files; {spent:.1f} s behind the appends; "
        f"rewritten {stats['log_segments_rewritten_bytes'] / 1e6:,.0f} MB; "
        f"commit log {stats['log_bytes'] / 1e6:,.0f} MB"
    )
    if lag.late:
        print(f"  {lag.take()}")
    began, cpu = time.monotonic(), time.process_time()
    read = await read_all(storage, topic)
    spent, cpu = time.monotonic() - began, time.process_time() - cpu
    print(f"  read {read / spent:,.0f}/s, {cpu / read * 1e6:.2f} us per message, {lag.take()}")
    watching.cancel()
    await storage.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=100)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, {arguments.megabytes} MB, messages of {arguments.size} bytes")
    for name, settings in (
        ("without segments", SegmentSettings(bytes=1 << 50)),
        ("with segments", SegmentSettings(bytes=8 << 20)),
    ):
        with tempfile.TemporaryDirectory(prefix="dejaq-bench-") as folder:
            asyncio.run(measure(Path(folder), arguments.megabytes, arguments.size, settings, name))


if __name__ == "__main__":
    main()
