"""What a plan measures of whom."""

from __future__ import annotations

import pytest
from bench.plan import BENCHES, PLANS, SHORT, Plan


def test_who_is_far_behind_is_measured_once_and_in_one_shape() -> None:
    assert (SHORT.repeats_of("throughput", "dejaq"), SHORT.repeats_of("throughput", "celery")) == (3, 1)
    first, later, behind = SHORT.of_repeat("dejaq", 0), SHORT.of_repeat("dejaq", 1), SHORT.of_repeat("celery", 0)
    assert (first.body_bytes, first.clients) == ((100, 1_024), (1, 4))
    assert (later.body_bytes, later.clients) == (behind.body_bytes, behind.clients) == ((100,), (1,))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_bench_of_a_plan_has_dejaq_and_only_systems_of_the_plan(plan: Plan) -> None:
    assert set(plan.benches) <= set(BENCHES)
    for bench in plan.benches:
        assert "dejaq" in plan.systems_of(bench)
        assert set(plan.systems_of(bench)) <= set(plan.systems)
        assert plan.repeats_of(bench, "dejaq") >= 1
