"""L15: an ordinary service. Producers and consumers that make one call per message, and are closed and opened again.

Producers choose the ids, and messages are due within some seconds. Topics are created and deleted meanwhile. No peer
has topics and sessions that come and go, so the lateness is compared with that of a bare sleeper.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import dejaq
from bench.harness.apart import apart
from bench.harness.figures import Figures, lateness_figures, us_each
from bench.harness.floor import Floor
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System
from bench.workloads.sizes import Sizes

TOPICS = 5
BUCKETS = 16
PRODUCERS = 10
CONSUMERS = 10
# Calls that a producer makes at one time, as the requests that a service handles at one time do.
CALLS_AT_ONCE = 8
# A producer and a consumer are closed and opened again after so many messages.
REOPENED_AFTER = 300
TOPIC_PAUSE_SECONDS = 0.5
# A process of clients needs this long to start.
START_SECONDS = 4.0
# Beyond the last due time, until the run ends without the messages that are missing.
GRACE_SECONDS = 15.0
WARM_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """When messages are sent, and until when the last of them is due, in epoch seconds."""

    begin: float
    sent: float
    due: float

    @classmethod
    def of(cls, sizes: Sizes) -> ServiceTimes:
        """The times of a run that starts now."""
        begin = time.time() + START_SECONDS
        sent = begin + sizes.ordinary_seconds
        return cls(begin, sent, sent + sizes.ordinary_due_seconds)


@dataclass(slots=True)
class Received:
    """What the consumers saw: how late each message was in microseconds, and messages that came twice."""

    late_us: bytes
    doubled: int


@dataclass(slots=True)
class SentSingly:
    """What the producers did: how long each call took in microseconds, and the topics that came and went."""

    ack_us: bytes
    topics: int


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome."""
    sizes = plan.sizes
    with staged(system) as stage:
        address = stage.server.address
        apart(make_topics, address)
        times = ServiceTimes.of(sizes)
        call = partial(apart, seconds_max=times.due - time.time() + 4 * GRACE_SECONDS)
        floor = Floor(int(times.begin * 1e9), int(times.due * 1e9))
        with floor, ThreadPoolExecutor(2) as pool:
            consuming = pool.submit(call, consume, address, times)
            producing = pool.submit(call, produce, address, sizes, times)
            time.sleep(max(0.0, times.begin + WARM_SECONDS - time.time()))
            cpu, began = stage.cpu_seconds(), time.time()
            sent: SentSingly = producing.result()
            received: Received = consuming.result()
            cpu = stage.cpu_seconds() - cpu
            seconds = time.time() - began
            figures = lateness_figures(array("q", received.late_us)) | floor.figures()
        count, found = len(sent.ack_us) // 8, len(received.late_us) // 8
        figures |= _ack_figures(sent) | {
            "sent_per_s": round(count / sizes.ordinary_seconds, 1),
            "broker_cpu_us_per_message": us_each(cpu, round(count * (1 - WARM_SECONDS / sizes.ordinary_seconds))),
            "broker_cpu_percent": round(100 * cpu / seconds, 1),
            "undelivered": count - found,
            "redelivered": received.doubled,
            "rss_mb": stage.rss_mb(),
        }
        yield Outcome(
            shape={"producers": PRODUCERS, "consumers": CONSUMERS, "per_s": sizes.ordinary_per_s},
            figures=figures,
            actual={"messages": count, "topics": sent.topics},
        )


def _ack_figures(sent: SentSingly) -> Figures:
    return lateness_figures(array("q", sent.ack_us), "ack")


def _topic(number: int) -> str:
    return f"service-{number % TOPICS}"


async def make_topics(address: str) -> None:
    """Create the topics that stay."""
    async with dejaq.connect(f"dejaq://{address}") as client:
        for number in range(TOPICS):
            await client.create_topic(_topic(number), buckets=BUCKETS)


async def produce(address: str, sizes: Sizes, times: ServiceTimes) -> SentSingly:
    """Send one message per call at the wanted rate, or as fast as the broker answers."""
    ack_us, topics = array("q"), 0
    chance = random.Random(11)
    await asyncio.sleep(max(0.0, times.begin - time.time()))

    async def call(client: dejaq.Client, number: int, caller: int, pause: float) -> None:
        sent, next_at = 0, time.time() + chance.random() * pause
        while time.time() < times.sent:
            async with client.producer(_topic(number), group=f"producer-{number}") as producer:
                for _ in range(REOPENED_AFTER):
                    await asyncio.sleep(max(0.0, next_at - time.time()))
                    next_at = max(next_at + pause, time.time() - 1.0)
                    if time.time() >= times.sent:
                        return
                    due = time.time() + 0.01 + chance.random() * sizes.ordinary_due_seconds
                    began = time.perf_counter_ns()
                    await producer.send(
                        b"x" * 100, at=int(min(due, times.due) * 1_000), id=f"m{number}-{caller}-{sent}"
                    )
                    ack_us.append((time.perf_counter_ns() - began) // 1_000)
                    sent += 1

    async def change_topics(client: dejaq.Client) -> int:
        count = 0
        while time.time() < times.sent:
            await client.create_topic(f"passing-{count}", buckets=4)
            await asyncio.sleep(TOPIC_PAUSE_SECONDS)
            await client.delete_topic(f"passing-{count}")
            count += 1
        return count

    pause = PRODUCERS * CALLS_AT_ONCE / sizes.ordinary_per_s
    async with dejaq.connect(f"dejaq://{address}") as client, asyncio.TaskGroup() as tasks:
        for number in range(PRODUCERS):
            for caller in range(CALLS_AT_ONCE):
                tasks.create_task(call(client, number, caller, pause))
        topics = await change_topics(client)
    return SentSingly(ack_us.tobytes(), topics)


async def consume(address: str, times: ServiceTimes) -> Received:
    """Take and delete one message per call until everything was due."""
    late_us, seen, doubled = array("q"), set[str](), 0
    end = times.due + GRACE_SECONDS / 3

    async def work(client: dejaq.Client, number: int) -> None:
        nonlocal doubled
        while time.time() < end:
            name = f"consumer-{number}"
            async with client.consumer(_topic(number), name=name) as consumer, asyncio.TaskGroup() as deleting:
                room = asyncio.Semaphore(CALLS_AT_ONCE)
                for _ in range(REOPENED_AFTER):
                    await room.acquire()
                    try:
                        lease = await asyncio.wait_for(anext(consumer), max(0.01, end - time.time()))
                    except TimeoutError:
                        return
                    late_us.append(time.time_ns() // 1_000 - lease.ts * 1_000)
                    doubled += lease.id in seen
                    seen.add(lease.id)
                    deleting.create_task(_delete(lease, room))

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(dejaq.connect(f"dejaq://{address}"))
        await asyncio.sleep(max(0.0, times.begin - time.time() - 1.0))
        await asyncio.gather(*(work(client, number) for number in range(CONSUMERS)))
    return Received(late_us.tobytes(), doubled)


async def _delete(lease: dejaq.Lease, room: asyncio.Semaphore) -> None:
    await lease.delete()
    room.release()
