"""The benches by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.benches import (
    accuracy,
    burst,
    cron,
    depth,
    latency,
    mutate,
    priority,
    send_loop,
    throughput,
    transactions,
)
from bench.harness.stage import Outcome
from bench.plan import Plan
from bench.systems.base import System

RUNS: dict[str, Callable[[System, Plan], Iterator[Outcome]]] = {
    "throughput": throughput.run,
    "accuracy": accuracy.run,
    "depth": depth.run,
    "burst": burst.run,
    "mutate": mutate.run,
    "priority": priority.run,
    "cron": cron.run,
    "transactions": transactions.run,
    "latency": latency.run,
    "send_loop": send_loop.run,
}
