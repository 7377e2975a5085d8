"""The plots of the performance page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.records import Record

OURS, DURABLE, LAZY, FLOOR = "#c2410c", "#1d4ed8", "#93a4bd", "#111827"


def draw_all(records: Sequence[Record], folder: Path) -> dict[str, str]:
    """Draw the plots that have records; returns each file name and its description."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}
    plots: list[tuple[str, str, Callable[[Sequence[Record], Path], bool]]] = [
        ("throughput.png", "Messages per second, 100 B, one client on each side", _throughput),
        ("accuracy.png", "Lateness in user code by rate", partial(_lateness, "accuracy")),
        ("depth.png", "Lateness in user code with ten million messages pending", partial(_lateness, "depth")),
        ("burst.png", "Share of a burst delivered over time", _burst),
        ("mutate.png", "Changes per second in batches of 1000", _mutate),
    ]
    for name, title, draw in plots:
        if draw(records, folder / name):
            drawn[name] = title
    return drawn


def _colour(record: Record) -> str:
    if str(record["system"]).startswith("dejaq"):
        return OURS
    return DURABLE if record["durable"] else LAZY


def _bars(axes: Axes, records: Sequence[Record], figure: str, title: str) -> None:
    shown = sorted((record for record in records if record.get(figure)), key=lambda record: float(record[figure]))
    names = [record["system"] for record in shown]
    values = [float(record[figure]) for record in shown]
    bars = axes.barh(names, values, color=[_colour(record) for record in shown])
    axes.bar_label(bars, labels=[f"{value / 1_000:,.1f} k" for value in values], padding=3, fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.set_xlim(0, max(values, default=1) * 1.25)
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _legend(figure: Figure) -> None:
    handles = [Patch(color=colour) for colour in (OURS, DURABLE, LAZY)]
    labels = ["DejaQ", "fsync before every ack", "lazy sync"]
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9)


def _save(figure: Figure, path: Path) -> bool:
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return True


def _throughput(records: Sequence[Record], path: Path) -> bool:
    found = [
        record
        for record in records
        if record["bench"] == "throughput"
        and record.get("shape", {}).get("body_bytes") == 100
        and record["shape"]["producers"] == 1
    ]
    if not found:
        return False
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2))
    titles = {"create_per_s": "create", "lease_delete_per_s": "lease + delete", "end_to_end_per_s": "both at once"}
    for place, (name, title) in zip(axes, titles.items(), strict=True):
        _bars(place, found, name, title)
    _legend(figure)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return _save(figure, path)


def _lateness(bench: str, records: Sequence[Record], path: Path) -> bool:
    """p50 to p99.9 by system, one panel per rate, the bare sleeper's p99 as a mark at each."""
    found = [record for record in records if record["bench"] == bench and record.get("lateness_p50_ms") is not None]
    rates = sorted({record["shape"]["due_per_s"] for record in found})
    # One line per system in every panel, also when it has no record.
    names = list(dict.fromkeys(record["system"] for record in found))[::-1]
    if not found:
        return False
    figure, panels = plt.subplots(1, len(rates), figsize=(4.6 * len(rates), 4.2), squeeze=False, sharey=True)
    for axes, rate in zip(panels[0], rates, strict=True):
        for record in found:
            if record["shape"]["due_per_s"] != rate:
                continue
            place = names.index(record["system"])
            p50, p99, p999 = (max(0.05, record[f"lateness_{label}_ms"]) for label in ("p50", "p99", "p999"))
            axes.plot([p50, p999], [place, place], color=_colour(record), linewidth=3, solid_capstyle="round")
            axes.plot([p50], [place], "|", color=_colour(record), markersize=12)
            axes.plot([p99], [place], "o", color=_colour(record))
            axes.plot([record["floor_p99_ms"]], [place], "x", color=FLOOR, markersize=6)
        axes.set_yticks(range(len(names)), names)
        axes.set_xscale("log")
        axes.set_xlabel("ms late: p50 to p99.9, dot p99, x floor p99")
        axes.set_title(f"{rate / 1_000:g} k due per second", fontsize=10)
        axes.grid(axis="x", alpha=0.3)
    _legend(figure)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return _save(figure, path)


def _burst(records: Sequence[Record], path: Path) -> bool:
    found = [record for record in records if record["bench"] == "burst" and record.get("curve")]
    sizes = sorted({record["shape"]["burst_messages"] for record in found})
    if not found:
        return False
    figure, panels = plt.subplots(1, len(sizes), figsize=(6 * len(sizes), 4), squeeze=False, sharey=True)
    for axes, size in zip(panels[0], sizes, strict=True):
        for record in found:
            if record["shape"]["burst_messages"] != size:
                continue
            late, share = zip(*record["curve"], strict=True)
            ours = str(record["system"]).startswith("dejaq")
            axes.plot(
                [max(0.05, ms) for ms in late],
                share,
                label=record["system"],
                color=OURS if ours else None,
                linestyle="--" if record["system"] == "dejaq-natural" else "-",
            )
        axes.set_xscale("log")
        axes.set_xlabel("ms after its time")
        axes.set_title(f"{size:,} in {'one millisecond' if size <= 100_000 else 'one second'}", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("share delivered")
    panels[0][-1].legend(fontsize=8)
    figure.tight_layout()
    return _save(figure, path)


def _mutate(records: Sequence[Record], path: Path) -> bool:
    found = [
        record for record in records if record["bench"] == "mutate" and record.get("shape", {}).get("batch") == 1_000
    ]
    if not found:
        return False
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.2))
    for place, kind in zip(axes, ("cancel", "move", "edit"), strict=True):
        _bars(place, found, f"{kind}_per_s", kind)
    _legend(figure)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return _save(figure, path)
