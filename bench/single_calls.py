"""What single calls cost over WebSocket: python -m bench.single_calls

One client, one call after the other, on a broker with the embedded store in a process of its own: the time of a call,
and the processor time at the client and at the broker. Each call waits for a sync of the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import dejaq
from bench.harness.server import cpu_seconds
from dejaq.testing.servers.process import BrokerProcess

COUNT = 1_000
AT_ONCE = 32
# As in the workloads L9 and L16.
IN_FLIGHT = 64
# As in the workload L6, of each connection.
PRODUCERS, CONNECTIONS = 20, 10
HOUR = 3_600.0


async def measure(
    pid: int, count: int, once: Callable[[int], Awaitable[object]], *, at_once: int = 1
) -> dict[str, float]:
    """The median time of a call, calls per second, and the processor time of each."""
    times: list[float] = []
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            began = time.perf_counter()
            await once(number)
            times.append(time.perf_counter() - began)

    wall, client, broker = time.perf_counter(), time.process_time(), cpu_seconds(pid)
    await asyncio.gather(*(work() for _ in range(at_once)))
    wall = time.perf_counter() - wall
    return {
        "p50_ms": round(statistics.median(times) * 1e3, 3),
        "per_s": round(count / wall),
        "client_cpu_us": round((time.process_time() - client) / count * 1e6, 1),
        "broker_cpu_us": round((cpu_seconds(pid) - broker) / count * 1e6, 1),
    }


async def calls(client: dejaq.Client, pid: int, count: int) -> dict[str, dict[str, float]]:
    """The figures of each kind of call."""
    figures: dict[str, dict[str, float]] = {}
    await client.create_topic("t", buckets=16)
    async with client.producer("t", group="g") as producer:
        figures["send"] = await measure(pid, count, lambda n: producer.send(b"x" * 100, id=f"a{n}", delay=HOUR))
        figures["edit"] = await measure(pid, count, lambda n: producer.edit(f"a{n}", body=b"y"))
        figures["move"] = await measure(pid, count, lambda n: producer.move([f"a{n}"], delay=2 * HOUR))
        figures["cancel"] = await measure(pid, count, lambda n: producer.cancel([f"a{n}"]))
        figures["send, 32 at once"] = await measure(
            pid, 4 * count, lambda n: producer.send(b"x" * 100, id=f"b{n}", delay=HOUR), at_once=AT_ONCE
        )
        figures |= await changes(client, producer, pid, 4 * count)
        await producer.send_batch([b"x" * 100] * count)
        async with client.consumer("t", name="c", max_in_flight=2 * count) as consumer:

            async def delete(_: int) -> None:
                await (await anext(consumer)).delete()

            figures["delete"] = await measure(pid, count, delete)

            async def through(_: int) -> None:
                await producer.send(b"x" * 100)
                await (await anext(consumer)).delete()

            figures["send, deliver, delete"] = await measure(pid, count, through)
            delivered: list[float] = []

            async def deliver(_: int) -> None:
                began = time.perf_counter()
                sending = asyncio.ensure_future(producer.send(b"x" * 100))
                lease = await anext(consumer)
                delivered.append(time.perf_counter() - began)
                await sending
                await lease.delete()

            await measure(pid, count, deliver)
            figures["due now, send to user code"] = {"p50_ms": round(statistics.median(delivered) * 1e3, 3)}
    figures["transaction, 32 at once"] = await transactions(client, pid, 4 * count)
    figures[f"append, {IN_FLIGHT} at once"] = await appends(client, pid, 10 * count)
    return figures


async def changes(client: dejaq.Client, producer: dejaq.Producer, pid: int, count: int) -> dict[str, dict[str, float]]:
    """Calls by id of many tasks."""
    once: dict[str, Callable[[int], Awaitable[object]]] = {
        "get": lambda n: client.get("t", f"b{n}"),
        "edit": lambda n: producer.edit(f"b{n}", body=b"y"),
        "move": lambda n: producer.move([f"b{n}"], delay=2 * HOUR),
        "cancel": lambda n: producer.cancel([f"b{n}"]),
    }
    return {
        f"{name}, {IN_FLIGHT} at once": await measure(pid, count, call, at_once=IN_FLIGHT)
        for name, call in once.items()
    }


async def appends(client: dejaq.Client, pid: int, count: int) -> dict[str, float]:
    """Messages that many tasks append to a log."""
    await client.create_topic("log", kind="log", buckets=16)
    log = client.log("log")
    return await measure(pid, count, lambda _: log.append(b"x" * 100), at_once=IN_FLIGHT)


async def sends_of_many(url: str, pid: int, count: int) -> dict[str, float]:
    """Sends of many producers, each with one message in flight."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(dejaq.connect(url)) for _ in range(CONNECTIONS)]
        await clients[0].create_topic("many", buckets=16)
        idle = [await stack.enter_async_context(one.producer("many")) for one in clients for _ in range(PRODUCERS)]

        async def once(number: int) -> None:
            producer = idle.pop()
            await producer.send(b"x" * 100, id=f"m{number}", delay=HOUR)
            idle.append(producer)

        return await measure(pid, count, once, at_once=len(idle))


async def transactions(client: dejaq.Client, pid: int, count: int) -> dict[str, float]:
    """One message in, one out."""
    for topic in ("in", "out"):
        await client.create_topic(topic, buckets=16)
    async with client.producer("in") as producer:
        for _ in range(0, count, 1_000):
            await producer.send_batch([b"x" * 100] * 1_000)
    async with client.consumer("in", name="worker", max_in_flight=count) as consumer:

        async def once(_: int) -> None:
            batch = await consumer.take(1)
            async with client.transaction() as transaction:
                transaction.delete(batch)
                transaction.send("out", b"x" * 100)

        return await measure(pid, count, once, at_once=AT_ONCE)


async def main(count: int) -> None:
    """Print a line for each kind of call."""
    with tempfile.TemporaryDirectory(prefix="dejaq-bench-") as folder:
        async with BrokerProcess(Path(folder) / "data") as broker, dejaq.connect(broker.url) as client:
            for name, figures in (await calls(client, broker.pid, count)).items():
                print(json.dumps({"call": name, **figures}), flush=True)
            many = await sends_of_many(broker.url, broker.pid, 10 * count)
            print(json.dumps({"call": f"send, {CONNECTIONS} x {PRODUCERS} producers", **many}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
