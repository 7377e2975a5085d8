"""Times as people type them: ISO 8601 with a zone, epoch milliseconds, or relative to now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from dejaq.domain import durations
from dejaq.domain.durations import parse_length_ms
from dejaq.domain.epoch import seconds_suspected

_EPOCH_MS = re.compile(r"-?\d+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORMS = (
    "write ISO 8601 with a zone (2030-01-31T09:00:00+01:00), epoch milliseconds, "
    "or relative to now (+90s, 5m, 2h, 1d, -5m)"
)


@dataclass(frozen=True, slots=True)
class When:
    """A point in time, or a time relative to now: `ms` in UTC or from now."""

    ms: int
    relative: bool = False

    def at(self, now_ms: int) -> int:
        """UTC milliseconds, read at `now_ms`."""
        return now_ms + self.ms if self.relative else self.ms

    def as_arguments(self) -> dict[str, Any]:
        """`delay=` in seconds or `at=` in milliseconds, so that the broker's clock counts a delay."""
        return {"delay": self.ms / 1000} if self.relative else {"at": self.ms}


def _distance_ms(text: str) -> int | None:
    """Milliseconds of `+90s`, `1h30m` or `-5m`; None for anything else."""
    ms = parse_length_ms(text[1:] if text[:1] in ("+", "-") else text)
    return -ms if ms is not None and text.startswith("-") else ms


def parse_when(text: str) -> When:
    """The time that `text` names; ValueError says which forms there are."""
    text = text.strip()
    if text == "now":
        return When(0, relative=True)
    distance = _distance_ms(text)
    if distance is not None:
        return When(distance, relative=True)
    if _EPOCH_MS.fullmatch(text):
        if (problem := seconds_suspected(int(text))) is not None:
            raise ValueError(problem)
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


class DurationType(click.ParamType[float]):
    """A length of time: plain seconds, or with a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        try:
            seconds = float(value)
        except ValueError:
            ms = parse_length_ms(str(value))
            if ms is None:
                self.fail(f"{value!r} is not a length of time; {durations.FORMS}")
            seconds = ms / 1000
        if not 0 <= seconds < float("inf"):
            self.fail(f"{value!r} is not a length of time; it must be 0 or more")
        return seconds


WHEN = WhenType()
SECONDS = DurationType()
