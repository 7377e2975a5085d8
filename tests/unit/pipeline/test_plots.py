"""The pictures and tables of the report."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the pipeline is not installed")

from dejaq.pipeline.reporting.findings import Findings
from dejaq.pipeline.reporting.plots import accuracy_plot
from dejaq.pipeline.reporting.report import page
from dejaq.pipeline.spark import session
from dejaq.pipeline.spark.java import Java


@pytest.mark.parametrize("worst", [0.2, 90.0, 70_000.0])
def test_no_lateness_is_cut_off(worst: float) -> None:
    """U23: the highest point was at the edge of the picture, and half of the picture was for negative values."""
    rows = [{"topic": "mail", "hour_ms": 3_600_000, "delivered": 1, "p50_ms": 0.1, "p99_ms": worst}]
    over_time, _ = accuracy_plot(rows, [{"topic": "mail", "from_ms": 60_000, "count": 1}], slo_ms=100).axes
    low, high = over_time.get_ylim()
    assert (low, high) == (0, 2 * max(worst, 100))
    early = [{**rows[0], "p50_ms": -3.0}]
    assert accuracy_plot(early, [], slo_ms=100).axes[0].get_ylim()[0] == -6


def test_a_table_of_the_report_holds_every_row_that_a_job_lists() -> None:
    """U23: tables ended after twenty rows, and the page did not show the others."""
    rows = [{"id": f"m-{number}"} for number in range(300)]
    figure = accuracy_plot([], [], slo_ms=100)
    tables: dict[str, list[dict[str, str]]] = {"balance": [], "findings": rows}
    text = page([Findings("audit", tables, {}, lambda: figure)], lake="x", made_ms=0, newest_ms=None)
    # The page draws its tables from data that it contains.
    assert all(f'"{row["id"]}"' in text for row in rows)


def test_class_archives_of_other_releases_are_removed(tmp_path: Path) -> None:
    """U23: each version of Spark and Java left 190 MB in the cache permanently."""
    java = Java(home=tmp_path, version=(17, 0, 1))
    (used,) = [option for option in session._archive_options(java, tmp_path) if "ArchiveClassesAtExit" in option]
    old, young = tmp_path / "spark-3.0-java-17.jsa", tmp_path / "spark-4.9-java-17.jsa"
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 200_000,) * 2)
    session._archive_options(java, tmp_path)
    assert (used.endswith(".made"), old.exists(), young.exists()) == (True, False, True)
