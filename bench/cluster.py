"""Brokers on PostgreSQL and etcd: throughput by the number of brokers, and accuracy between two brokers.

    python -m bench.cluster [--servers 2]

Everything runs on this machine: more brokers share the same cores, so throughput shows what a cluster costs, not how it
grows. Before each run two clients do the same with a bare SKIP LOCKED table on the same server (`bench.postgres_cost`);
the shares are of what they reach. Accuracy is measured with every message created through one broker and consumed
through another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg

import dejaq
from bench.harness.figures import lateness_figures
from bench.harness.floor import Floor
from bench.harness.server import exit_at_sigterm
from bench.harness.window import Window
from bench.postgres_cost import BARE, BARE_SETTINGS, SETTINGS, BareTable
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.postgres import PostgresServer

BATCH = 1_000
BODY = b"x" * 100
TICK_MS = 10
LEAD_MS = 200
CLIENT_SECONDS = 120
# So many that a slow commit does not delay the next delivery.
DELETES_IN_FLIGHT = 64
BATCHES_IN_FLIGHT = 4


def produce(url: str, topic: str, count: int) -> tuple[int, int]:
    """Create messages that are due now, in batches with several in progress; returns the times of begin and end."""

    async def work() -> tuple[int, int]:
        async with dejaq.connect(url, follow=False) as client, client.producer(topic) as producer:
            window = Window(BATCHES_IN_FLIGHT)
            began = time.time_ns()
            for _ in range(count // BATCH):
                await window.add(producer.send_batch([BODY] * BATCH, delay=0))
            await window.drain()
            return began, time.time_ns()

    return asyncio.run(work())


def consume(url: str, topic: str, name: str) -> tuple[int, int, int]:
    """Lease and delete until no message has come for some time.

    Returns the count, and the times of the first and the last message.
    """

    async def work() -> tuple[int, int, int]:
        count, first, last = 0, 0, 0
        async with dejaq.connect(url, follow=False) as client, client.consumer(topic, name=name) as consumer:
            batches = consumer.batches(BATCH)
            window = Window(DELETES_IN_FLIGHT)

            async def delete(batch: dejaq.Batch) -> None:
                nonlocal last
                await batch.delete()
                last = time.time_ns()

            while True:
                try:
                    batch = await asyncio.wait_for(anext(batches), 2)
                except (TimeoutError, StopAsyncIteration):
                    await window.drain()
                    return count, first, last
                first = first or time.time_ns()
                count += len(batch)
                await window.add(delete(batch))

    return asyncio.run(work())


def bare_produce(dsn: str, worker: int, count: int) -> tuple[int, int]:
    """Like `produce`, into a bare table."""

    async def work() -> tuple[int, int]:
        connection = await asyncpg.connect(dsn, server_settings=BARE_SETTINGS)
        table = BareTable([connection] * (worker + 1))
        began = time.time_ns()
        for number in range(count // BATCH):
            await table.create(worker, number)
        ended = time.time_ns()
        await connection.close()
        return began, ended

    return asyncio.run(work())


def bare_consume(dsn: str, worker: int) -> tuple[int, int, int]:
    """Like `consume`, from a bare table."""

    async def work() -> tuple[int, int, int]:
        count, last = 0, 0
        connection = await asyncpg.connect(dsn, server_settings=BARE_SETTINGS)
        table = BareTable([connection] * (worker + 1))
        first = time.time_ns()
        while done := await table.consume(worker, 0):
            count, last = count + done, time.time_ns()
        await connection.close()
        return count, first, last

    return asyncio.run(work())


def produce_timed(url: str, topic: str, start_ms: int, seconds: int, per_s: int) -> None:
    """Create messages a little before their times, `per_s` of them due each second."""

    async def work() -> None:
        async with dejaq.connect(url, follow=False) as client, client.producer(topic) as producer:
            step = per_s * TICK_MS // 1_000
            window = Window(DELETES_IN_FLIGHT)

            async def send(times: list[int]) -> None:
                await producer.send_batch([BODY] * step, at=times)

            for tick in range(seconds * 1_000 // TICK_MS):
                at = start_ms + tick * TICK_MS
                await asyncio.sleep(max(0.0, (at - LEAD_MS) / 1_000 - time.time()))
                await window.add(send([at + number * TICK_MS // step for number in range(step)]))
            await window.drain()

    asyncio.run(work())


def consume_timed(url: str, topic: str, count: int) -> bytes:
    """How late each message was delivered, in microseconds."""

    async def work() -> bytes:
        late = array("q")
        async with (
            dejaq.connect(url, follow=False) as client,
            client.consumer(topic, name="timed", max_messages=count) as consumer,
        ):
            window = Window(DELETES_IN_FLIGHT)

            async def delete(batch: dejaq.Batch) -> None:
                await batch.delete()

            async for batch in consumer.batches(BATCH):
                now = time.time_ns() // 1_000
                late.extend(now - ts * 1_000 for ts in batch.ts)
                await window.add(delete(batch))
            await window.drain()
        return late.tobytes()

    return asyncio.run(work())


def _child(pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(function(*arguments))


class Clients:
    """Client processes that were started together."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pipes: list[Any] = []

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function in a process of its own."""
        ours, theirs = self._context.Pipe(duplex=False)
        self._context.Process(target=_child, args=(theirs, function, arguments), daemon=True).start()
        theirs.close()
        self._pipes.append(ours)

    def results(self) -> list[Any]:
        """The results of the processes, in the order of their start."""
        for pipe in self._pipes:
            if not pipe.poll(CLIENT_SECONDS):
                raise TimeoutError("a client did not finish in time")
        return [pipe.recv() for pipe in self._pipes]


async def rates(
    messages: int, make: tuple[Callable[..., Any], list[Any]], take: tuple[Callable[..., Any], list[Any]]
) -> dict[str, float]:
    """The rate of two producers together, then of two consumers together."""
    function, places = make
    producers = Clients()
    for arguments in places:
        producers.start(function, *arguments, messages // 2)
    spans = await asyncio.to_thread(producers.results)
    created = messages * 1e9 / (max(end for _, end in spans) - min(began for began, _ in spans))
    function, places = take
    consumers = Clients()
    for arguments in places:
        consumers.start(function, *arguments)
    done = [one for one in await asyncio.to_thread(consumers.results) if one[0]]
    count = sum(one[0] for one in done)
    assert count == messages, f"{count} of {messages} were delivered"
    consumed = count * 1e9 / (max(one[2] for one in done) - min(one[1] for one in done))
    return {"create": created, "lease_delete": consumed}


async def throughput(cluster: BrokerCluster, dsn: str, messages: int) -> dict[str, float]:
    """Two clients with a bare table, then two with the brokers, each with its own broker when there are two."""
    bare = await rates(
        messages, (bare_produce, [(dsn, worker) for worker in range(2)]), (bare_consume, [(dsn, 0), (dsn, 1)])
    )
    urls = [cluster.brokers[number % len(cluster.brokers)].url for number in range(2)]
    topic = f"bench-{time.time_ns()}"
    async with dejaq.connect(cluster.url) as client:
        await client.create_topic(topic, buckets=16)
        consumers = [(url, topic, f"consumer-{number}") for number, url in enumerate(urls)]
        ours = await rates(messages, (produce, [(url, topic) for url in urls]), (consume, consumers))
        await client.delete_topic(topic)
    figures = {f"{name}_per_s": round(rate) for name, rate in ours.items()}
    figures |= {f"bare_{name}_per_s": round(rate) for name, rate in bare.items()}
    return figures | {f"{name}_share": round(rate / bare[name], 2) for name, rate in ours.items()}


async def accuracy(cluster: BrokerCluster, seconds: int, per_s: int) -> dict[str, Any]:
    """Lateness from the producer at the first broker to the consumer at the second, compared with a bare sleeper."""
    async with dejaq.connect(cluster.url) as client:
        topic = f"timed-{time.time_ns()}"
        await client.create_topic(topic, buckets=16)
        clients = Clients()
        clients.start(consume_timed, cluster.brokers[1].url, topic, seconds * per_s)
        while not [one for one in (await client.info()).clients if one.state == "subscribed"]:
            await asyncio.sleep(0.1)
        start_ms = time.time_ns() // 1_000_000 + 3_000
        clients.start(produce_timed, cluster.brokers[0].url, topic, start_ms, seconds, per_s)
        with Floor(start_ms * 1_000_000, (start_ms + seconds * 1_000) * 1_000_000) as floor:
            results = await asyncio.to_thread(clients.results)
            figures = floor.figures()
        await client.delete_topic(topic)
    late = array("q")
    late.frombytes(results[0])
    return {"due_per_s": per_s, "early": sum(one < 0 for one in late), **lateness_figures(late), **figures}


def _on_disk(folder: Path, number: int) -> Path:
    """A directory on a real disk that PostgreSQL's user can enter."""
    folder.chmod(0o755)
    place = folder / f"postgres-{number}"
    place.mkdir()
    return place


