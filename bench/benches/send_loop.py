"""Send loop: the rate of a plain `await send(...)` in a loop, in 64 tasks of one client."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.crew import span_ns
from bench.harness.figures import per_second
from bench.harness.orders import SendLoop
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System

TASKS = 64
WORK_SECONDS = 300.0


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome."""
    with staged(system) as stage, stage.crew() as crew:
        done = crew.work(SendLoop(count=plan.loop_messages, tasks=TASKS), seconds_max=WORK_SECONDS)[0]
    yield Outcome(
        shape={"tasks": TASKS, "body_bytes": 100},
        figures={"send_per_s": per_second(done.count, span_ns([done]))},
        actual={"messages": done.count},
    )
