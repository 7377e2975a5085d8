"""Latency: a message that is due now, from before the send to user code, one at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness.crew import late_us_of
from bench.harness.figures import Figures, lateness_figures
from bench.harness.floor import START_SECONDS, Floor
from bench.harness.orders import Consume, OneByOne
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System

GRACE_SECONDS = 30.0
# The first few messages open streams and fill caches.
WARM_UP = 10


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome."""
    most = 3 * plan.phase_seconds_max
    count = plan.latency_messages + WARM_UP
    with staged(system) as stage, stage.crew() as crew:
        consuming = crew.add(Consume(target=count, seconds_max=most, timed=True))
        producing = crew.add(OneByOne(count=count, seconds_max=most))
        with Floor(time.time_ns() + int(START_SECONDS * 1e9)) as floor:
            time.sleep(START_SECONDS)
            crew.go([*consuming, *producing])
            crew.wait(producing, most + GRACE_SECONDS)
            late = late_us_of(crew.wait(consuming, most + GRACE_SECONDS))[WARM_UP:]
            figures: Figures = {**lateness_figures(late, "latency"), **floor.figures()}
    yield Outcome(shape={"in_flight": 1}, figures=figures, actual={"messages": len(late)})
