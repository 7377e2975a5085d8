"""A demonstration: schedule 20,000 messages, deliver each on time, kill -9 the broker in the middle, lose nothing.

Ends with exit code 0 only when every message was delivered, none early, and every repeat is explained.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import dejaq
from dejaq.cli.terminal.bars import draw

MESSAGES = 20_000
BATCH = 1_000
FIRST_S, SPAN_S = 2.0, 12.0
KILL_AFTER = MESSAGES // 2
GIVE_UP_S = 45.0
TOPIC = "reminders"
EDGES_MS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 1_000, 10_000)


@dataclass
class Broker:
    """A broker in a process of its own, which can be killed and started again with the same port and data."""

    data: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"dejaq://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "dejaq", "serve", "--data", str(self.data)]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        log = (self.data.parent / "broker.log").open("ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=20)


@dataclass
class Record:
    """The sends, deliveries and deletes of each message."""

    due: dict[str, int] = field(default_factory=dict)
    deliveries: dict[str, int] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    lateness_ms: list[float] = field(default_factory=list)
    early: int = 0
    unexplained: int = 0
    lost_leases: int = 0

    def delivered(self, ids: list[str], due: list[int], attempts: list[int], now_us: int) -> None:
        for message_id, ts, attempt in zip(ids, due, attempts, strict=True):
            late = now_us / 1_000 - ts
            self.early += late < 0
            if attempt == 1:
                self.lateness_ms.append(late)
            # After an acknowledged delete, the message must never be delivered again.
            self.unexplained += message_id in self.deleted
            self.deliveries[message_id] = self.deliveries.get(message_id, 0) + 1


async def produce(client: dejaq.Client, record: Record, progress: Progress) -> None:
    """Schedule every message at a random millisecond of the coming seconds."""
    bar = progress.add_task("schedule", total=MESSAGES)
    start = client.now_ms() + int(FIRST_S * 1_000)
    async with client.producer(TOPIC, group="demo") as producer:
        for number in range(0, MESSAGES, BATCH):
            times = [start + random.randrange(int(SPAN_S * 1_000)) for _ in range(BATCH)]
            bodies = [f"reminder {number + row}".encode() for row in range(BATCH)]
            results = await producer.send_batch(bodies, at=times)
            record.due.update(zip(results.ids, times, strict=True))
            progress.advance(bar, BATCH)


async def consume(client: dejaq.Client, name: str, record: Record, progress: Progress, bar: object) -> None:
    """Lease the due messages, record the time, and delete them."""
    async with client.consumer(TOPIC, name=name, lease=5.0) as consumer:
        async for batch in consumer.batches(500):
            now_us = time.time_ns() // 1_000
            ids = batch.ids
            record.delivered(ids, batch.ts, batch.attempts, now_us)
            progress.update(bar, completed=len(record.deliveries))  # type: ignore[arg-type]
            results = await batch.delete(results=True)
            failed = results.failed
            record.lost_leases += len(failed)
            record.deleted.update(i for row, i in enumerate(ids) if row not in failed)


async def interrupt(broker: Broker, record: Record, console: Console) -> None:
    """Kill the broker half-way, without warning, and start it again."""
    while len(record.deliveries) < KILL_AFTER:
        await asyncio.sleep(0.01)
    broker.kill()
    console.print(f"[bold red]kill -9[/] after {len(record.deliveries):,} deliveries; starting the broker again")
    broker.start()


async def run(broker: Broker, console: Console) -> Record:
    """The whole demonstration."""
    record = Record()
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        broker.start()
        async with dejaq.connect(broker.url, deadline=30.0) as client:
            await client.create_topic(TOPIC)
            await produce(client, record, progress)
            bar = progress.add_task("deliver", total=MESSAGES)
            names = ("consumer-1", "consumer-2")
            consumers = [asyncio.create_task(consume(client, name, record, progress, bar)) for name in names]
            interruption = asyncio.create_task(interrupt(broker, record, console))
            deadline = time.monotonic() + GIVE_UP_S
            while len(record.deleted) < MESSAGES and time.monotonic() < deadline:
                if any(task.done() for task in consumers):
                    break
                await asyncio.sleep(0.05)
            for task in (*consumers, interruption):
                task.cancel()
            outcomes = await asyncio.gather(*consumers, interruption, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    console.print(f"[bold red]{outcome}[/]")
    return record


def show(record: Record, console: Console) -> bool:
    """Print the summary; returns whether all promises were kept."""
    lost = len(record.due) - len(record.deliveries.keys() & record.due.keys())
    unexpected = len(record.deliveries.keys() - record.due.keys())
    repeats = sum(count - 1 for count in record.deliveries.values())
    good = not (lost or unexpected or record.early or record.unexplained) and len(record.due) == MESSAGES
    table = Table(show_header=False, box=None)
    rows: dict[str, int | str] = {
        "created": len(record.due),
        "delivered": len(record.deliveries),
        "lost": lost,
        "early": record.early,
        "unexpected": unexpected,
        "repeats": f"{repeats:,} explained by the kill, {record.unexplained} unexplained",
    }
    for name, value in rows.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else value)
    console.print(table)
    late = sorted(record.lateness_ms)
    if late:
        p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        console.print(f"\nlateness in user code: p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {late[-1]:,.0f} ms")
        labels = [f"{low:>6,} to {high:>6,} ms" for low, high in itertools.pairwise(EDGES_MS)]
        bounds = itertools.pairwise(EDGES_MS)
        counts = [sum(low <= value < high for value in late) for low, high in bounds]
        console.print("\n".join(draw(labels, counts, width=min(console.width, 100))), highlight=False)
        console.print("(the largest values are of messages that became due while the broker was down)")
    console.print("\n[bold green]every promise was kept[/]" if good else "\n[bold red]something is wrong: see above[/]")
    return good


def audit(broker: Broker, console: Console) -> bool:
    """Read the journal into a lake with Spark, audit it by id, and write the report; returns
    whether the audit passed.
    """
    lake, report = broker.data.parent / "lake", Path("demo-report.html").resolve()
    console.print("\n[bold]the pipeline[/]: every message's life, read from the journal by Spark")
    command = [sys.executable, "-m", "dejaq", "pipeline", "report", "--output", str(report), "--live"]
    command += ["--journal", str(broker.data / "journal"), "--lake", str(lake), "--url", broker.url]
    if subprocess.run(command, check=False).returncode:
        console.print("[bold red]the audit found faults[/]")
        return False
    console.print("[bold green]the audit found no fault[/]: created = deleted + cancelled + dead-lettered + pending")
    console.print(f"\nthe report: [bold]{report}[/]")
    return True


def main() -> int:
    """Run the demonstration; returns 0 when every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", action="store_true", help="end with the pipeline's audit and report")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="dejaq-demo-") as scratch, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        broker = Broker(Path(scratch) / "data", probe.getsockname()[1])
        probe.close()
        try:
            record = asyncio.run(run(broker, console))
            good = show(record, console)
            if arguments.pipeline:
                good = audit(broker, console) and good
            return 0 if good else 1
        finally:
            if broker.process is not None and broker.process.poll() is None:
                broker.stop()


if __name__ == "__main__":
    raise SystemExit(main())
