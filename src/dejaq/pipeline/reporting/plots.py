"""Pictures of what the jobs found, as PNG."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
COLOURS = ("#2463eb", "#e8590c", "#2b8a3e", "#9c36b5", "#c92a2a", "#0b7285", "#5f3dc4", "#866118")
_GREY, _INK = "#adb5bd", "#343a40"
# More lines than this cannot be distinguished; the largest are drawn.
TOPICS_MAX = 8


def png(figure: Figure) -> bytes:
    """The picture's file."""
    held = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(held, format="png", dpi=110, facecolor="white")
    return held.getvalue()


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(10, 3.4 * panels), layout="constrained")
    found = [figure.add_subplot(panels, 1, place + 1) for place in range(panels)]
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_GREY)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(axis="y", color="#e9ecef")
        axes.set_axisbelow(True)
    return figure, found


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11, color=_INK, fontweight="bold")


def _nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "nothing to show", ha="center", va="center", color=_GREY, transform=axes.transAxes)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        # Above the picture, where it covers nothing.
        axes.legend(frameon=False, fontsize=8, ncols=5, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)


def _moment(ms: int) -> float:
    """A time as matplotlib counts it: in days."""
    return ms / 86_400_000


def _dates(axes: Axes, step_ms: int) -> None:
    """A time axis, wide enough to see a single step."""
    axes.xaxis_date("UTC")
    low, high = axes.dataLim.intervalx
    room = max(_moment(step_ms), (high - low) * 0.02)
    axes.set_xlim(low - room, high + room)
    locator = axes.xaxis.get_major_locator()
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz="UTC"))  # type: ignore[no-untyped-call]


def label(text: str) -> str:
    """A name as it is; matplotlib would read dollars as mathematics and hide what begins with an underscore."""
    shown = text if len(text) <= 40 else text[:39] + "\N{HORIZONTAL ELLIPSIS}"
    shown = shown.replace("$", r"\$")
    return f"\u200b{shown}" if shown.startswith("_") else shown


