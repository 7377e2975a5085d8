"""The systems and shapes that each plan measures."""

from __future__ import annotations

import pytest
from bench.plan import BENCHES, FULL, PLANS, QUICK, SHORT, Plan
from bench.workloads.names import WORKLOADS


def test_a_much_slower_system_is_measured_once_and_in_one_shape() -> None:
    assert (SHORT.repeats_of("throughput", "dejaq"), SHORT.repeats_of("throughput", "celery")) == (3, 1)
    first, later, behind = SHORT.of_repeat("dejaq", 0), SHORT.of_repeat("dejaq", 1), SHORT.of_repeat("celery", 0)
    assert (first.body_bytes, first.clients) == ((100, 1_024), (1, 4))
    assert (later.body_bytes, later.clients) == (behind.body_bytes, behind.clients) == ((100,), (1,))


def test_the_long_runs_are_never_repeated_and_other_workloads_as_other_long_benches() -> None:
    assert FULL.repeats_of("uptime", "dejaq-natural") == FULL.repeats_of("slow_work", "redis-always") == 1
    assert FULL.repeats_of("reminders", "dejaq-natural") == FULL.long_repeats


def test_the_quick_plan_has_every_workload_with_redis() -> None:
    assert set(WORKLOADS.values()) <= set(QUICK.benches)
    assert "redis-always" in QUICK.systems_of("falling_due")


def test_the_quick_plan_compares_postgresql_with_the_bare_table_in_the_workloads_only() -> None:
    assert {"dejaq-postgres-natural", "skip-locked"} <= set(QUICK.systems_of("by_id"))
    assert "skip-locked" in QUICK.every_system
    assert "skip-locked" not in QUICK.systems_of("throughput")


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_bench_of_a_plan_has_dejaq_and_only_systems_of_the_plan(plan: Plan) -> None:
    assert set(plan.benches) <= set(BENCHES)
    for bench in plan.benches:
        assert "dejaq" in plan.systems_of(bench)
        assert set(plan.systems_of(bench)) <= set(plan.every_system)
        assert plan.repeats_of(bench, "dejaq") >= 1
