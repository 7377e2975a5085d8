"""L4: what falls due from a scattered backlog. Messages that arrived in random order, delivered to two consumers."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.stage import Outcome, staged
from bench.harness.timed import load_pending, watch_due
from bench.plan import Plan
from bench.systems.base import System
from bench.workloads.reminders import MONTH_MS


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per rate, all on one server."""
    sizes = plan.sizes
    with staged(system) as stage:
        loaded = load_pending(stage, sizes.due_pending, sizes.load_seconds_max, scatter_ms=MONTH_MS)
        for per_s in sizes.due_per_s:
            watched = watch_due(
                stage,
                loaded,
                messages=per_s * sizes.due_seconds,
                per_s=per_s,
                consumers=sizes.due_consumers,
                prefix=f"due{per_s}",
                load_seconds_max=sizes.load_seconds_max,
                scattered=True,
            )
            figures = {name: value for name, value in watched.figures.items() if name != "drain_per_s"}
            yield Outcome(
                shape={"due_per_s": per_s},
                figures=figures,
                actual={"pending": loaded.count, "due": watched.due, "consumers": watched.consumers},
            )
