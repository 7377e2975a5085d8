"""Each job run on a lake: its rows as plain values, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from dejaq.pipeline.reporting.auditing import audited
from dejaq.pipeline.reporting.partial import File, by_file, by_hour, hours_of_creations, hours_of_hand_overs
from dejaq.pipeline.reporting.rows import LISTED_MAX, Rows, of_topics, rows_of
from dejaq.pipeline.spark.failures import explained
from dejaq.pipeline.spark.snapshot import TableSnapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

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
        handed = hand_overs(of_topics(lake.read("messages"), topics), of_topics(lake.read("releases"), topics))
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
    found = audited(lake, snapshot, topics=topics)
    balance, counts = found.balance, found.counts
    there: dict[str, int] = {}
    if snapshot is not None:
        taken = of_topics(snapshot.rows, topics)
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
        "on_timeline": sum(there.values()) if snapshot is not None else None,
        **{kind: counts.get(kind, 0) for kind in kinds},
        # Nothing can be said of these, so the balance is not about them.
        "not_journaled": ", ".join(snapshot.silent) if snapshot is not None and snapshot.silent else None,
        "missing_records": sum(gap.records for gap in missing),
        "balanced": not counts and not missing,
        "verdict": INCOMPLETE if missing else UNBALANCED if counts else BALANCED,
    }
    tables = {"balance": balance, "findings": found.findings, "gaps": _gap_rows(missing)}
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
    pending = forecasts.pending_timeline(of_topics(lake.read("messages", opened), topics))
    live = of_topics(snapshot.rows, topics) if snapshot is not None else pending
    recent = of_topics(lake.read_from("messages", "created_ms", now_ms - forecasts.HISTORY_MS_DEFAULT), topics)
    events = of_topics(lake.read_from("events", "at_ms", lake.head.reached_ms - forecasts.HISTORY_MS_DEFAULT), topics)
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
    events = of_topics(lake.read_from("events", "at_ms", lake.head.reached_ms - forecasts.HISTORY_MS_DEFAULT), topics)
    repeated = of_topics(lake.read_from("messages", "attempts", attempts_min), topics)
    by_new_file = by_file(
        lake,
        "attempts",
        lake.head.files("messages"),
        lambda files: rows_of(retried.counted(lake.read_files("messages", files, named=True))),
    )
    counted = [row for rows in by_new_file.values() for row in rows if not topics or row["topic"] in topics]
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
    """How much each group sends, and what is sent again within an hour; the contents are those of the last day."""
    sent = by_file(
        lake,
        "sent",
        lake.head.files("events"),
        lambda files: rows_of(traffics.sent(traffics.creations(lake.read_files("events", files, named=True)))),
    )
    repeats, contents = _repeated(lake)
    groups = [
        row
        for row in traffics.groups((row for rows in sent.values() for row in rows), repeats)
        if not topics or row["topic"] in topics
    ]
    repeated = [row for row in contents if not topics or row["topic"] in topics]
    minutes = of_topics(lake.read("facts", _newest_facts(lake)), topics).select("topic", "minute_ms", "created")
    facts = rows_of(minutes.orderBy("minute_ms", ascending=False), DRAWN_MAX)

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


def _repeated(lake: Lake) -> tuple[Rows, Rows]:
    """How many messages of each hour repeat others, and the contents of the last day, the most frequent first."""
    last_day_ms = lake.head.reached_ms - forecasts.HISTORY_MS_DEFAULT

    def of_hours(files: Mapping[int, Sequence[File]], hours: list[int]) -> tuple[DataFrame, DataFrame]:
        names = sorted({file for hour in hours for _, file in files[hour]})
        before = [hour - back * traffics.HOUR_MS for hour in hours for back in range(traffics.HOURS_BEFORE + 1)]
        created = traffics.creations(lake.read_files("events", names))
        near = created.where(created["hour_ms"].isin(before))
        return traffics.contents(near).where(near["hour_ms"].isin(hours)), near

    def rows(name: str, since_ms: int, job: Callable[[DataFrame, DataFrame], DataFrame]) -> Rows:
        files = hours_of_creations(lake, since_ms=since_ms, before=traffics.HOURS_BEFORE)
        if files is None:
            created = traffics.creations(lake.read_from("events", "at_ms", since_ms))
            return rows_of(job(traffics.contents(created), created))
        return by_hour(lake, name, files, lambda stale: rows_of(job(*of_hours(files, stale))))

    contents = rows("contents", last_day_ms - last_day_ms % traffics.HOUR_MS, traffics.duplicates)
    contents.sort(key=lambda row: (-row["repeated"], row["hour_ms"], row["topic"], row["body_crc"], row["body_bytes"]))
    return rows("repeats", 0, lambda found, _: traffics.repeats(found)), contents[:LISTED_MAX]


def _newest_facts(lake: Lake) -> list[str]:
    """The newest days, with as many rows as are drawn."""
    chosen: list[str] = []
    rows = 0
    for day, files in sorted(lake.head.partitions("facts").items(), reverse=True):
        if rows >= DRAWN_MAX:
            break
        chosen.append(day)
        rows += sum(lake.delta.rows("facts", file) or 0 for file in files)
    return chosen
