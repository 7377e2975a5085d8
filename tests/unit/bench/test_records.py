from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.plan import EVERYONE, LOG_SYSTEMS, PLANS
from bench.records import figures_of, merged, read, record_of, write
from bench.systems.catalog import SYSTEMS


def record(system: str = "dejaq", per_s: float = 5.0, **shape: Any) -> dict[str, Any]:
    return record_of(
        bench="throughput",
        system=system,
        durable=True,
        version="1",
        settings={"messages": 10},
        shape=shape or {"body_bytes": 100},
        runs=[{"create_per_s": per_s}],
        measured_at="2030-01-01T00:00:00+00:00",
    )


def test_a_record_has_its_figures_under_their_own_names() -> None:
    made = record(per_s=7.0)
    assert (made["bench"], made["system"], made["durable"], made["create_per_s"]) == ("throughput", "dejaq", True, 7.0)


def test_figures_contain_only_measurements() -> None:
    assert figures_of(record(per_s=7.0)) == {"create_per_s": 7.0}


def test_a_new_measurement_replaces_the_old_one_and_the_others_stay() -> None:
    kept = merged([record(per_s=1.0), record("nats", 2.0), record(body_bytes=1_024)], [record(per_s=9.0)])
    assert [(one["system"], one["create_per_s"], one["shape"]["body_bytes"]) for one in kept] == [
        ("nats", 2.0, 100),
        ("dejaq", 5.0, 1_024),
        ("dejaq", 9.0, 100),
    ]


def test_a_results_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    write(path, {"cores": 2}, [record()])
    assert read(path) == {"machine": {"cores": 2}, "records": [record()]}
    assert [file.name for file in path.parent.iterdir()] == ["latest.json"]


def test_every_plan_names_systems_that_exist() -> None:
    assert {*EVERYONE, *LOG_SYSTEMS} == set(SYSTEMS)
    assert all(set(plan.systems) | set(plan.long_systems) <= set(SYSTEMS) for plan in PLANS.values())
