"""Priority: very many messages with very many priorities, created in any order and leased in order of priority."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from bench.harness.apart import apart
from bench.harness.figures import Figures
from bench.harness.payload import BATCH
from bench.harness.server import cpu_seconds
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.by_priority import CLIENTS, ByPriority

BODY_BYTES = 100


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome."""
    with staged(system) as stage:
        figures = apart(measure, system.name, stage.server.address, stage.server.pid, plan)
    yield Outcome(
        shape={"priorities": plan.priorities, "body_bytes": BODY_BYTES},
        figures=figures,
        actual={"messages": plan.priority_messages},
    )


async def measure(name: str, address: str, pid: int, plan: Plan) -> Figures:
    """Create all messages, then lease them and check their order."""
    client: ByPriority = CLIENTS[name](address)
    count = plan.priority_messages
    cpu = cpu_seconds(pid)
    begun = time.perf_counter()
    await client.create(_batches(count, plan.priorities))
    created = time.perf_counter()
    taken, disordered, last = 0, 0, -1
    async for bodies in client.drain(count):
        for body in bodies:
            priority = int(body[:8])
            disordered += priority < last
            last = priority
        taken += len(bodies)
    ended = time.perf_counter()
    if taken != count:
        raise RuntimeError(f"{taken} of {count} messages came")
    return {
        "create_per_s": round(count / (created - begun)),
        "lease_delete_per_s": round(count / (ended - created)),
        "out_of_order": disordered,
        "broker_cpu_us_per_message": round((cpu_seconds(pid) - cpu) * 1e6 / count, 2),
    }


def _batches(count: int, priorities: int) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
    chance = random.Random(1)
    for start in range(0, count, BATCH):
        chosen = [chance.randrange(priorities) for _ in range(min(BATCH, count - start))]
        yield chosen, [b"%08d" % priority + b"x" * (BODY_BYTES - 8) for priority in chosen]