def _by_topic(rows: Iterable[Row], weight: str) -> dict[str, list[Row]]:
    """The rows of the heaviest topics."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["topic"]].append(row)
    heaviest = sorted(found, key=lambda topic: -sum(row[weight] or 0 for row in found[topic]))[:TOPICS_MAX]
    return {topic: found[topic] for topic in heaviest}


def accuracy_plot(rows: Sequence[Row], bins: Sequence[Row], *, slo_ms: float) -> Figure:
    """Lateness by hour, and its histogram."""
    figure, (over_time, spread) = _figure(2)
    _title(over_time, "Lateness by hour: p99 (line), p50 (dotted), ms")
    for colour, (topic, found) in zip(COLOURS, _by_topic(rows, "delivered").items(), strict=False):
        known = [row for row in found if row["p99_ms"] is not None]
        hours = [_moment(row["hour_ms"]) for row in known]
        over_time.plot(hours, [row["p99_ms"] for row in known], color=colour, label=label(topic), marker="o", ms=3)
        over_time.plot(hours, [row["p50_ms"] for row in known], color=colour, ls=":", marker=".", ms=3)
    if rows:
        over_time.axhline(slo_ms, color="#c92a2a", lw=0.8, ls="--", label=f"wanted: {slo_ms:g} ms")
        over_time.set_yscale("symlog", linthresh=1)
        # A symmetric scale would be drawn to its last value exactly, and as far below zero as above.
        shown = [row[name] for row in rows for name in ("p50_ms", "p99_ms") if row[name] is not None]
        over_time.set_ylim(2 * min(0.0, *shown, 0.0), 2 * max(slo_ms, *shown, 1.0))
        _dates(over_time, 3_600_000)
    else:
        _nothing(over_time)
    _legend(over_time)
    _title(spread, "Hand-overs by lateness, ms")
    edges = sorted({row["from_ms"] for row in bins})
    bottom = [0] * len(edges)
    for colour, (topic, found) in zip(COLOURS, _by_topic(bins, "count").items(), strict=False):
        counts = {row["from_ms"]: row["count"] for row in found}
        heights = [counts.get(edge, 0) for edge in edges]
        spread.bar(range(len(edges)), heights, bottom=bottom, color=colour, label=label(topic))
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    spread.set_xticks(
        range(len(edges)), ["early" if edge < 0 else f"\N{GREATER-THAN OR EQUAL TO} {_short(edge)}" for edge in edges]
    )
    if not edges:
        _nothing(spread)
    _legend(spread)
    return figure


def _short(ms: float) -> str:
    return f"{ms / 1_000:g} s" if ms >= 1_000 else f"{ms:g}"


def audit_plot(rows: Sequence[Row]) -> Figure:
    """For each topic, what was created beside what became of it."""
    figure, (axes,) = _figure(1)
    _title(axes, "Created (outline) and what became of it")
    chosen = sorted(rows, key=lambda row: -row["created"])[: 2 * TOPICS_MAX]
    places = range(len(chosen))
    left = [0] * len(chosen)
    for colour, name in zip(COLOURS[2:], ("deleted", "cancelled", "dead_lettered", "dropped", "pending"), strict=False):
        widths = [row[name] for row in chosen]
        axes.barh(places, widths, left=left, color=colour, label=name, height=0.55)
        left = [low + high for low, high in zip(left, widths, strict=True)]
    axes.barh(places, [row["created"] for row in chosen], color="none", edgecolor=_INK, height=0.75)
    axes.set_yticks(places, [label(row["topic"]) for row in chosen])
    axes.invert_yaxis()
    if not chosen:
        _nothing(axes)
    _legend(axes)
    return figure


def forecast_plot(rows: Sequence[Row]) -> Figure:
    """Due and expected for each coming minute, and the consumers that takes."""
    figure, (load, needed) = _figure(2)
    due: dict[int, float] = defaultdict(float)
    expected: dict[int, float] = defaultdict(float)
    for row in rows:
        due[row["minute_ms"]] += row["due"]
        expected[row["minute_ms"]] += row["expected"]
    minutes = sorted(due)
    moments = [_moment(minute) for minute in minutes]
    _title(load, "Messages falling due in each minute")
    _title(needed, "Consumers needed")
    if not rows:
        _nothing(load)
        _nothing(needed)
        return figure
    load.stackplot(
        moments,
        [due[minute] for minute in minutes],
        [expected[minute] for minute in minutes],
        labels=["on the timeline", "expected, not yet created"],
        colors=[COLOURS[0], "#a5c1f7"],
    )
    for colour, (topic, found) in zip(COLOURS, _by_topic(rows, "consumers").items(), strict=False):
        ordered = sorted(found, key=lambda row: row["minute_ms"])
        times = [_moment(row["minute_ms"]) for row in ordered]
        needed.step(times, [row["consumers"] for row in ordered], where="post", color=colour, label=label(topic))
    needed.set_ylim(bottom=0)
    needed.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (load, needed):
        _dates(axes, 60_000)
        _legend(axes)
    return figure


def retries_plot(attempts: Sequence[Row], consumers: Sequence[Row]) -> Figure:
    """Attempts a message needed, and how long each consumer has a message."""
    figure, (counts, held) = _figure(2)
    _title(counts, "Messages by number of attempts")
    for colour, (topic, found) in zip(COLOURS, _by_topic(attempts, "count").items(), strict=False):
        ordered = sorted(found, key=lambda row: row["attempts"])
        numbers = [row["attempts"] for row in ordered]
        counts.plot(numbers, [row["count"] for row in ordered], color=colour, marker="o", label=label(topic))
    if attempts:
        counts.set_yscale("log")
        counts.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        _nothing(counts)
    _legend(counts)
    _title(held, "From hand-over to settlement, p99 in ms (red: slow, or lets leases end)")
    slowest = sorted((row for row in consumers if row["held_p99_ms"] is not None), key=lambda row: -row["held_p99_ms"])
    shown = slowest[: 2 * TOPICS_MAX]
    colours = ["#c92a2a" if row["slow"] else COLOURS[0] for row in shown]
    held.barh(range(len(shown)), [row["held_p99_ms"] for row in shown], color=colours)
    held.set_yticks(range(len(shown)), [label(f"{row['topic']} / {row['consumer']}") for row in shown])
    held.invert_yaxis()
    if not shown:
        _nothing(held)
    return figure


def traffic_plot(facts: Sequence[Row], groups: Sequence[Row]) -> Figure:
    """Messages created in each minute, and the bytes of each producer group."""
    figure, (rate, volume) = _figure(2)
    _title(rate, "Created in each minute")
    for colour, (topic, found) in zip(COLOURS, _by_topic(facts, "created").items(), strict=False):
        ordered = sorted(found, key=lambda row: row["minute_ms"])
        times = [_moment(row["minute_ms"]) for row in ordered]
        created = [row["created"] for row in ordered]
        rate.plot(times, created, color=colour, lw=1.2, marker=".", ms=3, label=label(topic))
    if facts:
        rate.set_ylim(bottom=0)
        _dates(rate, 60_000)
    else:
        _nothing(rate)
    _legend(rate)
    _title(volume, "Bytes by topic and producer group (light: content sent before)")
    shown = sorted(groups, key=lambda row: -(row["bytes"] or 0))[: 2 * TOPICS_MAX]
    sizes = [row["bytes"] or 0 for row in shown]
    repeated = [(row["bytes"] or 0) * row["duplicate_share"] for row in shown]
    volume.barh(range(len(shown)), sizes, color=COLOURS[0])
    volume.barh(range(len(shown)), repeated, color="#a5c1f7")
    volume.set_yticks(range(len(shown)), [label(f"{row['topic']} / {row['owner']}") for row in shown])
    volume.xaxis.set_major_formatter(EngFormatter(unit="B"))
    volume.invert_yaxis()
    if not shown:
        _nothing(volume)
    return figure