async def run(messages: int, seconds: int, per_s: int, repeats: int, servers: int) -> dict[str, Any]:
    """Every figure, as medians of the repeats; the bare table is on the first of the servers."""
    found: dict[str, Any] = {"messages": messages, "servers": servers, "throughput": {}, "accuracy": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        every = [
            stack.enter_context(PostgresServer(_on_disk(Path(folder), number), settings=SETTINGS))
            for number in range(servers)
        ]
        postgres, storage = every[0], " ".join(server.dsn for server in every)
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(BARE)
        await connection.close()
        async with EtcdCluster(Path(folder)) as etcd:
            for size in (1, 2, 3):
                async with BrokerCluster(storage, etcd.url, size=size) as cluster:
                    runs = [await throughput(cluster, postgres.dsn, messages) for _ in range(repeats)]
                    found["throughput"][size] = {name: median(one[name] for one in runs) for name in runs[0]}
                    print(f"{size} brokers: {found['throughput'][size]}", file=sys.stderr, flush=True)
                    if size == 2:
                        found["accuracy"] = [await accuracy(cluster, seconds, per_s) for _ in range(repeats)]
                        print(f"accuracy: {found['accuracy']}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure and print."""
    exit_at_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--per-s", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--servers", type=int, default=1, help="servers of PostgreSQL, each a shard")
    arguments = parser.parse_args()
    print(
        json.dumps(
            asyncio.run(
                run(arguments.messages, arguments.seconds, arguments.per_s, arguments.repeats, arguments.servers)
            )
        )
    )


if __name__ == "__main__":
    main()
