"""The report: one page with every job's figures, charts and tables, readable without a server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from dejaq.pipeline.reporting.charts import charts_of
from dejaq.pipeline.reporting.findings import Findings
from dejaq.pipeline.reporting.rows import LISTED_MAX

_TITLES = {
    "audit": ("Audit", "Is every message accounted for?"),
    "accuracy": ("Accuracy", "How long after its time did user code get each message?"),
    "forecast": ("Forecast", "What falls due in the coming hours, and what does it take?"),
    "retries": ("Retries", "Which messages came again, and why?"),
    "traffic": ("Traffic", "How much does each group send?"),
}


def page(found: Sequence[Findings], *, lake: str, made_ms: int, newest_ms: int | None) -> str:
    """The whole page. It loads nothing, and runs only the script whose digest its policy names."""
    newest = _time(newest_ms) if newest_ms else "none"
    data = json.dumps({"sections": [_section(findings) for findings in found]}, separators=(",", ":"))
    # In a script element only this character could end the element.
    data = data.replace("<", "\\u003c")
    style, script = _part("report.css"), _part("report.js")
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>DejaQ pipeline report</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>DejaQ pipeline report</h1>
<p>Lake <code>{escape(lake)}</code>, newest event {newest}, written {_time(made_ms)}.</p>
<nav aria-label="jobs"></nav>
</header>
<main><noscript>The charts and tables of this report are drawn by a script of its own.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _part(name: str) -> str:
    return (files("dejaq.pipeline.reporting") / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _section(findings: Findings) -> dict[str, Any]:
    title, question = _TITLES[findings.job]
    return {
        "job": findings.job,
        "title": title,
        "question": question,
        "failed": findings.failed,
        "figures": [[words(name), shown(name, value)] for name, value in findings.figures.items() if value is not None],
        "charts": charts_of(findings),
        "tables": [_table(name, rows) for name, rows in findings.tables.items() if rows],
    }


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every row, each cell as [text] or, where texts have another order than their values, as [text, value]."""
    columns = list(rows[0])
    numbers = {column for column in columns if any(_is_number(row[column]) for row in rows)}
    return {
        "name": words(name),
        "open": name in _OPEN,
        "columns": [{"name": words(column), "kind": "number" if column in numbers else "text"} for column in columns],
        "rows": [
            [
                [shown(column, row[column]), row[column] if row[column] is not None else -1]
                if column in numbers
                else [shown(column, row[column])]
                for column in columns
            ]
            for row in rows
        ],
        "note": f"The first {LISTED_MAX:,}; the figures count all." if len(rows) == LISTED_MAX else "",
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def words(name: str) -> str:
    """A column's name as people read it; a time loses its unit, a length keeps it."""
    if name in _TIMES:
        name = name.removesuffix("_ms")
    return name.removesuffix("_ms").replace("_", " ") + (", ms" if name.endswith("_ms") else "")


def shown(name: str, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _TIMES:
        return _time(int(value))
    if name == "body_crc":
        return f"{value:08x}"
    if name.endswith("_share"):
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:,.{3 if abs(value) < 10 else 1}f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time(ms: int) -> str:
    form = "%Y-%m-%d %H:%M UTC" if ms % 60_000 == 0 else "%Y-%m-%d %H:%M:%S UTC"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)


_OPEN = frozenset(
    {"balance", "findings", "gaps", "hours", "topics", "groups", "poison_candidates", "arrival_errors", "assumptions"}
)
_TIMES = frozenset({"hour_ms", "minute_ms", "created_ms", "first_ms", "last_ms", "busiest_minute_ms"})
