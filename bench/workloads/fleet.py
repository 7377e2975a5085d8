"""L7: a fleet. Many consumers join one topic, hold each message for a while, and a fifth of them leaves at once.

No peer has consumers that share a topic by buckets, so this workload has no peer; its lateness is compared with that of
a bare sleeper.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import dejaq
from bench.harness.apart import apart
from bench.harness.figures import Figures, lateness_figures, us_each
from bench.harness.floor import Floor
from bench.harness.stage import Outcome, Stage, staged
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.dejaq_broker import TOPIC
from bench.workloads.sizes import Sizes

CONSUMERS_PER_CONNECTION = 50
HOLD_SECONDS = 0.1
PREFIX = "fleet-"
# A process of clients needs this long to start.
START_SECONDS = 5.0
IDLE_SECONDS = 5.0
# How long the consumers that stay may take until messages are as punctual as before.
SETTLE_SECONDS = 5.0
# Beyond the last due time, until the run ends without the messages that are missing.
GRACE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Timetable:
    """When what happens, in epoch seconds: the fleet joins, is idle, works, and after a part has left works on."""

    begin: float
    joined: float
    due: float
    leave: float
    end: float

    @classmethod
    def of(cls, sizes: Sizes) -> Timetable:
        """The timetable of a run that starts now."""
        begin = time.time() + START_SECONDS
        joined = begin + sizes.fleet_join_seconds
        due = joined + IDLE_SECONDS
        leave = due + sizes.fleet_seconds
        return cls(begin, joined, due, leave, leave + SETTLE_SECONDS + sizes.fleet_seconds)


@dataclass(slots=True)
class FleetPart:
    """What one process has seen: when its consumers had joined, and (due, late) of each message in microseconds.

    `numbers` are those of the messages; `abandoned` of those that a leaving consumer held and did not delete. They come
    again when their leases end.
    """

    joined: float
    due_us: bytes
    late_us: bytes
    numbers: bytes
    abandoned: bytes


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome."""
    sizes = plan.sizes
    with staged(system) as stage:
        apart(make_topic, stage.server.address, sizes.fleet_buckets)
        times = Timetable.of(sizes)
        seconds_max = times.end - time.time() + 2 * GRACE_SECONDS
        floor = Floor(int(times.due * 1e9), int(times.end * 1e9))
        with floor, ThreadPoolExecutor(sizes.fleet_processes + 1) as pool:
            call = partial(apart, seconds_max=seconds_max)
            parts = [
                pool.submit(call, consume, stage.server.address, sizes, part, times)
                for part in range(sizes.fleet_processes)
            ]
            sent = pool.submit(call, produce, stage.server.address, sizes, times)
            idle = _idle_percent(stage, times)
            before = stage.cpu_seconds()
            count = sent.result()
            found: list[FleetPart] = [part.result() for part in parts]
            cpu = stage.cpu_seconds() - before
            figures = _figures(found, times) | floor.figures()
        received = [number for part in found for number in array("q", part.numbers)]
        abandoned = {number for part in found for number in array("q", part.abandoned)}
        again = [number for number, times in Counter(received).items() if times > 1]
        figures |= {
            "joined_s": round(max(part.joined for part in found) - times.begin, 2),
            "idle_cpu_percent": idle,
            "broker_cpu_us_per_message": us_each(cpu, len(received)),
            "undelivered": count - len(set(received)),
            "redelivered": sum(1 for number in again if number not in abandoned),
            "rss_mb": stage.rss_mb(),
        }
        yield Outcome(
            shape={"consumers": sizes.fleet_consumers, "buckets": sizes.fleet_buckets, "due_per_s": sizes.fleet_per_s},
            figures=figures,
            actual={
                "messages": len(received),
                "left": sizes.fleet_leave,
                "abandoned": len(abandoned),
                "abandoned_redelivered": sum(1 for number in again if number in abandoned),
            },
        )


