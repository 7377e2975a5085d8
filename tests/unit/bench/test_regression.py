from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.regression import compare, lines, ratios


def record(system: str, **figures: Any) -> dict[str, Any]:
    return {"bench": "throughput", "system": system, "durable": True, "shape": {"body_bytes": 100}, **figures}


NAME = "throughput dejaq body_bytes=100 create_per_s"
RUN = [record("redis-always", create_per_s=100.0), record("dejaq", create_per_s=150.0)]


def test_the_ratio_of_a_rate_is_ours_divided_by_the_peers() -> None:
    assert [(ratio.name, ratio.value) for ratio in ratios(RUN, {})] == [(NAME, 1.5)]


def test_a_peer_without_buckets_is_compared_with_every_number_of_buckets() -> None:
    ours = [
        {**record("dejaq-natural", create_per_s=10.0 * buckets), "shape": {"buckets": buckets, "pending": 0}}
        for buckets in (16, 64)
    ]
    peer = {**record("redis-always", create_per_s=100.0), "shape": {"pending": 0}}
    assert [ratio.value for ratio in ratios([*ours, peer], {})] == [1.6, 6.4]


def test_a_store_on_postgresql_is_compared_with_the_bare_table_and_not_with_redis() -> None:
    run = [record("redis-always", create_per_s=9.0), record("skip-locked", create_per_s=100.0)]
    ours = record("dejaq-postgres", create_per_s=80.0)
    assert [ratio.value for ratio in ratios([*run, ours], {})] == [0.8]


def test_the_ratio_of_a_figure_that_should_be_small_is_inverted() -> None:
    run = [record("redis-always", lateness_p99_ms=30.0), record("dejaq", lateness_p99_ms=10.0)]
    assert [ratio.value for ratio in ratios(run, {})] == [3.0]


@pytest.mark.parametrize(("committed", "fell"), [(1.5, False), (2.1, False), (2.2, True)])
def test_a_fall_of_more_than_thirty_percent_is_flagged(committed: float, fell: bool) -> None:
    found = ratios(RUN, {NAME: committed})
    assert [ratio.fell for ratio in found] == [fell]
    assert ("FELL" in "\n".join(lines(found))) is fell


def test_without_the_peer_there_is_no_ratio() -> None:
    assert ratios([record("dejaq", create_per_s=1.0), record("redis-always")], {}) == []


def test_a_figure_that_is_no_rate_is_left_out() -> None:
    run = [record("redis-always", rss_mb=1.0, early=1), record("dejaq", rss_mb=2.0, early=1)]
    assert ratios(run, {}) == []


def test_committed_ratios_are_those_the_next_run_is_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "committed.json"
    assert compare(RUN, commit=True, path=path) == 0
    assert json.loads(path.read_text())["ratios"] == {NAME: 1.5}
    slower = [record("redis-always", create_per_s=100.0), record("dejaq", create_per_s=50.0)]
    compare(slower, commit=False, path=path)
    assert "1 of 1 figures with a committed ratio fell" in capsys.readouterr().out


def test_a_run_that_measured_nothing_is_a_failure(tmp_path: Path) -> None:
    failed = {"bench": "throughput", "system": "dejaq", "durable": True, "shape": {}, "error": "no broker"}
    assert compare([failed], commit=False, path=tmp_path / "none.json") == 1
