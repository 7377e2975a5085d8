"""The goals of the store on PostgreSQL are shares of what the bare table reaches with the same work."""

from __future__ import annotations

from typing import Any

import pytest
from bench.workloads.goals import workload_verdicts
from bench.workloads.verdicts import WorkloadVerdict


def record(bench: str, system: str, shape: dict[str, Any], **figures: Any) -> dict[str, Any]:
    return {"bench": bench, "system": system, "durable": True, "shape": shape, "settings": {}, **figures}


def verdicts(records: list[dict[str, Any]], workload: str) -> list[WorkloadVerdict]:
    found = workload_verdicts(records)
    return [one for one in found if one.workload == workload and one.goal.startswith("PostgreSQL")]


MONTH = {"spread": "30 days", "pending": 0}


@pytest.mark.parametrize(("ours", "outcome"), [(70.0, "met"), (35.0, "**missed by 50% of the goal**")])
def test_creates_reach_seven_tenths_of_the_bare_table(ours: float, outcome: str) -> None:
    records = [
        record("reminders", "dejaq-postgres-natural", {**MONTH, "buckets": 16}, create_per_s=ours),
        record("reminders", "skip-locked", MONTH, create_per_s=100.0),
        record("reminders", "redis-always", MONTH, create_per_s=900.0),
    ]
    assert [one.outcome for one in verdicts(records, "L1")] == [outcome]


def test_every_kind_of_change_is_judged_with_its_batch() -> None:
    rates = {f"{kind}_per_s": 100.0 for kind in ("get", "move", "edit", "cancel")}
    records = [
        record("by_id", system, {"batch": batch}, **rates)
        for system in ("dejaq-postgres-natural", "skip-locked")
        for batch in (1, 1_000)
    ]
    found = verdicts(records, "L9")
    assert [one.met for one in found] == [True] * 8
    assert sum("1,000 per call" in one.goal for one in found) == 4


@pytest.mark.parametrize(("p99", "met"), [(6.5, True), (6.6, False)])
def test_lateness_is_judged_over_the_floor(p99: float, met: bool) -> None:
    due = record("falling_due", "dejaq-postgres-natural", {"due_per_s": 4_000}, lateness_p99_ms=p99, floor_p99_ms=0.5)
    assert [one.met for one in verdicts([due], "L4")] == [met]


def test_a_goal_that_was_not_measured_is_listed() -> None:
    assert [one.outcome for one in verdicts([], "L6")] == ["-"]