def _idle_percent(stage: Stage, times: Timetable) -> float:
    """The share of a core that the broker uses while the fleet waits."""
    time.sleep(max(0.0, times.joined + 1.0 - time.time()))
    before, began = stage.cpu_seconds(), time.time()
    time.sleep(max(1.0, times.due - 1.0 - time.time()))
    return round(100 * (stage.cpu_seconds() - before) / (time.time() - began), 2)


def _figures(found: list[FleetPart], times: Timetable) -> Figures:
    """The lateness before the leave, in the seconds after it, and afterwards."""
    phases: dict[str, list[int]] = {"lateness": [], "leaving": [], "after": []}
    settled = times.leave + SETTLE_SECONDS
    for part in found:
        due_us, late_us = array("q", part.due_us), array("q", part.late_us)
        for due, late in zip(due_us, late_us, strict=True):
            at = due / 1e6
            phases["lateness" if at < times.leave else "leaving" if at < settled else "after"].append(late)
    figures: Figures = {}
    for name, samples in phases.items():
        figures |= lateness_figures(samples, name)
    return figures


async def make_topic(address: str, buckets: int) -> None:
    """Create the topic of the fleet."""
    async with dejaq.connect(f"dejaq://{address}") as client:
        await client.create_topic(TOPIC, buckets=buckets)


async def produce(address: str, sizes: Sizes, times: Timetable) -> int:
    """Create what becomes due, in random order; returns how many messages."""
    count = int(sizes.fleet_per_s * (times.end - times.due))
    chance = random.Random(7)
    due = [int(times.due * 1_000) + chance.randrange(int((times.end - times.due) * 1_000)) for _ in range(count)]
    await asyncio.sleep(max(0.0, times.begin - time.time()))
    async with dejaq.connect(f"dejaq://{address}") as client, client.producer(TOPIC, group="fleet") as producer:
        for first in range(0, count, 1_000):
            at = due[first : first + 1_000]
            ids = [f"{PREFIX}{first + number}" for number in range(len(at))]
            (await producer.send_batch([b"x" * 100] * len(at), at=at, ids=ids)).raise_for_failures()
    return count


async def consume(address: str, sizes: Sizes, part: int, times: Timetable) -> FleetPart:
    """A share of the consumers; the first of all consumers leave together."""
    places = range(part, sizes.fleet_consumers, sizes.fleet_processes)
    due_us, late_us, numbers, abandoned = array("q"), array("q"), array("q"), array("q")

    async def hold(lease: dejaq.Lease, number: int) -> None:
        try:
            await asyncio.sleep(HOLD_SECONDS)
            await lease.delete()
        except asyncio.CancelledError:
            abandoned.append(number)
            raise

    async def work(consumer: dejaq.Consumer) -> None:
        async with asyncio.TaskGroup() as holding:
            async for lease in consumer:
                at = lease.ts * 1_000
                due_us.append(at)
                late_us.append(time.time_ns() // 1_000 - at)
                number = int(lease.id.removeprefix(PREFIX))
                numbers.append(number)
                holding.create_task(hold(lease, number))

    await asyncio.sleep(max(0.0, times.begin - time.time()))
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(dejaq.connect(f"dejaq://{address}"))
            for _ in range(0, len(places), CONSUMERS_PER_CONNECTION)
        ]

        async def serve(place: int, number: int, joined: asyncio.Queue[int]) -> None:
            async with clients[place // CONSUMERS_PER_CONNECTION].consumer(TOPIC, name=f"c{number}") as consumer:
                joined.put_nowait(number)
                leave = times.leave if number < sizes.fleet_leave else times.end + GRACE_SECONDS / 4
                working = asyncio.ensure_future(work(consumer))
                await asyncio.wait((working,), timeout=max(0.0, leave - time.time()))
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

        queue: asyncio.Queue[int] = asyncio.Queue()
        serving = [asyncio.ensure_future(serve(*one, queue)) for one in enumerate(places)]
        for _ in places:
            await queue.get()
        joined = time.time()
        await asyncio.gather(*serving)
    return FleetPart(joined, due_us.tobytes(), late_us.tobytes(), numbers.tobytes(), abandoned.tobytes())
