"""Figures from samples: percentiles, medians over repeats and their spread. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
Figures = dict[str, float | int | None]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of samples in ascending order."""
    if not ordered:
        raise ValueError("no samples")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def lateness_figures(samples_us: Iterable[int], name: str = "lateness") -> Figures:
    """p50, p99, p99.9 and the maximum in ms of samples in microseconds; None without samples."""
    ordered = sorted(samples_us)
    figures: Figures = {}
    for label, share in PERCENTILES.items():
        figures[f"{name}_{label}_ms"] = _ms(percentile(ordered, share)) if ordered else None
    figures[f"{name}_max_ms"] = _ms(ordered[-1]) if ordered else None
    return figures


def curve(samples_us: Iterable[int], points: int = 50) -> list[tuple[float, float]]:
    """(ms after its time, share delivered by then) at evenly spread shares, up to all messages."""
    ordered = sorted(samples_us)
    if not ordered:
        return []
    shares = [(point + 1) / points for point in range(points)]
    return [(_ms(percentile(ordered, share)), round(share, 4)) for share in shares]


def per_second(count: int, nanoseconds: int) -> float:
    """A rate; 0 when no time passed."""
    return round(count * 1e9 / nanoseconds, 1) if nanoseconds > 0 else 0.0


def us_each(seconds: float, count: int) -> float:
    """Microseconds per message; 0 without messages."""
    return round(seconds * 1e6 / count, 3) if count else 0.0


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the straight line with the least squares; None for fewer than three points."""
    if len(points) < 3:
        return None
    middle = sum(x for x, _ in points) / len(points)
    mean = sum(y for _, y in points) / len(points)
    width = sum((x - middle) ** 2 for x, _ in points)
    return sum((x - middle) * (y - mean) for x, y in points) / width if width else None


def medians(runs: Sequence[Mapping[str, float | int | None]]) -> tuple[Figures, dict[str, list[float]]]:
    """The median of every figure over repeats, and [least, greatest] of figures that differed.

    `early`, `undelivered` and `out_of_order` are promises, so their worst value is kept instead of the median.
    """
    figures: Figures = {}
    spread: dict[str, list[float]] = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [value for run in runs if (value := run.get(name)) is not None]
        if not values:
            figures[name] = None
            continue
        worst = name in {"early", "undelivered", "out_of_order"}
        middle = max(values) if worst else median(values)
        figures[name] = int(middle) if float(middle).is_integer() and isinstance(values[0], int) else round(middle, 3)
        if min(values) != max(values):
            spread[name] = [min(values), max(values)]
    return figures, spread


def _ms(microseconds: float) -> float:
    return round(microseconds / 1_000, 3)
