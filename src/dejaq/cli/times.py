"""Times as people type them: ISO 8601 with a zone, epoch milliseconds, or relative to now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_RELATIVE = re.compile(r"([+-]?)((?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+)")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_EPOCH_MS = re.compile(r"-?\d+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
FORMS = (
    "write ISO 8601 with a zone (2030-01-31T09:00:00+01:00), epoch milliseconds, "
    "or relative to now (+90s, 5m, 2h, 1d, -5m)"
)


@dataclass(frozen=True, slots=True)
class When:
    """A point in time, or a distance from now: `ms` in UTC or from now."""

    ms: int
    relative: bool = False

    def at(self, now_ms: int) -> int:
        """UTC milliseconds, read at `now_ms`."""
        return now_ms + self.ms if self.relative else self.ms

    def as_arguments(self) -> dict[str, Any]:
        """`delay=` in seconds or `at=` in milliseconds, so that the broker's clock counts a delay."""
        return {"delay": self.ms / 1000} if self.relative else {"at": self.ms}


def parse_duration_ms(text: str) -> int | None:
    """Milliseconds of `90s`, `1h30m` or `250ms`; None for anything else."""
    match = _RELATIVE.fullmatch(text)
    if match is None:
        return None
    ms = sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(match[2]))
    return round(-ms if match[1] == "-" else ms)


def parse_when(text: str) -> When:
    """The time that `text` names; ValueError says which forms there are."""
    text = text.strip()
    if text == "now":
        return When(0, relative=True)
    distance = parse_duration_ms(text)
    if distance is not None:
        return When(distance, relative=True)
    if _EPOCH_MS.fullmatch(text):
        return When(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; {FORMS}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; add one, such as Z or +02:00")
    # Rounded up: a message is never early.
    return When(-((_EPOCH - moment) // timedelta(milliseconds=1)))


class WhenType(click.ParamType[When]):
    """A `When` on the command line."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        """Parse it, or say what is wrong with it."""
        if isinstance(value, When):
            return value
        try:
            return parse_when(str(value))
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


class SecondsType(click.ParamType[float]):
    """A length of time: plain seconds, or with a unit."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        try:
            seconds = float(value)
        except ValueError:
            ms = parse_duration_ms(str(value))
            if ms is None:
                self.fail(f"{value!r} is not a length of time; write seconds (2.5), or 250ms, 5m, 2h, 1d")
            seconds = ms / 1000
        if not 0 <= seconds < float("inf"):
            self.fail(f"{value!r} is not a length of time; it must be 0 or more")
        return seconds


WHEN = WhenType()
SECONDS = SecondsType()
