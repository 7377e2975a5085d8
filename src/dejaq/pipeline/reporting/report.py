"""The report: one page with every job's figures, picture and tables, readable without a server."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from dejaq.pipeline.reporting.findings import Findings

# What a table holds; the page scrolls through it. The jobs list no more.
ROWS_SHOWN = 1_000

_TITLES = {
    "audit": ("Audit", "Is every message accounted for?"),
    "accuracy": ("Accuracy", "How long after its time did user code get each message?"),
    "forecast": ("Forecast", "What falls due in the coming hours, and what does it take?"),
    "retries": ("Retries", "Which messages came again, and why?"),
    "traffic": ("Traffic", "How much does each group send?"),
}


def page(found: Sequence[Findings], *, lake: str, made_ms: int, newest_ms: int | None) -> str:
    """The whole page."""
    from dejaq.pipeline.reporting.plots import png

    sections = "\n".join(_section(findings, png(findings.draw())) for findings in found)
    links = " ".join(f'<a href="#{findings.job}">{_TITLES[findings.job][0]}</a>' for findings in found)
    newest = _time(newest_ms) if newest_ms else "none"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>DejaQ pipeline report</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>DejaQ pipeline report</h1>
<p>Lake <code>{escape(lake)}</code>, newest event {newest}, written {_time(made_ms)}.</p>
<nav>{links}</nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""


def _section(findings: Findings, picture: bytes) -> str:
    title, question = _TITLES[findings.job]
    cards = "".join(_card(name, value) for name, value in findings.figures.items() if value is not None)
    tables = "".join(_table(name, rows) for name, rows in findings.tables.items() if rows)
    data = base64.b64encode(picture).decode("ascii")
    state = ' class="failed"' if findings.failed else ""
    return f"""<section id="{findings.job}"{state}>
<h2>{title}</h2>
<p class="question">{question}</p>
<div class="cards">{cards}</div>
<img alt="{title}" src="data:image/png;base64,{data}">
{tables}
</section>"""


def _card(name: str, value: Any) -> str:
    return f'<div class="card"><b>{escape(shown(name, value))}</b><span>{escape(words(name))}</span></div>'


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0])
    head = "".join(f"<th>{escape(words(column))}</th>" for column in columns)
    body = "".join(f"<tr>{_cells(row, columns)}</tr>" for row in rows[:ROWS_SHOWN])
    more = f"<p class=more>and {len(rows) - ROWS_SHOWN:,} more</p>" if len(rows) > ROWS_SHOWN else ""
    return f"""<details{" open" if name in _OPEN else ""}><summary>{escape(words(name))} ({len(rows):,})</summary>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}</details>
"""


def _cells(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    return "".join(
        f'<td class="number">{escape(shown(column, row[column]))}</td>'
        if isinstance(row[column], int | float) and not isinstance(row[column], bool)
        else f"<td>{escape(shown(column, row[column]))}</td>"
        for column in columns
    )


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
_STYLE = """
:root { --ink: #212529; --soft: #868e96; --line: #dee2e6; --blue: #2463eb; --back: #f8f9fa; }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); }
header { background: #0b1f4b; color: white; padding: 1.6rem max(1rem, calc(50% - 34rem)); }
header h1 { margin: 0; font-size: 1.6rem; }
header p { margin: .3rem 0 .8rem; opacity: .85; overflow-wrap: anywhere; }
nav a { color: white; margin-right: 1rem; }
main { max-width: 68rem; margin: 0 auto; padding: 1rem; }
section { background: white; border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.4rem; margin: 1rem 0; }
section.failed { border: 2px solid #c92a2a; }
h2 { margin: .2rem 0 0; }
.question { margin: 0 0 .8rem; color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .6rem; margin-bottom: 1rem; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .5rem .9rem; min-width: 7rem; }
.card b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .8rem; }
.failed .card:last-child b { color: #c92a2a; }
img { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 8px; }
details { margin: .8rem 0 0; }
summary { cursor: pointer; font-weight: 600; }
summary::first-letter { text-transform: uppercase; }
.scroll { overflow: auto; max-height: 32rem; }
thead th { position: sticky; top: 0; background: white; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; margin-top: .4rem; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
td { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
td.number { font-variant-numeric: tabular-nums; }
.more { color: var(--soft); }
"""
