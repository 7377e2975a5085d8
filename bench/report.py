"""Writes docs/performance.md and its plots from a results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import records
from bench.goals import verdicts
from bench.records import RESULTS, Record, peer_shape
from bench.workloads.goals import workload_verdicts
from bench.workloads.names import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
NOTES = RESULTS / "notes.md"
SET_UP = ("server", "layout", "client", "later", "ids")
NOTICE = "<!-- Generated from bench/results/latest.json by `make bench-report`; change bench/, not this page. -->"

INTRODUCTION = """\
Every system does the same work, in one run on one machine: real servers on loopback with new data, a separate client
process for every producer and consumer, and systems that alternate and are repeated. Figures are medians; the range
over repeats is in `bench/results/latest.json` under `spread`. *Durable* means that every acknowledgement follows an
fsync. Each peer has its best settings: batched or pipelined, with its fastest maintained Python client. A phase that a
system cannot finish within its time limit is stopped, and the last column says how much work was done.

Lateness is measured in user code, with the wall clock that broker and consumers of one machine share. The machine
itself is sometimes late, so a process that only sleeps until each millisecond runs at the same time as every lateness
bench: its lateness is the *floor*.

Measure again with `make bench` (hours) or `make bench-quick` (six minutes, ratios only).
"""

_LATENESS = ("early", "undelivered", "lateness_p50_ms", "lateness_p99_ms", "lateness_p999_ms", "lateness_max_ms")
_CREATE = ("create_per_s", "create_cpu_us_per_message", "rss_mb", "memory_bytes_per_message")
_GROWTH = ("rss_start_mb", "rss_mb", "rss_slope_mb_per_million", "rss_growth_percent", "client_slope_mb_per_million")
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
        "Some messages are due every millisecond while many are pending.",
        (*_LATENESS, "floor_p50_ms", "floor_p99_ms", "floor_p999_ms", "rss_mb"),
    ),
    "depth": (
        "Depth",
        "Ten times as many pending messages, at the rates of the only peer that publishes such figures.",
        (*_LATENESS, "floor_p50_ms", "floor_p99_ms", "floor_p999_ms", "rss_mb", "first_delivery_s"),
    ),
    "burst": (
        "Bursts",
        "Very many messages are due at one instant; two consumers receive batches.",
        (*_LATENESS, "floor_p99_ms", "drain_per_s"),
    ),
    "mutate": ("Changes", "Cancel, move and edit pending messages.", ("cancel_per_s", "move_per_s", "edit_per_s")),
    "cron": (
        "Schedules",
        "Each schedule runs once per minute, at different seconds; then a plain timeline with as many messages per "
        "second, in the same run. Lateness in whole ms, by the broker's clock.",
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
        "Messages that are due now, one at a time; the time from before the send until user code has the message.",
        ("latency_p50_ms", "latency_p99_ms", "floor_p99_ms"),
    ),
    "send_loop": ("Plain sends", "`await send(...)` in a loop, 64 tasks of one client.", ("send_per_s",)),
}


WORKLOAD_TEXT = """\
Real use is scattered in time, consists of small calls and has many clients. Times are uniform and arrive in random
order, and ids are chosen by the client and look random. *Floor* is the bare sleeper. Redis runs with
`appendfsync always` and Lua in the same run, wherever Redis can do the workload. L1 to L17 are the numbers of the
workloads. A goal without a figure was not measured in this run.
"""
WORKLOAD_TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "reminders": (
        "Reminders",
        "Created in batches of 1,000 with times uniform over 30 days, with own ids.",
        _CREATE,
    ),
    "generated_ids": (
        "Generated ids",
        "The same, where DejaQ generates the ids.",
        _CREATE,
    ),
    "next_minute": (
        "The next minute",
        "The same with own ids and times uniform over the next 60 seconds.",
        _CREATE,
    ),
    "falling_due": (
        "What falls due",
        "Scattered messages are pending; others, which arrived in random order, fall due for two consumers.",
        (*_LATENESS, "floor_p50_ms", "floor_p99_ms", "floor_p999_ms", "broker_cpu_us_per_message", "rss_mb"),
    ),
    "watched": (
        "What falls due while somebody looks",
        "The deliveries of the table above, while a client asks for a histogram of 30 days, a page, counts by producer "
        "group and status, and the state of the cluster, each once per second. The first count of a group reads the "
        "topic once; its time is given by itself.",
        (
            *_LATENESS,
            "histogram_p99_ms",
            "browse_p99_ms",
            "count_p99_ms",
            "info_p99_ms",
            "first_count_by_group_ms",
            "broker_cpu_us_per_message",
            "rss_mb",
        ),
    ),
    "tabs": (
        "What falls due while a hundred tabs are open",
        "The same deliveries, while a hundred pages of `dejaq web` are open: the overview, ten stretches of the "
        "timeline, and what is due next. *Refresh* is the time between two answers of a view.",
        (*_LATENESS, "answers_per_s", "refresh_p50_ms", "refresh_p99_ms", "broker_cpu_us_per_message", "rss_mb"),
    ),
    "single_sends": (
        "Single sends",
        "Many producers over few connections send one message per call, at times uniform over an hour. *ack* is the "
        "time from the call to its acknowledgement.",
        (
            "send_per_s",
            "broker_cpu_us_per_message",
            "ack_p50_ms",
            "ack_p99_ms",
            "ack_p999_ms",
            "refused",
            "rss_mb",
            "memory_bytes_per_message",
        ),
    ),
    "by_id": (
        "Change of mind",
        "Get, move, edit and cancel pending messages by ids that are drawn at random.",
        (
            "get_per_s",
            "move_per_s",
            "edit_per_s",
            "cancel_per_s",
            "get_cpu_us_per_message",
            "move_cpu_us_per_message",
            "edit_cpu_us_per_message",
            "cancel_cpu_us_per_message",
            "rss_mb",
        ),
    ),
    "large_backlog": (
        "A backlog of 1 KB bodies",
        "Created with own ids in random order, then leased and deleted when all of it is due.",
        (
            "create_per_s",
            "lease_delete_per_s",
            "create_cpu_us_per_message",
            "lease_delete_cpu_us_per_message",
            "undelivered",
            "rss_mb",
        ),
    ),
    "priority": (
        "Priority",
        "Created in any order over very many priorities, then leased and deleted, the lowest first. Redis with "
        "a sorted set by priority; RabbitMQ has 255 priorities at most, the others none.",
        ("create_per_s", "lease_delete_per_s", "out_of_order", "broker_cpu_us_per_message"),
    ),
    "slow_work": (
        "Slow work",
        "A consumer holds leases, which are extended again and again, while other messages pass. Slopes are those of "
        "the straight line through the samples after the first tenth.",
        ("pass_per_s", "broker_cpu_us_per_message", *_GROWTH, "held_leases", "lost_leases", "redelivered"),
    ),
    "fleet": (
        "A fleet",
        "Many consumers join one topic, hold each message for 100 ms, and a fifth of them leaves at once. *leaving* is "
        "the lateness in the five seconds after that, *after* the lateness afterwards.",
        (
            "joined_s",
            "idle_cpu_percent",
            "lateness_p50_ms",
            "lateness_p99_ms",
            "leaving_p99_ms",
            "after_p99_ms",
            "floor_p99_ms",
            "broker_cpu_us_per_message",
            "undelivered",
            "redelivered",
            "rss_mb",
        ),
    ),
    "topics": (
        "Many topics",
        "Topics are created with 64 calls in flight, and each gets 20 messages; then the broker restarts.",
        ("topics_per_s", "create_cpu_us_per_topic", "start_s", "list_s", "idle_cpu_percent", "rss_mb"),
    ),
    "one_at_a_time": (
        "One at a time",
        "A message that is due now, from the send to user code, one after the other; and transactions of one message "
        "in and one out, 32 at once. Redis has no counterpart of the second.",
        (
            "latency_p50_ms",
            "latency_p99_ms",
            "floor_p50_ms",
            "transactions_per_s",
            "commit_p50_ms",
            "commit_p99_ms",
            "broker_cpu_us_per_transaction",
        ),
    ),
    "ordinary": (
        "An ordinary service",
        "Ten producers and ten consumers of five topics make one call per message. They are closed and opened again, "
        "and a topic is created and deleted twice per second.",
        (
            "sent_per_s",
            "broker_cpu_us_per_message",
            "broker_cpu_percent",
            "ack_p50_ms",
            "ack_p99_ms",
            "lateness_p50_ms",
            "lateness_p99_ms",
            "floor_p99_ms",
            "undelivered",
            "redelivered",
            "rss_mb",
        ),
    ),
    "log": (
        "A log",
        "Batches of 1,000 are appended, read by one reader and by a group of four, and both at once; single appends "
        "with 64 in flight; one message at a time from the append to user code; groups that commit their offsets. All "
        "readers are members of a group and commit.",
        (
            "append_per_s",
            "append_cpu_us_per_message",
            "read_per_s",
            "read_cpu_us_per_message",
            "read_by_four_per_s",
            "both_per_s",
            "both_cpu_us_per_message",
            "undelivered",
            "single_per_s",
            "single_cpu_us_per_message",
            "latency_p50_ms",
            "latency_p99_ms",
            "floor_p99_ms",
            "commits_per_s",
            "commit_cpu_us_per_offset",
        ),
    ),
    "log_beside": (
        "A timeline beside a log",
        "Messages of a timeline fall due, alone and while a log on the same broker takes batches.",
        (*_LATENESS, "floor_p50_ms", "floor_p99_ms", "append_reached_per_s", "broker_cpu_us_per_message", "rss_mb"),
    ),
    "connections": (
        "Idle connections",
        "Connections that are open and do nothing, without a session and with one, which is pinged every three "
        "seconds.",
        ("connection_kb", "idle_cpu_percent", "rss_mb"),
    ),
    "uptime": (
        "Uptime",
        "A day's traffic replayed at speed: in every round, groups, consumers, connections and topics come and go. "
        "The broker restarts after the first tenth and at the end; *export* is the time until the journal has "
        "everything.",
        (
            "pass_per_s",
            "broker_cpu_us_per_message",
            *_GROWTH,
            "start_first_s",
            "start_last_s",
            "export_first_s",
            "export_last_s",
            "disk_mb",
        ),
    ),
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
    parts = [NOTICE, "# Performance", INTRODUCTION, *_workloads(found), _machine(machine), _goals(found)]
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


def _workloads(found: Sequence[Record]) -> list[str]:
    """The realistic workloads: their goals, then the figures of each."""
    goals = [(one.workload, one.goal, one.measured, one.outcome) for one in workload_verdicts(found)]
    parts = [f"## Realistic workloads\n\n{WORKLOAD_TEXT}"]
    parts.append(table(("workload", "goal", "measured", "outcome"), goals))
    numbers = {bench: number for number, bench in WORKLOADS.items()}
    for bench, (title, text, figures) in WORKLOAD_TABLES.items():
        rows = [record for record in found if record["bench"] == bench]
        if rows:
            heading = f"{numbers[bench]}: {title}" if bench in numbers else title
            parts.append(f"### {heading}\n\n{text}")
            parts.extend(_tables(rows, figures))
    return parts


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """A Markdown table; with `numbers` all columns except the first are aligned to the right."""
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
    return "## Goals with friendly workloads\n\n" + table(("goal", "measured", ""), rows)


def _tables(rows: Sequence[Record], figures: Sequence[str]) -> list[str]:
    parts = []
    good = [record for record in rows if "error" not in record]
    for shape in dict.fromkeys(map(peer_shape, good)):
        same = [record for record in good if peer_shape(record) == shape]
        shown = [figure for figure in figures if any(record.get(figure) is not None for record in same)]
        lines = [
            [_system(record), *(number(record.get(figure)) for figure in shown), _amount(record)] for record in same
        ]
        parts.append(f"**{shape}**\n\n" + table(("system", *shown, "work"), lines, numbers=True))
    parts.extend(f"{record['system']} failed: `{record['error']}`" for record in rows if "error" in record)
    return parts


def _system(record: Record) -> str:
    name = f"**{record['system']}**" if str(record["system"]).startswith("dejaq") else str(record["system"])
    buckets = record.get("shape", {}).get("buckets")
    return name if buckets is None else f"{name}, {buckets} buckets"


def _amount(record: Record) -> str:
    """How much work was really done."""
    settings = record.get("settings", {})
    amounts = ("messages", "pending", "due", "changes", "schedules")
    return ", ".join(f"{settings[name]:,} {name}" for name in amounts if name in settings)


def number(value: float | int | None) -> str:
    """A figure in readable form."""
    if value is None:
        return "-"
    if isinstance(value, int) or value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.2f}"


def _systems(found: Sequence[Record]) -> str:
    rows = {}
    for record in found:
        settings = record.get("settings", {})
        set_up = "; ".join(str(settings[name]) for name in SET_UP if name in settings)
        rows[record["system"]] = (
            record["system"],
            str(record["version"]),
            "yes" if record["durable"] else "no",
            set_up,
        )
    return "## Systems\n\n" + table(("system", "version", "durable", "set-up"), list(rows.values()))
