"""The cost of encryption at rest: the same batches through a plain and an encrypted topic of one broker, in turns.

    python -m bench.encryption_cost --rounds 5 --messages 100000

Writes the medians of both and of the ratios of pairs to `bench/results/encryption_cost.json`, for bodies of 100 bytes
and of 1 KB. The broker's processor time per message depends less on other processes than the rates do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import dejaq
from bench.figures import keep
from dejaq.storage.encrypted.providers.listed import new_key_line
from dejaq.testing.servers.process import BrokerProcess

BATCH = 1_000
AT_ONCE = 8
NAMES = ("create_per_s", "create_us", "lease_delete_per_s", "lease_delete_us")


def main() -> None:
    """Run the rounds and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=100_000)
    arguments = parser.parse_args()
    figures: dict[str, object] = {"rounds": arguments.rounds, "messages": arguments.messages}
    for size in (100, 1_000):
        figures[f"bytes_{size}"] = asyncio.run(_compared(size, arguments.messages, arguments.rounds))
    keep("encryption_cost", figures)


async def _compared(size: int, messages: int, rounds: int) -> dict[str, dict[str, float]]:
    runs: dict[str, list[dict[str, float]]] = {"none": [], "bodies": []}
    with tempfile.TemporaryDirectory(prefix="dejaq-encryption-cost-") as folder:
        file = Path(folder) / "keys"
        file.touch(mode=0o600)
        file.write_text(new_key_line("k1"))
        options = ["--encryption-keys", f"file:{file}", "--log-level", "warning"]
        async with (
            BrokerProcess(Path(folder) / "data", options=options) as broker,
            dejaq.connect(broker.url) as client,
        ):
            for encryption in runs:
                await client.create_topic(encryption, encryption=encryption)
            for number in range(rounds + 1):
                for encryption in list(runs)[:: 1 if number % 2 else -1]:
                    figures = await run_batches(client, broker.pid, encryption, size, messages)
                    if number:
                        runs[encryption].append(figures)
                        print(f"{size} bytes, round {number}, {encryption}: {figures}", file=sys.stderr, flush=True)
    compared = {}
    for name in NAMES:
        plain, sealed = [[run[name] for run in runs[encryption]] for encryption in ("none", "bodies")]
        ratio = median(b / a for a, b in zip(plain, sealed, strict=True))
        compared[name] = {"none": round(median(plain), 2), "bodies": round(median(sealed), 2), "ratio": round(ratio, 3)}
    return compared


async def run_batches(client: dejaq.Client, pid: int, topic: str, size: int, messages: int) -> dict[str, float]:
    """Create messages in batches, then lease and delete them; rates, and the broker's processor time per message."""
    batches = [[os.urandom(size) for _ in range(BATCH)] for _ in range(8)]
    began, cpu = time.monotonic(), _cpu_seconds(pid)
    async with client.producer(topic) as producer:
        gate = asyncio.Semaphore(AT_ONCE)

        async def send(number: int) -> None:
            async with gate:
                await producer.send_batch(batches[number % len(batches)], delay=0)

        await asyncio.gather(*map(send, range(messages // BATCH)))
    created, created_cpu = time.monotonic(), _cpu_seconds(pid)
    async with client.consumer(topic) as consumer:
        left = messages
        while left:
            async for segment in consumer.batches():
                await segment.delete()
                left -= len(segment)
                if left <= 0:
                    break
    ended, ended_cpu = time.monotonic(), _cpu_seconds(pid)
    return {
        "create_per_s": messages / (created - began),
        "create_us": (created_cpu - cpu) / messages * 1e6,
        "lease_delete_per_s": messages / (ended - created),
        "lease_delete_us": (ended_cpu - created_cpu) / messages * 1e6,
    }


def _cpu_seconds(pid: int) -> float:
    """The processor time of the broker's threads in nanoseconds' resolution: the process's own counts hundredths."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


if __name__ == "__main__":
    main()
