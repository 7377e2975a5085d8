"""L10: a backlog of bodies of 1 KB with ids chosen by the client, created in random order, then leased and deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness.crew import span_ns
from bench.harness.figures import per_second, us_each
from bench.harness.orders import Consume
from bench.harness.payload import Load
from bench.harness.stage import Outcome, staged
from bench.harness.timed import GRACE_SECONDS
from bench.plan import Plan
from bench.systems.base import System
from bench.workloads.reminders import create

BODY_BYTES = 1_024


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per number of messages, each on a server of its own."""
    most = plan.sizes.phase_seconds_max
    # Messages may be due while others are created: the consumer comes later.
    spread_ms = int(plan.sizes.backlog_seconds * 1_000)
    for messages in plan.sizes.backlog:
        with staged(system) as stage:
            start_ms = time.time_ns() // 1_000_000
            load = Load(count=messages, body_bytes=BODY_BYTES, start_ms=start_ms, scatter_ms=spread_ms)
            figures, created = create(stage, load, most)
            with stage.crew() as crew:
                consuming = crew.add(Consume(target=created, seconds_max=most))
                # All of it is due when the consumer starts.
                time.sleep(max(0.0, start_ms + spread_ms - time.time_ns() / 1e6) / 1_000)
                cpu_before = stage.cpu_seconds()
                crew.go(consuming)
                deleted = crew.wait(consuming, most + GRACE_SECONDS)[0]
                cpu = stage.cpu_seconds() - cpu_before
            figures |= {
                "lease_delete_per_s": per_second(deleted.count, span_ns([deleted])),
                "lease_delete_cpu_us_per_message": us_each(cpu, deleted.count),
                "undelivered": created - deleted.count,
            }
        yield Outcome(
            shape={"messages": messages, "body_bytes": BODY_BYTES}, figures=figures, actual={"messages": deleted.count}
        )
