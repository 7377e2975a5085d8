"""L6: single sends. Many producers over few connections send one message per call and wait for its acknowledgement."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness.crew import late_us_of, span_ns
from bench.harness.figures import Figures, lateness_figures, per_second, us_each
from bench.harness.orders import SingleSends
from bench.harness.payload import FAR_MS, Load
from bench.harness.single_sends import GRACE_SECONDS
from bench.harness.stage import Outcome, staged
from bench.plan import Plan
from bench.systems.base import System

HOUR_MS = 3_600_000


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per number of messages, each on a server of its own."""
    sizes = plan.sizes
    for messages in sizes.single_sends:
        load = Load(count=messages, start_ms=time.time_ns() // 1_000_000 + FAR_MS, scatter_ms=HOUR_MS)
        orders = [
            SingleSends(
                load=load,
                process=process,
                processes=sizes.single_processes,
                connections=sizes.single_connections // sizes.single_processes,
                producers=sizes.single_producers // sizes.single_processes,
                seconds_max=sizes.phase_seconds_max,
            )
            for process in range(sizes.single_processes)
        ]
        with staged(system) as stage, stage.crew() as crew:
            sending = crew.add(*orders)
            rss_before, cpu_before = stage.rss_mb(), stage.cpu_seconds()
            crew.go(sending)
            done = crew.wait(sending, sizes.phase_seconds_max + 2 * GRACE_SECONDS)
            cpu, rss = stage.cpu_seconds() - cpu_before, stage.rss_mb()
        sent = sum(one.count for one in done)
        figures: Figures = {
            "send_per_s": per_second(sent, span_ns(done)),
            "broker_cpu_us_per_message": us_each(cpu, sent),
            **lateness_figures(late_us_of(done), "ack"),
            "refused": sum(one.refused for one in done),
            "rss_mb": rss,
            "memory_bytes_per_message": round((rss - rss_before) * 1e6 / max(1, sent), 1),
        }
        yield Outcome(
            shape={
                "messages": messages,
                "producers": sizes.single_producers,
                "connections": sizes.single_connections,
            },
            figures=figures,
            actual={"messages": sent},
        )
