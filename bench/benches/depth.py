"""Depth: ten million pending messages.

Measures the start-up to the first delivery, memory, and lateness at the rates that a peer published.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness.orders import Consume, Produce
from bench.harness.payload import Load
from bench.harness.stage import Outcome, Stage, staged
from bench.harness.timed import GRACE_SECONDS, load_pending, watch_due
from bench.plan import Plan
from bench.systems.base import System

# Ten times the messages of the accuracy bench, so more time to create them.
LOAD_FACTOR = 3
START_SECONDS_MAX = 300.0


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per rate, all on one server that was restarted with all messages pending."""
    with staged(system) as stage:
        loaded = load_pending(stage, plan.depth_pending, LOAD_FACTOR * plan.load_seconds_max)
        first_delivery_s = _start_again(stage)
        for per_s in plan.depth_per_s:
            watched = watch_due(
                stage,
                loaded,
                messages=per_s * plan.due_seconds,
                per_s=per_s,
                consumers=1,
                prefix=f"due{per_s}",
                load_seconds_max=plan.load_seconds_max,
            )
            figures = {name: value for name, value in watched.figures.items() if name != "drain_per_s"}
            yield Outcome(
                shape={"due_per_s": per_s},
                figures=figures | {"first_delivery_s": first_delivery_s},
                actual={"pending": loaded.count, "due": watched.due, "consumers": watched.consumers},
            )


def _start_again(stage: Stage) -> float:
    """Seconds from the start of the server's process to the first message in user code."""
    with stage.crew() as crew:
        crew.work(Produce(Load(count=1, prefix="first")), seconds_max=GRACE_SECONDS)
        stage.server.stop()
        consuming = crew.add(Consume(target=1, seconds_max=START_SECONDS_MAX, opened=False))
        started_ns = time.time_ns()
        stage.server.start()
        crew.go(consuming)
        done = crew.wait(consuming, START_SECONDS_MAX + GRACE_SECONDS)[0]
    if not done.first_ns:
        raise RuntimeError("nothing was delivered after a start")
    return round((done.first_ns - started_ns) / 1e9, 3)
