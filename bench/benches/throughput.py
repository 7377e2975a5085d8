"""Throughput: create N messages, then lease and delete N; then both at once, with several clients on each side."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.crew import span_ns
from bench.harness.figures import Figures, per_second, us_each
from bench.harness.orders import Consume, Produce
from bench.harness.payload import Load
from bench.harness.stage import Outcome, Stage, staged
from bench.harness.syncs import syncs_per_1000
from bench.plan import Plan
from bench.systems.base import System

GRACE_SECONDS = 30.0
SYNC_SAMPLE = 5_000


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per body size and number of clients."""
    for body_bytes in plan.body_bytes:
        reached = plan.messages
        for clients in plan.clients:
            figures: Figures = {}
            if clients == 1:
                with staged(system) as stage:
                    figures, reached = _one_after_the_other(stage, plan, body_bytes)
                figures |= {"fsyncs_per_1000_messages": syncs_per_1000(system, SYNC_SAMPLE, body_bytes)}
            with staged(system) as stage:
                figures |= _both_at_once(stage, plan, body_bytes, messages=reached, clients=clients)
            yield Outcome(
                shape={"body_bytes": body_bytes, "producers": clients, "consumers": clients},
                figures=figures,
                actual={"messages": reached},
            )


def _one_after_the_other(stage: Stage, plan: Plan, body_bytes: int) -> tuple[Figures, int]:
    """The figures, and how many messages went through both phases in time."""
    most = plan.phase_seconds_max
    syncs_before, cpu_before = stage.server.fsyncs(), stage.cpu_seconds()
    with stage.crew() as crew:
        load = Load(count=plan.messages, body_bytes=body_bytes)
        created = crew.work(Produce(load, seconds_max=most), seconds_max=most + GRACE_SECONDS)[0]
    cpu_created = stage.cpu_seconds()
    with stage.crew() as crew:
        order = Consume(target=created.count, seconds_max=most)
        deleted = crew.work(order, seconds_max=most + GRACE_SECONDS)[0]
    cpu_deleted, syncs_after = stage.cpu_seconds(), stage.server.fsyncs()
    create_us = us_each(cpu_created - cpu_before, created.count)
    delete_us = us_each(cpu_deleted - cpu_created, deleted.count)
    figures: Figures = {
        "create_per_s": per_second(created.count, span_ns([created])),
        "lease_delete_per_s": per_second(deleted.count, span_ns([deleted])),
        "create_cpu_us_per_message": create_us,
        "lease_delete_cpu_us_per_message": delete_us,
        "broker_cpu_us_per_message": round(create_us + delete_us, 3),
    }
    if syncs_before is not None and syncs_after is not None:
        figures["fsyncs"] = syncs_after - syncs_before
    return figures, deleted.count


def _both_at_once(stage: Stage, plan: Plan, body_bytes: int, *, messages: int, clients: int) -> Figures:
    most = 2 * plan.phase_seconds_max
    share = max(1, messages // clients)
    loads = [Load(count=share, body_bytes=body_bytes, prefix=f"p{number}") for number in range(clients)]
    cpu_before = stage.cpu_seconds()
    with stage.crew() as crew:
        producing = crew.add(*(Produce(load, seconds_max=most) for load in loads))
        consuming = crew.add(*(Consume(target=share * clients, seconds_max=most) for _ in range(clients)))
        crew.go([*consuming, *producing])
        created = crew.wait(producing, most + GRACE_SECONDS)
        deleted = crew.wait(consuming, most + GRACE_SECONDS)
    count = sum(done.count for done in deleted)
    elapsed = max(done.end_ns for done in deleted) - min(done.start_ns for done in created)
    return {
        "end_to_end_per_s": per_second(count, elapsed),
        "end_to_end_cpu_us_per_message": us_each(stage.cpu_seconds() - cpu_before, count),
    }
