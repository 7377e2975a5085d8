"""L8: many topics, each with a few messages. How fast they are created and listed, and what the broker needs for them.

Redis has no topics, so this workload has no peer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import dejaq
from bench.harness.apart import apart
from bench.harness.figures import Figures
from bench.harness.stage import Outcome, Stage, staged
from bench.harness.window import Window
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.dejaq_broker import DejaqServer
from bench.workloads.reminders import MONTH_MS
from bench.workloads.sizes import Sizes

MESSAGES = 20
CREATES_IN_FLIGHT = 64
PRODUCERS_AT_ONCE = 32
IDLE_SECONDS = 10.0


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome."""
    sizes = plan.sizes
    with staged(system) as stage:
        assert isinstance(stage.server, DejaqServer)
        seconds_max = 2 * sizes.load_seconds_max
        before = stage.cpu_seconds()
        seconds = apart(create, stage.server.address, sizes, seconds_max=seconds_max)
        cpu = stage.cpu_seconds() - before
        apart(fill, stage.server.address, sizes, seconds_max=seconds_max)
        stage.server.stop()
        began = time.monotonic()
        stage.server.start()
        found = apart(listed, stage.server.address, seconds_max=seconds_max)
        start_s = time.monotonic() - began - found[1]
        if found[0] != sizes.topics:
            raise RuntimeError(f"{found[0]} topics after a restart, not {sizes.topics}")
        figures: Figures = {
            "topics_per_s": round(sizes.topics / seconds, 1),
            "create_cpu_us_per_topic": round(1e6 * cpu / sizes.topics, 1),
            "start_s": round(start_s, 3),
            "list_s": round(found[1], 3),
            "idle_cpu_percent": _idle_percent(stage),
            "rss_mb": stage.rss_mb(),
        }
        yield Outcome(shape={"topics": sizes.topics}, figures=figures, actual={"messages": MESSAGES * sizes.topics})


def _idle_percent(stage: Stage) -> float:
    """The share of a core that the broker uses without clients."""
    time.sleep(1.0)
    before = stage.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return round(100 * (stage.cpu_seconds() - before) / IDLE_SECONDS, 2)


def _name(number: int) -> str:
    return f"topic-{number:05}"


async def create(address: str, sizes: Sizes) -> float:
    """Create the topics, many calls at one time; returns the seconds."""
    async with dejaq.connect(f"dejaq://{address}") as client:
        window = Window(CREATES_IN_FLIGHT)
        began = time.monotonic()
        for number in range(sizes.topics):
            await window.add(client.create_topic(_name(number), buckets=4))
        await window.drain()
        return time.monotonic() - began


async def fill(address: str, sizes: Sizes) -> None:
    """Create the messages of every topic, all due in a month."""
    at = time.time_ns() // 1_000_000 + MONTH_MS
    async with dejaq.connect(f"dejaq://{address}") as client:

        async def fill_one(number: int) -> None:
            async with client.producer(_name(number), group="fill") as producer:
                ids = [f"m{message}" for message in range(MESSAGES)]
                (await producer.send_batch([b"x" * 100] * MESSAGES, at=[at] * MESSAGES, ids=ids)).raise_for_failures()

        window = Window(PRODUCERS_AT_ONCE)
        for number in range(sizes.topics):
            await window.add(fill_one(number))
        await window.drain()


async def listed(address: str) -> tuple[int, float]:
    """How many topics the broker lists, and the seconds that the list takes."""
    async with dejaq.connect(f"dejaq://{address}") as client:
        began = time.monotonic()
        found = len(await client.topics())
        return found, time.monotonic() - began
