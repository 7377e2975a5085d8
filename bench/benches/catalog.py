"""The benches by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.benches import (
    accuracy,
    burst,
    connections,
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
from bench.workloads import (
    by_id,
    falling_due,
    fleet,
    large_backlog,
    log,
    log_beside,
    one_at_a_time,
    ordinary,
    reminders,
    single_sends,
    slow_work,
    tabs,
    topics,
    uptime,
    watched,
)

RUNS: dict[str, Callable[[System, Plan], Iterator[Outcome]]] = {
    "throughput": throughput.run,
    "accuracy": accuracy.run,
    "depth": depth.run,
    "burst": burst.run,
    "mutate": mutate.run,
    "priority": priority.run,
    "cron": cron.run,
    "transactions": transactions.run,
    "connections": connections.run,
    "latency": latency.run,
    "send_loop": send_loop.run,
    "reminders": reminders.run_month,
    "generated_ids": reminders.run_month,
    "next_minute": reminders.run_minute,
    "falling_due": falling_due.run,
    "watched": watched.run,
    "tabs": tabs.run,
    "single_sends": single_sends.run,
    "fleet": fleet.run,
    "topics": topics.run,
    "by_id": by_id.run,
    "large_backlog": large_backlog.run,
    "slow_work": slow_work.run,
    "uptime": uptime.run,
    "ordinary": ordinary.run,
    "one_at_a_time": one_at_a_time.run,
    "log": log.run,
    "log_beside": log_beside.run,
}
