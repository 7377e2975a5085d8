"""Burst: very many messages due at one instant, for consumers of batches; measures lateness curve and drain rate."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.stage import Outcome, staged
from bench.harness.timed import load_pending, watch_due
from bench.plan import Plan
from bench.systems.base import System

PENDING_SHARE = 10


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per burst, all on one server."""
    with staged(system) as stage:
        loaded = load_pending(stage, plan.pending // PENDING_SHARE, plan.load_seconds_max)
        for number, burst in enumerate(plan.bursts):
            watched = watch_due(
                stage,
                loaded,
                messages=burst.messages,
                per_s=int(burst.messages / burst.seconds) if burst.seconds else 0,
                consumers=plan.burst_consumers,
                prefix=f"burst{number}",
                load_seconds_max=plan.load_seconds_max,
            )
            yield Outcome(
                shape={"burst_messages": burst.messages, "burst_seconds": burst.seconds},
                figures=watched.figures,
                actual={"pending": loaded.count, "due": watched.due, "consumers": watched.consumers},
                extras={"curve": watched.curve},
            )
