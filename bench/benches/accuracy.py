"""Accuracy: many pending messages, some due every millisecond; measures how late user code gets them."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.stage import Outcome, staged
from bench.harness.timed import load_pending, watch_due
from bench.plan import Plan
from bench.systems.base import System


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per rate, all on one server."""
    with staged(system) as stage:
        loaded = load_pending(stage, plan.pending, plan.load_seconds_max)
        for per_s in plan.accuracy_per_s:
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
                figures=figures,
                actual={"pending": loaded.count, "due": watched.due, "consumers": watched.consumers},
            )
