"""L17: a timeline keeps its accuracy while a log on the same broker takes very many messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.harness.apart import apart
from bench.harness.figures import Figures
from bench.harness.payload import BATCH, Load
from bench.harness.stage import Outcome, Stage, staged
from bench.harness.timed import LEAD_FACTOR, LEAD_SECONDS, Loaded, watch_due
from bench.harness.window import Window
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.catalog import system_named
from bench.systems.log_dejaq import DejaqLogClient

IN_FLIGHT = 8
TIMELINE = "dejaq"
LOADED = Loaded(count=0, per_s=50_000.0)


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """The timeline alone, then beside the log, on one server."""
    sizes = plan.sizes
    seconds = sizes.log_beside_seconds
    with staged(system) as stage:
        # The clients of the crews are those of the timeline, on the same server.
        timeline = Stage(system_named(TIMELINE), stage.server)
        for appended in (0, sizes.log_beside_per_s):
            figures = _watched(timeline, plan, appended, seconds)
            yield Outcome(
                shape={"appended_per_s": appended, "due_per_s": sizes.log_beside_due_per_s},
                figures=figures,
                actual={"messages": sizes.log_beside_due_per_s * seconds},
            )


def _watched(stage: Stage, plan: Plan, appended_per_s: int, seconds: int) -> Figures:
    messages = plan.sizes.log_beside_due_per_s * seconds
    lasts = LEAD_SECONDS + LEAD_FACTOR * messages / LOADED.per_s + seconds
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(apart, append_paced, stage.server.address, appended_per_s, lasts)
        watched = watch_due(
            stage,
            LOADED,
            messages=messages,
            per_s=plan.sizes.log_beside_due_per_s,
            consumers=1,
            prefix=f"beside{appended_per_s}",
            load_seconds_max=plan.sizes.load_seconds_max,
        )
        reached = appending.result()
    figures = {name: value for name, value in watched.figures.items() if name != "drain_per_s"}
    return figures | {"append_reached_per_s": reached}


async def append_paced(address: str, per_s: int, seconds: float) -> float:
    """Append batches at a rate for so long; the rate that was reached."""
    if not per_s:
        return 0.0
    client = DejaqLogClient(address)
    await client.open(produces=True)
    batch = next(iter(Load(count=BATCH).batches()))
    window, loop = Window(IN_FLIGHT), asyncio.get_running_loop()
    started, sent = loop.time(), 0
    while (passed := loop.time() - started) < seconds:
        ahead = sent / per_s - passed
        if ahead > 0:
            await asyncio.sleep(ahead)
        await window.add(client.append(batch))
        sent += len(batch)
    await window.drain()
    rate = sent / (loop.time() - started)
    await client.close()
    return round(rate, 1)
