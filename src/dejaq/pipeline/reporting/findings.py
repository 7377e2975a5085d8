"""Each job run on a lake: its rows as plain values, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dejaq.pipeline.intake.handovers import hand_overs
from dejaq.pipeline.intake.messages import OPEN
from dejaq.pipeline.jobs import accuracy as accuracies
from dejaq.pipeline.jobs import audit as audits
from dejaq.pipeline.jobs import forecast as forecasts
from dejaq.pipeline.jobs import retries as retried
from dejaq.pipeline.jobs import traffic as traffics
from dejaq.pipeline.lake.gaps import Gap, gaps
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.reporting.arrivals import ASSUMPTIONS, arrivals
from dejaq.pipeline.reporting.partial import by_file, by_hour, hours_of_hand_overs
from dejaq.pipeline.spark.failures import explained
from dejaq.pipeline.spark.snapshot import TableSnapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

Rows = list[dict[str, Any]]
# What is listed one by one; the numbers of all are exact.
LISTED_MAX = 10_000
DRAWN_MAX = 20_000
_HANDED = ("messages", "releases")


@dataclass(frozen=True, slots=True)
class Findings:
    """What a job found: named tables, a few figures of all, and how to draw it."""

    job: str
    tables: dict[str, Rows]
    figures: dict[str, Any]
    draw: Callable[[], Figure]
    # Whether something is wrong that a person should hear of by the exit code.
    failed: bool = field(default=False)


def rows_of(frame: DataFrame, limit: int = 0) -> Rows:
    """The rows of a small result."""
    with explained():
        return [row.asDict() for row in (frame.limit(limit) if limit else frame).collect()]


def accuracy(lake: Lake, *, topics: Sequence[str] = (), slo_ms: float = accuracies.SLO_MS_DEFAULT) -> Findings:
    """Lateness by topic and hour."""
    hours, bins = _lateness(lake, topics, slo_ms)

    def draw() -> Figure:
        from dejaq.pipeline.reporting.plots import accuracy_plot

        return accuracy_plot(hours, bins, slo_ms=slo_ms)

    figures = {
        "delivered": sum(row["delivered"] for row in hours),
        "late": sum(row["late"] for row in hours),
        "early": sum(row["early"] for row in hours),
        "hours_breached": sum(row["breached"] for row in hours),
        "slo_ms": slo_ms,
    }
    return Findings("accuracy", {"hours": hours, "histogram": bins}, figures, draw)


def _lateness(lake: Lake, topics: Sequence[str], slo_ms: float) -> tuple[Rows, Rows]:
    """The hours of `accuracy`, and its histogram. Only the hours are read that have changed since the last time."""
    files = hours_of_hand_overs(lake)
    if files is None:
        handed = hand_overs(_of(lake.read("messages"), topics), _of(lake.read("releases"), topics))
        return rows_of(accuracies.accuracy(handed, slo_ms=slo_ms)), rows_of(accuracies.histogram(handed))

    def of_hours(hours: list[int]) -> DataFrame:
        wanted = {
            table: sorted({file for hour in hours for of, file in files[hour] if of == table}) for table in _HANDED
        }
        handed = hand_overs(*(lake.read_files(table, wanted[table]) for table in _HANDED))
        return handed.where(accuracies.hour_of().isin(hours))

    hours = by_hour(
        lake,
        f"accuracy-{slo_ms:g}",
        files,
        lambda stale: rows_of(accuracies.accuracy(of_hours(stale), slo_ms=slo_ms)),
    )
    counted = by_hour(
        lake,
        "lateness",
        files,
        lambda stale: rows_of(accuracies.histogram(of_hours(stale), hourly=True)),
    )
    bins: dict[tuple[str, int], int] = {}
    for row in counted:
        bins[row["topic"], row["from_ms"]] = bins.get((row["topic"], row["from_ms"]), 0) + row["count"]
    chosen = {row["topic"] for row in counted} if not topics else set(topics)
    rows = [
        {"topic": topic, "from_ms": from_ms, "count": count}
        for (topic, from_ms), count in sorted(bins.items())
        if topic in chosen
    ]
    wanted = [row for row in hours if not topics or row["topic"] in topics]
    return sorted(wanted, key=lambda row: (row["topic"], row["hour_ms"])), rows


def audit(
    lake: Lake,
    snapshot: TableSnapshot | None = None,
    *,
    topics: Sequence[str] = (),
    missing: Sequence[Gap] | None = None,
) -> Findings:
    """Whether every message is accounted for; failed when one is not, or when the lake has not all records.

    `missing` names the records that the lake does not have; by default those that its own commit shows.
    """
    missing = gaps(lake.head) if missing is None else missing
    messages, releases = _of(lake.read("messages"), topics), _of(lake.read("releases"), topics)
    taken = None if snapshot is None else _of(snapshot.rows, topics)
    found = audits.audit(
        messages,
        releases,
        taken,
        begun_ms=snapshot.begun_ms if snapshot is not None else 0,
        ended_ms=snapshot.ended_ms if snapshot is not None else 0,
    ).persist()
    try:
        counts = {row["finding"]: row["count"] for row in rows_of(found.groupBy("finding").count())}
        listed = rows_of(found, LISTED_MAX)
    finally:
        found.unpersist()
    balance = rows_of(audits.balance(messages))
    there: dict[str, int] = {}
    if taken is not None:
        there = {row["topic"]: row["count"] for row in rows_of(taken.groupBy("topic").count())}
        balance = [{**row, "on_timeline": there.get(row["topic"], 0)} for row in balance]

    def draw() -> Figure:
        from dejaq.pipeline.reporting.plots import audit_plot

        return audit_plot(balance)

    kinds = (audits.LOST, audits.DOUBLED, audits.EARLY, audits.UNEXPLAINED)
    figures = {
        **{
            name: sum(row[name] for row in balance)
            for name in ("created", "deleted", "cancelled", "dead_lettered", "dropped", "pending")
        },
        "on_timeline": sum(there.values()) if taken is not None else None,
        **{kind: counts.get(kind, 0) for kind in kinds},
        # Nothing can be said of these, so the balance is not about them.
        "not_journaled": ", ".join(snapshot.silent) if snapshot is not None and snapshot.silent else None,
        "missing_records": sum(gap.records for gap in missing),
        "balanced": not counts and not missing,
        "verdict": INCOMPLETE if missing else UNBALANCED if counts else BALANCED,
    }
    tables = {"balance": balance, "findings": listed, "gaps": _gap_rows(missing)}
    return Findings("audit", tables, figures, draw, failed=bool(counts or missing))


# What an audit says: nothing can be proved of a lake that lacks records, whatever its sums are.
BALANCED, UNBALANCED, INCOMPLETE = "balanced", "unbalanced", "incomplete"


def _gap_rows(missing: Sequence[Gap]) -> Rows:
    return [
        {"origin": gap.origin, "first": gap.first, "last": gap.last, "why": gap.why} for gap in missing[:LISTED_MAX]
    ]


def forecast(
    lake: Lake,
    *,
    now_ms: int,
    topics: Sequence[str] = (),
    hours: int = forecasts.HOURS_DEFAULT,
    lateness_ms: float = forecasts.LATENESS_MS_DEFAULT,
    service_ms: float | None = None,
    snapshot: TableSnapshot | None = None,
) -> Findings:
    """What the coming hours bring."""
    # What is pending, and what happened in the last day. The rest of the lake is not read.
    opened = [name for name in lake.head.partitions("messages") if name.startswith(f"state={OPEN}/")]
    pending = forecasts.pending_timeline(_of(lake.read("messages", opened), topics))
    live = _of(snapshot.rows, topics) if snapshot is not None else pending
    recent = _of(lake.read_from("messages", "created_ms", now_ms - forecasts.HISTORY_MS_DEFAULT), topics)
    events = _of(lake.read_from("events", "at_ms", lake.head.reached_ms - forecasts.HISTORY_MS_DEFAULT), topics)
    minutes = rows_of(
        forecasts.forecast(
            forecasts.due_by_minute(live, now_ms=now_ms, hours=hours),
            forecasts.expected_by_minute(recent, now_ms=now_ms, hours=hours),
            forecasts.service_times(events),
            lateness_ms=lateness_ms,
            service_ms=service_ms,
        )
    )

    def draw() -> Figure:
        from dejaq.pipeline.reporting.plots import forecast_plot

        return forecast_plot(minutes)

    busiest = max(minutes, key=lambda row: row["due"] + row["expected"], default=None)
    figures = {
        "due": sum(row["due"] for row in minutes),
        "expected": round(sum(row["expected"] for row in minutes), 1),
        "busiest_minute_ms": busiest["minute_ms"] if busiest else None,
        "busiest_minute_messages": round(busiest["due"] + busiest["expected"], 1) if busiest else 0,
        "consumers_max": max((row["consumers"] for row in minutes), default=0),
        "hours": hours,
        "lateness_ms": lateness_ms,
    }
    with explained():
        coming = arrivals(lake, topics=topics, hours=hours)
    tables: dict[str, Rows] = {
        "minutes": minutes,
        "arrivals": coming.hours,
        "arrival_errors": coming.errors,
        "assumptions": [{"assumption": text} for text in ASSUMPTIONS],
    }
    return Findings("forecast", tables, figures, draw)


def retries(lake: Lake, *, topics: Sequence[str] = (), attempts_min: int = retried.ATTEMPTS_MIN_DEFAULT) -> Findings:
    """Leases that ended, poison candidates, slow consumers."""
    # A consumer is slow now, or was in the last day.
    events = _of(lake.read_from("events", "at_ms", lake.head.reached_ms - forecasts.HISTORY_MS_DEFAULT), topics)
    repeated = _of(lake.read_from("messages", "attempts", attempts_min), topics)
    counted = by_file(
        lake,
        "attempts",
        lake.head.files("messages"),
        lambda files: rows_of(retried.counted(lake.read_files("messages", files, named=True))),
    )
    counted = [row for row in counted if not topics or row["topic"] in topics]
    by_topic, attempts = retried.retries(counted), retried.attempts_histogram(counted)
    poison = rows_of(retried.poison_candidates(repeated, attempts_min=attempts_min), LISTED_MAX)
    consumers = rows_of(retried.consumers(events))

    def draw() -> Figure:
        from dejaq.pipeline.reporting.plots import retries_plot

        return retries_plot(attempts, consumers)

    figures = {
        "retried": sum(row["retried"] for row in by_topic),
        "expiries": sum(row["expiries"] or 0 for row in by_topic),
        "releases": sum(row["releases"] or 0 for row in by_topic),
        "poison_candidates": len(poison),
        "slow_consumers": sum(row["slow"] for row in consumers),
    }
    tables = {"topics": by_topic, "poison_candidates": poison, "consumers": consumers, "attempts": attempts}
    return Findings("retries", tables, figures, draw)


def traffic(lake: Lake, *, topics: Sequence[str] = ()) -> Findings:
    """How much each group sends."""
    messages = _of(lake.read("messages"), topics)
    groups = rows_of(traffics.traffic(messages))
    repeated = rows_of(traffics.duplicates(messages), LISTED_MAX)
    minutes = (
        _of(lake.read("facts"), topics).select("topic", "minute_ms", "created").orderBy("minute_ms", ascending=False)
    )
    facts = rows_of(minutes, DRAWN_MAX)

    def draw() -> Figure:
        from dejaq.pipeline.reporting.plots import traffic_plot

        return traffic_plot(facts, groups)

    figures = {
        "created": sum(row["created"] for row in groups),
        "bytes": sum(row["bytes"] or 0 for row in groups),
        "groups": len({row["owner"] for row in groups}),
        "duplicates": sum(row["duplicates"] for row in groups),
    }
    tables = {"groups": groups, "duplicates": repeated, "created_by_minute": facts}
    return Findings("traffic", tables, figures, draw)


def _of(frame: DataFrame, topics: Sequence[str]) -> DataFrame:
    """The rows of some topics, or all."""
    return frame.where(frame["topic"].isin(*topics)) if topics else frame
