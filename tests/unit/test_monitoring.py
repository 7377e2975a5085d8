"""The alert rules and the dashboard in deploy/monitoring: every metric and label exists, and Prometheus parses them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dejaq.broker.metrics import METRICS

FOLDER = Path(__file__).resolve().parents[2] / "deploy/monitoring"
ALERTS = (FOLDER / "alerts.yml").read_text()
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SERIES = re.compile(r"\b(dejaq_\w+)(\{[^}]*\})?")
ADDED = {"instance", "job", "le"}


def known() -> dict[str, set[str]]:
    """The labels of every series that a broker exposes."""
    found: dict[str, set[str]] = {}
    for metric in METRICS:
        labels = set(metric.labels) | ADDED
        for suffix in ("", "_total", "_bucket", "_sum", "_count"):
            found[f"{metric.name}{suffix}"] = labels
    return found


@pytest.mark.parametrize("text", [ALERTS, *QUERIES])
def test_every_metric_and_label_exists(text: str) -> None:
    series = known()
    used = list(SERIES.finditer(text))
    assert {match[1] for match in used} <= series.keys()
    for match in used:
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", match[2] or "")) <= series[match[1]], match[0]


def test_every_alert_says_what_to_do() -> None:
    names = re.findall(r"- alert: (\w+)", ALERTS)
    assert len(names) == len(set(names)) == ALERTS.count("action: ") == ALERTS.count("summary: ") >= 10


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_parses_the_rules_and_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; `make system` installs Debian's prometheus, which has it")
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, query in enumerate(QUERIES):
        chosen = query.replace("$__rate_interval", "1m").replace("$topic", ".*")
        lines += [f"  - record: query_{number}", f"    expr: {json.dumps(chosen)}"]
    rules = tmp_path / "queries.yml"
    rules.write_text("\n".join(lines))
    for path in (FOLDER / "alerts.yml", rules):
        done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
