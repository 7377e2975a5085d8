"""Each goal of the workloads is met at its bound and missed beyond it, and a miss says by how much."""

from __future__ import annotations

from typing import Any

import pytest
from bench.workloads.goals import workload_verdicts
from bench.workloads.verdicts import WorkloadVerdict


def record(
    bench: str, system: str = "dejaq-natural", shape: dict[str, Any] | None = None, **figures: Any
) -> dict[str, Any]:
    return {"bench": bench, "system": system, "durable": True, "shape": shape or {}, "settings": {}, **figures}


def verdict(records: list[dict[str, Any]], workload: str, part: str) -> WorkloadVerdict:
    (found,) = [one for one in workload_verdicts(records) if one.workload == workload and part in one.goal]
    return found


MONTH = {"spread": "30 days", "pending": 0}


@pytest.mark.parametrize(("ours", "outcome"), [(200.0, "met"), (100.0, "**missed by 50% of the goal**")])
def test_creates_are_compared_with_redis_in_the_same_shape(ours: float, outcome: str) -> None:
    records = [
        record("reminders", shape={**MONTH, "buckets": 16}, create_per_s=ours),
        record("reminders", "redis-always", MONTH, create_per_s=100.0),
        record("reminders", "redis-always", {**MONTH, "pending": 20_000_000}, create_per_s=9.0),
        record("reminders", "redis-everysec", MONTH, create_per_s=900.0),
    ]
    assert verdict(records, "L1", "2 x Redis").outcome == outcome


def test_every_number_of_buckets_and_of_pending_messages_is_judged() -> None:
    records = [
        record("reminders", shape={"buckets": 16, "pending": 0}, create_cpu_us_per_message=4.0),
        record("reminders", shape={"buckets": 64, "pending": 0}, create_cpu_us_per_message=4.1),
        record("reminders", shape={"buckets": 64, "pending": 20_000_000}, create_cpu_us_per_message=26.0),
    ]
    found = [one for one in workload_verdicts(records) if one.workload == "L1" and "CPU" in one.goal]
    assert [one.outcome for one in found] == [
        "met",
        "**missed by 0.10 us**",
        "**missed by 22.00 us (6.5 x the goal)**",
    ]
    assert "20,000,000 pending" in found[2].goal


@pytest.mark.parametrize(("p99", "met"), [(3.5, True), (3.6, False)])
def test_lateness_is_judged_over_the_floor(p99: float, met: bool) -> None:
    due = record("falling_due", shape={"due_per_s": 4_000}, lateness_p99_ms=p99, floor_p99_ms=0.5)
    assert verdict([due], "L4", "4,000 due per second: p99 at most").met is met


def test_memory_of_single_sends_is_that_of_ten_million_or_follows_from_the_growth_per_message() -> None:
    million = record("single_sends", shape={"messages": 1_000_000}, memory_bytes_per_message=2_000.0)
    assert verdict([million], "L6", "10 M").measured.startswith("20,000 MB by the growth")
    whole = record("single_sends", shape={"messages": 10_000_000}, memory_bytes_per_message=90.0, rss_mb=990.0)
    whole["settings"] = {"messages": 10_000_000}
    assert verdict([million, whole], "L6", "10 M").outcome == "met"


def test_creates_that_were_refused_are_a_miss() -> None:
    part = record("single_sends", shape={"messages": 1_000_000})
    part["settings"] = {"messages": 900_000}
    assert verdict([part], "L6", "all are accepted").outcome == "**missed by 10% of the goal**"


def test_changes_are_judged_by_kind_and_batch_size() -> None:
    records = [
        record("by_id", shape={"batch": 1_000, "in_flight": 4}, get_per_s=150_000.0, move_per_s=15_000.0),
        record("by_id", shape={"batch": 1, "in_flight": 64}, get_per_s=39_000.0),
    ]
    assert verdict(records, "L9", "get in batches").met is True
    assert verdict(records, "L9", "move in batches").missed_by == "90% of the goal"
    assert verdict(records, "L9", "get single").met is False
    assert verdict(records, "L9", "cancel single").met is None


@pytest.mark.parametrize(("many", "met"), [(15.0, True), (16.0, False)])
def test_a_cliff_is_a_backlog_that_costs_more_per_message_when_it_is_larger(many: float, met: bool) -> None:
    records = [
        record("large_backlog", shape={"messages": 600_000}, lease_delete_cpu_us_per_message=many),
        record("large_backlog", shape={"messages": 100_000}, lease_delete_cpu_us_per_message=10.0),
    ]
    assert verdict(records, "L10", "no cliff").met is met


@pytest.mark.parametrize(("growth", "met"), [(-2.0, True), (5.0, True), (5.1, False)])
def test_memory_is_flat_when_it_grows_by_a_few_percent_at_most(growth: float, met: bool) -> None:
    for bench, workload in (("slow_work", "L13"), ("uptime", "L14")):
        found = record(bench, rss_growth_percent=growth, rss_slope_mb_per_million=0.1, rss_mb=200.0)
        assert verdict([found], workload, "memory flat").met is met


def test_start_and_export_may_differ_by_what_one_measurement_differs_from_the_next() -> None:
    found = record("uptime", start_first_s=1.0, start_last_s=1.5, export_first_s=10.0, export_last_s=12.1)
    assert verdict([found], "L14", "start time").met is True
    assert verdict([found], "L14", "journal").met is False


def test_a_workload_that_failed_or_did_not_run_is_neither_met_nor_missed() -> None:
    failed = record("uptime", shape={"failed": True}, error="no broker")
    assert {one.outcome for one in workload_verdicts([failed])} == {"-"}
    assert {one.workload for one in workload_verdicts([])} == {
        *("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L11", "L12", "L13", "L14", "L15"),
        *("L16", "L17"),
    }


def test_a_log_is_judged_beside_its_peers() -> None:
    shape = {"work": "batches", "body_bytes": 100}
    records = [
        record("log", "dejaq-log", shape=shape, append_per_s=900.0, append_cpu_us_per_message=1.1),
        record("log", "redis-streams", shape=shape, append_per_s=300.0),
        record("log", "kafka-flush", shape=shape, append_per_s=1_000.0),
    ]
    assert verdict(records, "L16", "3 x redis-streams").met is True
    missed = verdict(records, "L16", "1 x kafka-flush")
    assert (missed.met, missed.missed_by) == (False, "10% of the goal")
    assert verdict(records, "L16", "append: at most 1 us").met is False


def test_a_timeline_beside_a_log_is_compared_with_itself_alone() -> None:
    records = [
        record("log_beside", "dejaq-log", shape={"appended_per_s": 0}, lateness_p99_ms=1.0),
        record("log_beside", "dejaq-log", shape={"appended_per_s": 200_000}, lateness_p99_ms=4.5),
    ]
    assert verdict(records, "L17", "beside a log").met is False
