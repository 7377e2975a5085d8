from __future__ import annotations

from typing import Any

import pytest
from bench.goals import verdicts


def throughput(system: str, create: float, *, durable: bool = True) -> dict[str, Any]:
    return {
        "bench": "throughput",
        "system": system,
        "durable": durable,
        "shape": {"body_bytes": 100, "producers": 1, "consumers": 1},
        "create_per_s": create,
    }


def lateness(bench: str, p99: float, floor: float, *, early: int = 0, **shape: Any) -> dict[str, Any]:
    figures = {"lateness_p99_ms": p99, "floor_p99_ms": floor, "early": early}
    return {"bench": bench, "system": "dejaq", "durable": True, "shape": shape, **figures}


def met(records: list[dict[str, Any]], goal: str) -> bool | None:
    (found,) = [verdict.met for verdict in verdicts(records) if verdict.goal == goal]
    return found


CREATE = "dejaq: create_per_s at least 2 x the fastest durable peer"
LAZY = "dejaq: create_per_s ahead of every lazy default"


@pytest.mark.parametrize(("ours", "verdict"), [(200.0, True), (199.0, False)])
def test_the_fastest_durable_peer_sets_the_goal(ours: float, verdict: bool) -> None:
    records = [
        throughput("dejaq", ours),
        throughput("skip-locked", 10.0),
        throughput("redis-always", 100.0),
        throughput("beanstalkd", 150.0, durable=False),
        throughput("dejaq-natural", 500.0),
    ]
    assert met(records, CREATE) is verdict


def test_a_lazy_peer_counts_only_against_the_lazy_goal() -> None:
    records = [throughput("dejaq", 100.0), throughput("redis-everysec", 120.0, durable=False)]
    assert met(records, LAZY) is False
    assert met(records, CREATE) is None


@pytest.mark.parametrize(("p99", "verdict"), [(13.0, True), (13.1, False)])
def test_lateness_is_measured_from_the_floor(p99: float, verdict: bool) -> None:
    records = [lateness("accuracy", p99, 10.0, due_per_s=10_000)]
    assert met(records, "accuracy at 10 k/s: p99 at most floor + 3 ms") is verdict


def test_one_early_message_in_any_bench_fails_the_goal() -> None:
    on_time = lateness("accuracy", 1.0, 1.0, due_per_s=1_000)
    early = lateness("burst", 1.0, 1.0, early=1, burst_messages=100_000)
    goal = "never early, in every lateness bench"
    assert (met([on_time], goal), met([on_time, early], goal)) == (True, False)


def test_a_goal_without_measurement_is_neither_met_nor_missed() -> None:
    assert {verdict.met for verdict in verdicts([])} == {None}
