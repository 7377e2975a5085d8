"""Bars in the terminal: a number of messages per step of time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Steps that are easy to read on a scale.
STEPS_MS = tuple(
    [n * 1 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)]
    + [n * 1_000 for n in (1, 2, 5, 10, 15, 30)]
    + [n * 60_000 for n in (1, 2, 5, 10, 15, 30)]
    + [n * 3_600_000 for n in (1, 2, 3, 6, 12)]
    + [n * 86_400_000 for n in (1, 2, 7, 14, 30, 90, 365, 3_650)]
)


def bar(value: float, largest: float, width: int) -> str:
    """A bar of at most `width` characters, in eighths; anything above zero can be seen."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(value / largest * width * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def draw(labels: Sequence[str], values: Sequence[float], *, width: int = 80) -> list[str]:
    """One line per value: label, number, bar; all within `width`."""
    numbers = [f"{value:,.0f}" for value in values]
    label_width = max(map(len, labels), default=0)
    number_width = max(map(len, numbers), default=0)
    room = max(8, width - label_width - number_width - 4)
    largest = max(values, default=0)
    return [
        f"{label:<{label_width}}  {number:>{number_width}}  {bar(value, largest, room)}".rstrip()
        for label, number, value in zip(labels, numbers, values, strict=True)
    ]


def step_for(span_ms: int, lines: int) -> int:
    """The smallest readable step that covers `span_ms` in at most `lines` steps."""
    for step in STEPS_MS:
        if step * lines >= span_ms:
            return step
    return -(-span_ms // max(1, lines))


def label_for(ts_ms: int, step_ms: int) -> str:
    """The start of a step, as exact as the step needs."""
    moment = datetime.fromtimestamp(ts_ms / 1000, UTC)
    if step_ms >= 86_400_000:
        return f"{moment:%Y-%m-%d}"
    if step_ms >= 60_000:
        return f"{moment:%m-%d %H:%M}"
    if step_ms >= 1_000:
        return f"{moment:%H:%M:%S}"
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
