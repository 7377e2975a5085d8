"""Mutate: cancel, move and edit pending messages, one at a time and a thousand at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal, cast

from bench.harness.crew import span_ns
from bench.harness.figures import Figures, per_second
from bench.harness.orders import Mutate
from bench.harness.payload import FAR_MS
from bench.harness.stage import Outcome, staged
from bench.harness.timed import load_pending
from bench.plan import Plan
from bench.systems.base import System

# (ids per call, calls in flight)
CALLS = ((1, 64), (1_000, 4))
WORK_SECONDS = 300.0


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per batch size, all on one server."""
    with staged(system) as stage:
        loaded = load_pending(stage, plan.pending, plan.load_seconds_max)
        for batch, in_flight in CALLS:
            figures: Figures = {}
            count = plan.changes_single if batch == 1 else plan.changes_batched
            for kind in system.changes:
                order = Mutate(
                    kind=cast(Literal["cancel", "move", "edit"], kind),
                    count=count,
                    batch=batch,
                    in_flight=in_flight,
                    due_ms=time.time_ns() // 1_000_000 + FAR_MS,
                )
                with stage.crew() as crew:
                    done = crew.work(order, seconds_max=WORK_SECONDS)[0]
                figures[f"{kind}_per_s"] = per_second(done.count, span_ns([done]))
            yield Outcome(
                shape={"batch": batch, "in_flight": in_flight},
                figures=figures,
                actual={"pending": loaded.count, "changes": count},
            )
