"""L1 to L3: messages at random times, created in batches of 1,000 that are in no order.

L1 is a month of reminders with ids chosen by the client, L2 the same with generated ids, L3 the next minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness.crew import span_ns
from bench.harness.figures import Figures, per_second, us_each
from bench.harness.orders import Produce
from bench.harness.payload import FAR_MS, Load
from bench.harness.stage import Outcome, Stage, staged
from bench.harness.timed import GRACE_SECONDS, load_pending
from bench.plan import Plan
from bench.systems.base import System

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
MINUTE_MS = 60_000


def run_month(system: System, plan: Plan) -> Iterator[Outcome]:
    """L1: one outcome per number of buckets, and one with many messages pending."""
    sizes = plan.sizes
    for buckets in sizes.reminders_buckets if system.buckets else (None,):
        yield _run(system, plan, spread="30 days", buckets=buckets, pending=0)
    if sizes.reminders_pending:
        last = sizes.reminders_buckets[-1] if system.buckets else None
        yield _run(system, plan, spread="30 days", buckets=last, pending=sizes.reminders_pending)


def run_minute(system: System, plan: Plan) -> Iterator[Outcome]:
    """L3: one outcome."""
    buckets = plan.sizes.reminders_buckets[-1] if system.buckets else None
    yield _run(system, plan, spread="60 s", buckets=buckets, pending=0)


def _run(system: System, plan: Plan, *, spread: str, buckets: int | None, pending: int) -> Outcome:
    sizes = plan.sizes
    with staged(system) as stage:
        if buckets is not None:
            stage.create_topic(buckets)
        reached = 0
        if pending:
            reached = load_pending(stage, pending, sizes.load_seconds_max, scatter_ms=MONTH_MS).count
        load = Load(
            count=sizes.reminders,
            start_ms=time.time_ns() // 1_000_000 + FAR_MS,
            scatter_ms=MONTH_MS if spread == "30 days" else MINUTE_MS,
        )
        figures, created = create(stage, load, sizes.phase_seconds_max)
    shape = {"spread": spread} | ({"buckets": buckets} if buckets is not None else {}) | {"pending": pending}
    return Outcome(shape=shape, figures=figures, actual={"messages": created, "pending": reached})


def create(stage: Stage, load: Load, seconds_max: float) -> tuple[Figures, int]:
    """Create a load with one producer; the figures, and how many messages were created in time."""
    rss_before, cpu_before = stage.rss_mb(), stage.cpu_seconds()
    with stage.crew() as crew:
        created = crew.work(Produce(load, seconds_max=seconds_max), seconds_max=seconds_max + GRACE_SECONDS)[0]
    cpu, rss = stage.cpu_seconds() - cpu_before, stage.rss_mb()
    figures: Figures = {
        "create_per_s": per_second(created.count, span_ns([created])),
        "create_cpu_us_per_message": us_each(cpu, created.count),
        "rss_mb": rss,
        "memory_bytes_per_message": round((rss - rss_before) * 1e6 / max(1, created.count), 1),
    }
    return figures, created.count
