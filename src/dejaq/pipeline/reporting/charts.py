"""The charts of the report as plain values: series over time, and bars. The page draws them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dejaq.pipeline.reporting.findings import Findings

Row = Mapping[str, Any]
Chart = dict[str, Any]
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
# More lines than this cannot be distinguished; the largest are drawn, and the tables have all.
TOPICS_MAX, BARS_MAX = 8, 16
_ENDINGS = ("deleted", "cancelled", "dead_lettered", "dropped", "pending")


def charts_of(findings: Findings) -> list[Chart]:
    """The charts of a job."""
    return [chart for chart in _JOBS[findings.job](findings) if chart.get("bars") or chart.get("series")]


def _over_time(title: str, series: Sequence[dict[str, Any]], step: int, *, stacked: bool = False) -> Chart:
    kept = [one for one in series if one["points"]]
    return {"title": title, "series": kept, "step": step, "stacked": stacked}


def _series(name: str, rows: Iterable[Row], at: str, value: str, *, dashed: bool = False) -> dict[str, Any]:
    points = sorted([row[at], row[value]] for row in rows if row[value] is not None)
    return {"name": name, "points": points, "dashed": dashed}


def _bars(title: str, names: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]], unit: str = "") -> Chart:
    shown = sorted(bars, key=lambda bar: -sum(bar[1]))[:BARS_MAX]
    return {
        "title": title,
        "names": list(names),
        "bars": [{"name": name, "parts": list(parts)} for name, parts in shown],
        "unit": unit,
    }


def _by_topic(rows: Iterable[Row], weight: str) -> dict[str, list[Row]]:
    """The rows of the heaviest topics."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["topic"]].append(row)
    heaviest = sorted(found, key=lambda topic: (-sum(row[weight] or 0 for row in found[topic]), topic))[:TOPICS_MAX]
    return {topic: found[topic] for topic in heaviest}


def _summed(rows: Iterable[Row], at: str, value: str) -> list[list[float]]:
    sums: dict[int, float] = defaultdict(float)
    for row in rows:
        sums[row[at]] += row[value]
    return [[moment, sums[moment]] for moment in sorted(sums)]


def _audit(findings: Findings) -> list[Chart]:
    names = [name.replace("_", " ") for name in _ENDINGS]
    bars = [(row["topic"], [row[name] for name in _ENDINGS]) for row in findings.tables["balance"]]
    return [_bars("What became of the messages", names, bars)]


def _accuracy(findings: Findings) -> list[Chart]:
    topics = _by_topic(findings.tables["hours"], "delivered")
    late = _over_time(
        "Lateness by hour, p99 in ms", [_series(t, rows, "hour_ms", "p99_ms") for t, rows in topics.items()], HOUR_MS
    )
    late["line"] = {"at": findings.figures["slo_ms"], "name": f"wanted: {findings.figures['slo_ms']:g} ms"}
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    for row in findings.tables["histogram"]:
        counts[row["from_ms"]][row["topic"]] = row["count"]
    names = list(_by_topic(findings.tables["histogram"], "count"))
    bins = {
        "title": "Deliveries by lateness",
        "names": names,
        "bars": [
            {
                "name": "early" if edge < 0 else f"from {edge / 1000:g} s" if edge >= 1000 else f"from {edge} ms",
                "parts": [counts[edge].get(topic, 0) for topic in names],
            }
            for edge in sorted(counts)
        ],
        "unit": "",
    }
    return [late, bins]


def _forecast(findings: Findings) -> list[Chart]:
    minutes = findings.tables["minutes"]
    load = [
        {"name": "on the timeline", "points": _summed(minutes, "minute_ms", "due")},
        {"name": "expected, not created yet", "points": _summed(minutes, "minute_ms", "expected")},
    ]
    needed = _by_topic(minutes, "consumers")
    arrivals = []
    for topic, rows in list(_by_topic(findings.tables["arrivals"], "arrivals").items())[:2]:
        arrivals.append(_series(topic, rows, "hour_ms", "arrivals"))
        arrivals += [_series(f"{topic}, {edge}", rows, "hour_ms", edge, dashed=True) for edge in ("low", "high")]
    return [
        _over_time("Messages due in each minute", load, MINUTE_MS, stacked=True),
        _over_time(
            "Consumers needed",
            [_series(topic, rows, "minute_ms", "consumers") for topic, rows in needed.items()],
            MINUTE_MS,
        ),
        _over_time("Messages created in each coming hour, with the interval for 90 % of the hours", arrivals, HOUR_MS),
    ]


def _retries(findings: Findings) -> list[Chart]:
    attempts: dict[int, int] = defaultdict(int)
    for row in findings.tables["attempts"]:
        attempts[row["attempts"]] += row["count"]
    counts = [{"name": f"{number} attempts", "parts": [attempts[number]]} for number in sorted(attempts)[:BARS_MAX]]
    held = [
        (f"{row['topic']} / {row['consumer']}", [row["held_p99_ms"]])
        for row in findings.tables["consumers"]
        if row["held_p99_ms"] is not None
    ]
    return [
        {"title": "Messages by number of attempts", "names": ["messages"], "bars": counts, "unit": ""},
        _bars("How long a consumer holds a message, p99", ["ms"], held, " ms"),
    ]


def _traffic(findings: Findings) -> list[Chart]:
    topics = _by_topic(findings.tables["created_by_minute"], "created")
    series = [_series(topic, rows, "minute_ms", "created") for topic, rows in topics.items()]
    groups = []
    for row in findings.tables["groups"]:
        size = row["bytes"] or 0
        repeated = size * row["duplicate_share"]
        groups.append((f"{row['topic']} / {row['owner']}", [size - repeated, repeated]))
    return [
        _over_time("Messages created in each minute", series, MINUTE_MS, stacked=True),
        _bars("Bytes by topic and producer group", ["new content", "content that was sent before"], groups, "B"),
    ]


_JOBS: Mapping[str, Callable[[Findings], list[Chart]]] = {
    "audit": _audit,
    "accuracy": _accuracy,
    "forecast": _forecast,
    "retries": _retries,
    "traffic": _traffic,
}
