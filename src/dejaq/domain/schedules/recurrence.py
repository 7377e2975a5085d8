"""When a schedule runs: cron expressions, intervals and single times, as instants in UTC.

The calendar of an expression is that of `cronsim`, in local time without clock changes. This module decides what
happens to local times that a clock change skips or repeats, by the rules of the schedule.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from cronsim import CronSim, CronSimError

from dejaq import limits
from dejaq.domain.epoch import seconds_suspected
from dejaq.domain.schedules.zone import EPOCH, Zone, zone_of
from dejaq.errors import Code, DejaqError, error_of

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LENGTH = re.compile(r"(?:\d{1,12}(?:ms|s|m|h|d))+")
_LENGTH_PART = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LOCAL_EPOCH = EPOCH.replace(tzinfo=None)
_MILLISECOND = timedelta(milliseconds=1)
# After this, local time may be in a year that a date cannot represent.
LAST_MS = limits.TS_MS_MAX - 2 * 86_400_000
# No clock change has ever repeated more than a day.
_REPEAT_MS_MAX = 86_400_000


class SkippedHour(StrEnum):
    """The rule for local times that a clock change skips: no run, or one run at the change for all of them."""

    SKIP = "skip"
    ONCE = "once"


class RepeatedHour(StrEnum):
    """The rule for local times that occur twice: no run, the first, or both."""

    SKIP = "skip"
    ONCE = "once"
    TWICE = "twice"


class Recurrence(Protocol):
    """A series of instants."""

    def next_after(self, after_ms: int) -> int | None:
        """The first instant after `after_ms`; None if there is none."""


@dataclass(frozen=True, slots=True)
class Once:
    """A single instant."""

    at_ms: int

    def next_after(self, after_ms: int) -> int | None:
        """The instant itself, until it has passed."""
        return self.at_ms if after_ms < self.at_ms else None


@dataclass(frozen=True, slots=True)
class Every:
    """Instants at equal intervals, counted from a start that is not one of them."""

    start_ms: int
    interval_ms: int

    def next_after(self, after_ms: int) -> int | None:
        """The next multiple of the interval."""
        steps = max(1, (after_ms - self.start_ms) // self.interval_ms + 1)
        at = self.start_ms + steps * self.interval_ms
        return at if at <= LAST_MS else None


@dataclass(frozen=True, slots=True)
class Calendar:
    """A cron expression in a zone.

    As in Debian's cron, the rules for skipped and repeated times are for expressions with a fixed time of day:
    neither the minute nor the hour begins with `*`. All other expressions follow elapsed time.
    """

    expression: str
    zone: Zone
    skipped: SkippedHour = SkippedHour.ONCE
    repeated: RepeatedHour = RepeatedHour.ONCE

    def next_after(self, after_ms: int) -> int | None:
        """The first match."""
        return _next_match(self, after_ms)

    def search(self, after_ms: int) -> int | None:
        """The first match. Between two clock changes local time runs evenly, so each stretch is searched separately."""
        low, offset = after_ms, self.zone.offset_ms(after_ms)
        local = low + offset
        while True:
            match = _next_local(self.expression, local)
            if match is None or (found := match - offset) > LAST_MS:
                return None
            shift = self.zone.next_shift(low, found)
            if shift is not None:
                if self._runs_in_gap(shift.at_ms + shift.before_ms, shift.at_ms + shift.after_ms):
                    return shift.at_ms
                # Continue with the next stretch, which begins at the clock change.
                low, offset = shift.at_ms, shift.after_ms
                local = low + offset - 1
            elif self._is_wanted(found):
                return found
            else:
                low, local = found, found + offset

    def _runs_in_gap(self, start: int, end: int) -> bool:
        """Whether the skipped local times start <= time < end include a run, which happens at the shift."""
        if self.skipped is SkippedHour.SKIP or end <= start or not _has_fixed_time(self.expression):
            return False
        match = _next_local(self.expression, start - 1)
        return match is not None and match < end

    def _is_wanted(self, at_ms: int) -> bool:
        """Whether the rule for repeated times keeps this instant."""
        if self.repeated is RepeatedHour.TWICE or not _has_fixed_time(self.expression):
            return True
        last = self.zone.last_shift(at_ms, at_ms - _REPEAT_MS_MAX)
        if last is not None and at_ms < last.at_ms + last.before_ms - last.after_ms:
            return False
        if self.repeated is RepeatedHour.ONCE:
            return True
        coming = self.zone.next_shift(at_ms, at_ms + _REPEAT_MS_MAX)
        return coming is None or at_ms < coming.at_ms - (coming.before_ms - coming.after_ms)


def recurrence_of(
    expression: str,
    *,
    zone: str,
    start_ms: int,
    skipped: SkippedHour = SkippedHour.ONCE,
    repeated: RepeatedHour = RepeatedHour.ONCE,
) -> Recurrence:
    """The instants of an expression, `@every` counted from `start_ms`; raises INVALID_SCHEDULE for an invalid
    expression.
    """
    place = zone_of(zone)
    words = expression.split()
    if not words or len(expression) > limits.SCHEDULE_EXPRESSION_CHARS_MAX:
        raise _invalid(expression, "an expression has five or six fields")
    if words[0] == "@every" and len(words) == 2:
        return Every(start_ms, _interval_ms(expression, words[1]))
    if words[0] == "@at" and len(words) == 2:
        return Once(_instant(expression, words[1], place))
    if words[0].startswith("@"):
        known = _NICKNAMES.get(words[0]) if len(words) == 1 else None
        if known is None:
            raise _invalid(expression, f"known are @every LENGTH, @at TIME, {', '.join(_NICKNAMES)}")
        words = known.split()
    normal = " ".join(words).upper()
    _parsed(normal)
    return Calendar(normal, place, skipped, repeated)


@lru_cache(maxsize=10_000)
def _parsed(expression: str) -> CronSim:
    try:
        return CronSim(expression, _LOCAL_EPOCH)
    except CronSimError as cause:
        raise _invalid(expression, f"{cause}".lower()) from None
    except (AssertionError, ValueError, IndexError, TypeError, RecursionError):
        # Expressions that the library does not expect.
        raise _invalid(expression, "it cannot be read") from None


@lru_cache(maxsize=10_000)
def _has_fixed_time(expression: str) -> bool:
    """Whether both the minute and the hour of an expression are fixed."""
    minute, hour = expression.split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


# Many schedules share few expressions, and are evaluated together.
@lru_cache(maxsize=20_000)
def _next_match(calendar: Calendar, after_ms: int) -> int | None:
    return calendar.search(after_ms)


@lru_cache(maxsize=20_000)
def _next_local(expression: str, after: int) -> int | None:
    """The first matching local time after another one, both in ms of a calendar without clock changes."""
    search = copy(_parsed(expression))
    try:
        search.dt = (_LOCAL_EPOCH + timedelta(milliseconds=after)).replace(microsecond=0)
        return (next(search) - _LOCAL_EPOCH) // _MILLISECOND
    except (StopIteration, OverflowError, ValueError):
        # No match within fifty years, or only after the last year that a date can represent.
        return None


def _interval_ms(expression: str, text: str) -> int:
    if _LENGTH.fullmatch(text) is None:
        raise _invalid(expression, "a length is a number with d, h, m, s or ms, such as 90s or 1h30m")
    length = sum(int(count) * _UNIT_MS[unit] for count, unit in _LENGTH_PART.findall(text))
    if not limits.SCHEDULE_EVERY_MS_MIN <= length <= limits.FUTURE_MS_DEFAULT:
        raise _invalid(expression, f"an interval is {limits.SCHEDULE_EVERY_MS_MIN} ms to ten years")
    return length


def _instant(expression: str, text: str, zone: Zone) -> int:
    """A time with its own offset, in epoch ms, or in the zone: the first one if it occurs twice."""
    if text.isascii() and text.isdigit():
        at_ms = int(text)
        if (problem := seconds_suspected(at_ms)) is not None:
            raise _invalid(expression, problem)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise _invalid(expression, "a time is ISO 8601, such as 2026-12-24T18:00:00, or epoch ms") from None
        if moment.tzinfo is None:
            at_ms = _from_local((moment - _LOCAL_EPOCH) // _MILLISECOND, zone)
        else:
            at_ms = (moment - EPOCH) // _MILLISECOND
    if not 0 <= at_ms <= LAST_MS:
        raise _invalid(expression, "the time is before 1970 or after 9999")
    return at_ms


def _from_local(local: int, zone: Zone) -> int:
    """The instant of a local time; a skipped local time counts as the clock change itself."""
    early = local - _REPEAT_MS_MAX
    offset = zone.offset_ms(max(early, 0))
    at_ms = local - offset
    shift = zone.next_shift(early, at_ms)
    if shift is None:
        return at_ms
    return max(local - shift.after_ms, shift.at_ms)


def _invalid(expression: str, why: str) -> DejaqError:
    return error_of(Code.INVALID_SCHEDULE, f"{expression[:80]!r} is no schedule: {why}")
