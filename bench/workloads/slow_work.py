"""L13: slow work. A consumer holds leases that are extended again and again while many other messages pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from bench.harness.apart import apart
from bench.harness.figures import Figures, us_each
from bench.harness.growth import Growth
from bench.harness.payload import BATCH, Batch, Load
from bench.harness.server import cpu_seconds
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.catalog import SLOW_CONSUMERS
from bench.systems.slow_consumer import SlowConsumer
from bench.workloads.sizes import Sizes

# Messages that are sent and not yet consumed.
AHEAD_MAX = 20 * BATCH
# A batch is due at random times within so long.
SPREAD_MS = 200
WAIT_SECONDS = 0.002
GRACE_SECONDS = 60.0
SLOW, FAST = b"slow", b"fast"


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome."""
    sizes = plan.sizes
    with staged(system) as stage:
        seconds_max = sizes.slow_seconds_max + 3 * GRACE_SECONDS
        arguments = (system.name, stage.server.address, stage.server.pid, sizes)
        figures = apart(measure, *arguments, seconds_max=seconds_max)
    passed, seconds = figures.pop("passed"), figures["seconds"]
    yield Outcome(
        shape={"held": sizes.slow_held},
        figures=figures,
        actual={"messages": passed, "seconds": seconds, "lease_seconds": sizes.slow_lease_seconds},
    )


@dataclass(slots=True)
class Progress:
    """What was sent and what came back."""

    sent: int = 0
    passed: int = 0
    held: set[bytes] = field(default_factory=set)
    redelivered: int = 0

    @property
    def ahead(self) -> int:
        """Messages that are sent and did not come back yet."""
        return self.sent - self.passed - len(self.held)


async def measure(name: str, address: str, pid: int, sizes: Sizes) -> Figures:
    """Let messages pass until their number and the time are reached, then delete what was held."""
    client: SlowConsumer = SLOW_CONSUMERS[name](address)
    await client.open(lease_seconds=sizes.slow_lease_seconds, held=sizes.slow_held)
    progress, growth = Progress(), Growth(pid)
    cpu, began = cpu_seconds(pid), time.monotonic()
    consuming = asyncio.create_task(_consume(client, progress, growth))
    try:
        async with asyncio.timeout(sizes.slow_seconds_max + GRACE_SECONDS):
            await _produce(client, progress, sizes, began, consuming)
            while progress.ahead > 0 and not consuming.done():
                await asyncio.sleep(WAIT_SECONDS)
        if consuming.done():
            await consuming
        seconds, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
        growth.look(progress.passed, at_once=True)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        async with asyncio.timeout(GRACE_SECONDS):
            lost = await client.delete_kept()
    finally:
        consuming.cancel()
        await client.close()
    return {
        "pass_per_s": round(progress.passed / seconds),
        "broker_cpu_us_per_message": us_each(cpu, progress.passed),
        **growth.figures(),
        "held_leases": len(progress.held),
        "lost_leases": lost,
        "redelivered": progress.redelivered,
        "passed": progress.passed,
        "seconds": round(seconds, 1),
    }


async def _produce(
    client: SlowConsumer, progress: Progress, sizes: Sizes, began: float, consuming: asyncio.Task[None]
) -> None:
    number = 0
    while not consuming.done():
        seconds = time.monotonic() - began
        enough = progress.sent >= sizes.slow_messages and seconds >= sizes.slow_seconds
        if enough or seconds >= sizes.slow_seconds_max:
            return
        early = sizes.slow_per_s and progress.sent > seconds * sizes.slow_per_s
        if early or progress.ahead >= AHEAD_MAX:
            await asyncio.sleep(WAIT_SECONDS)
            continue
        batch = batch_of(number, sizes)
        await client.send(batch)
        progress.sent += len(batch)
        number += 1


def batch_of(number: int, sizes: Sizes) -> Batch:
    """Batch `number`: the messages that will be held are spread evenly over the first tenth of all."""
    start_ms = time.time_ns() // 1_000_000
    (batch,) = Load(count=BATCH, prefix=f"pass{number}", start_ms=start_ms, scatter_ms=SPREAD_MS).batches()
    every = max(1, sizes.slow_messages // 10 // sizes.slow_held)
    rows = range(number * BATCH, (number + 1) * BATCH)
    slow = [row % every == 0 and row // every < sizes.slow_held for row in rows]
    bodies = [(SLOW if held else FAST) + body[4:] for held, body in zip(slow, batch.bodies, strict=True)]
    # The id follows the mark, so that a message that comes again is known.
    named = [body[:4] + message_id.encode() + body[20:] for body, message_id in zip(bodies, batch.ids, strict=True)]
    return Batch(ids=batch.ids, bodies=named, due_ms=batch.due_ms)


async def _consume(client: SlowConsumer, progress: Progress, growth: Growth) -> None:
    async with aclosing(client.taken()) as batches:  # type: ignore[type-var]
        async for taken in batches:
            slow = [position for position, body in enumerate(taken.bodies) if body.startswith(SLOW)]
            marks = {taken.bodies[position][:20] for position in slow}
            progress.redelivered += len(progress.held & marks)
            progress.held |= marks
            taken.keep(slow)
            held = set(slow)
            fast = [position for position in range(len(taken.bodies)) if position not in held]
            if fast:
                await taken.delete(fast)
                progress.passed += len(fast)
            growth.look(progress.passed)
