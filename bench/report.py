"""Writes docs/performance.md and its plots from a results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import records
from bench.goals import verdicts
from bench.records import RESULTS, Record, shape_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
NOTES = RESULTS / "notes.md"
SET_UP = ("server", "layout", "client", "later", "ids")
NOTICE = "<!-- Generated from bench/results/latest.json by `make bench-report`; change bench/, not this page. -->"

INTRODUCTION = """\
The same work for every system, in one run on one machine: real servers on loopback with new data, client processes
of their own for every producer and consumer, systems interleaved and repeated. Figures are medians; the range over
repeats is in `bench/results/latest.json` under `spread`. *Durable* means that every acknowledgement follows an fsync.
Each peer is at its best: batched or pipelined, with its fastest maintained Python client. A phase that a system
cannot finish within its time limit is cut, and the last column says how much it did.

Lateness is measured in user code, on the wall clock that broker and consumers of one machine share. The machine
itself is late now and then, so a bare process that sleeps to each millisecond runs beside every lateness bench:
that is the *floor*.

Measure again with `make bench` (hours) or `make bench-quick` (five minutes, ratios only).
"""

_LATENESS = ("early", "undelivered", "lateness_p50_ms", "lateness_p99_ms", "lateness_p999_ms", "lateness_max_ms")
TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "throughput": (
        "Throughput",
        "Create N, then lease and delete N; then both at once. CPU is the broker's, for create + lease + delete.",
        (
            "create_per_s",
            "lease_delete_per_s",
            "end_to_end_per_s",
            "broker_cpu_us_per_message",
            "fsyncs_per_1000_messages",
        ),
    ),
    "accuracy": (
        "Accuracy",
        "Some due every millisecond while many are pending.",
        (*_LATENESS, "floor_p50_ms", "floor_p99_ms", "floor_p999_ms", "rss_mb"),
    ),
    "depth": (
        "Depth",
        "The same with ten times as many pending, in the shapes of the only peer that publishes such figures.",
        (*_LATENESS, "floor_p50_ms", "floor_p99_ms", "floor_p999_ms", "rss_mb", "first_delivery_s"),
    ),
    "burst": (
        "Bursts",
        "Very many due at one instant; two consumers that take batches.",
        (*_LATENESS, "floor_p99_ms", "drain_per_s"),
    ),
    "mutate": ("Changes", "Cancel, move and edit what is pending.", ("cancel_per_s", "move_per_s", "edit_per_s")),
    "priority": (
        "Priority",
        "Created in any order over very many priorities, then leased and deleted, the lowest first. Redis with "
        "a sorted set by priority; RabbitMQ has 255 priorities at most, the others none.",
        ("create_per_s", "lease_delete_per_s", "out_of_order", "broker_cpu_us_per_message"),
    ),
    "cron": (
        "Schedules",
        "Each schedule runs once a minute, at a second of its own; then as many messages a second on a plain timeline, "
        "in the same run. Lateness in whole ms, by the broker's clock.",
        (
            "added_per_s",
            "occurrences_per_s",
            "broker_cpu_us_per_occurrence",
            "lateness_p50_ms",
            "lateness_p99_ms",
            "lateness_p999_ms",
            "plain_p50_ms",
            "plain_p99_ms",
            "plain_p999_ms",
        ),
    ),
    "transactions": (
        "Transactions",
        "Consume, process and produce: an input deleted and an output created in one commit.",
        (
            "transactions_per_s",
            "messages_per_s",
            "commit_p50_ms",
            "commit_p99_ms",
            "broker_cpu_us_per_transaction",
        ),
    ),
    "latency": (
        "Latency",
        "Due now, from before the send to user code, one at a time.",
        ("latency_p50_ms", "latency_p99_ms", "floor_p99_ms"),
    ),
    "send_loop": ("Plain sends", "`await send(...)` in a loop, 64 tasks of one client.", ("send_per_s",)),
}


def write_report(results: Path) -> None:
    """Draw the plots and write the page."""
    from bench.plots import draw_all

    found = records.read(results)
    plots = draw_all(found["records"], PLOTS)
    notes = NOTES.read_text(encoding="utf-8") if NOTES.exists() else ""
    PAGE.write_text(page(found["machine"], found["records"], plots, notes), encoding="utf-8")
    print(f"wrote {PAGE} and {len(plots)} plots")


def page(machine: dict[str, Any], found: Sequence[Record], plots: dict[str, str], notes: str) -> str:
    """The whole page."""
    parts = [NOTICE, "# Performance", INTRODUCTION, _machine(machine), _goals(found)]
    if notes.strip():
        parts.append(notes)
    for bench, (title, text, figures) in TABLES.items():
        rows = [record for record in found if record["bench"] == bench]
        if not rows:
            continue
        parts.append(f"## {title}\n\n{text}")
        plot = f"{bench}.png"
        if plot in plots:
            parts.append(f"![{plots[plot]}](performance/{plot})")
        parts.extend(_tables(rows, figures))
    parts.append(_systems(found))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """A Markdown table; with `numbers` all but the first column stand to the right."""
    marks = ["---"] + ["---:" if numbers else "---"] * (len(header) - 1)
    lines = [header, marks, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _machine(machine: dict[str, Any]) -> str:
    return "## Machine\n\n" + table(("fact", "value"), [(name, _fact(value)) for name, value in machine.items()])


def _fact(value: Any) -> str:
    return ", ".join(f"{name} {held}" for name, held in value.items()) if isinstance(value, dict) else str(value)


def _goals(found: Sequence[Record]) -> str:
    marks = {True: "met", False: "**not met**", None: "-"}
    rows = [(verdict.goal, verdict.measured, marks[verdict.met]) for verdict in verdicts(found)]
    return "## Goals\n\n" + table(("goal", "measured", ""), rows)


def _tables(rows: Sequence[Record], figures: Sequence[str]) -> list[str]:
    parts = []
    good = [record for record in rows if "error" not in record]
    for shape in dict.fromkeys(shape_text(record) for record in good):
        same = [record for record in good if shape_text(record) == shape]
        shown = [figure for figure in figures if any(record.get(figure) is not None for record in same)]
        lines = [
            [_system(record), *(number(record.get(figure)) for figure in shown), _amount(record)] for record in same
        ]
        parts.append(f"**{shape}**\n\n" + table(("system", *shown, "work"), lines, numbers=True))
    parts.extend(f"{record['system']} failed: `{record['error']}`" for record in rows if "error" in record)
    return parts


def _system(record: Record) -> str:
    return f"**{record['system']}**" if str(record["system"]).startswith("dejaq") else str(record["system"])


def _amount(record: Record) -> str:
    """How much work there really was."""
    settings = record.get("settings", {})
    amounts = ("messages", "pending", "due", "changes", "schedules")
    return ", ".join(f"{settings[name]:,} {name}" for name in amounts if name in settings)


def number(value: float | int | None) -> str:
    """A figure as people read it."""
    if value is None:
        return "-"
    if isinstance(value, int) or value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.2f}"


def _systems(found: Sequence[Record]) -> str:
    rows = {}
    for record in found:
        settings = record.get("settings", {})
        told = "; ".join(str(settings[name]) for name in SET_UP if name in settings)
        rows[record["system"]] = (record["system"], str(record["version"]), "yes" if record["durable"] else "no", told)
    return "## Systems\n\n" + table(("system", "version", "durable", "set-up"), list(rows.values()))
