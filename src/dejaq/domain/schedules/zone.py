"""Time zones: the offset from UTC at an instant, and the shifts between offsets.

The rules are those of the `tzdata` package, not of the machine, so every broker computes the same times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from dejaq import limits
from dejaq.errors import Code, error_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S = 86_400
_LAST_S = limits.TS_MS_MAX // 1_000 - 2 * _DAY_S
_YEAR_MIN, _YEAR_MAX = 1970, 9_998


@dataclass(frozen=True, slots=True)
class Shift:
    """From `at_ms` on, the offset from UTC is `after_ms`, and before it `before_ms`."""

    at_ms: int
    before_ms: int
    after_ms: int


class Zone:
    """One time zone."""

    def __init__(self, name: str, rules: ZoneInfo) -> None:
        self.name = name
        self._rules = rules
        self._shifts: dict[int, list[Shift]] = {}

    def offset_ms(self, at_ms: int) -> int:
        """The offset of local time from UTC at an instant."""
        return self._offset_s(at_ms // 1_000) * 1_000

    def next_shift(self, after_ms: int, until_ms: int) -> Shift | None:
        """The first shift with after_ms < at_ms <= until_ms."""
        for year in range(_year(after_ms), _year(until_ms) + 1):
            shifts = self._of_year(year)
            place = bisect_right(shifts, after_ms, key=lambda shift: shift.at_ms)
            if place < len(shifts):
                return shifts[place] if shifts[place].at_ms <= until_ms else None
        return None

    def last_shift(self, at_ms: int, since_ms: int) -> Shift | None:
        """The last shift with since_ms <= at_ms of the shift <= `at_ms`."""
        for year in range(_year(at_ms), _year(since_ms) - 1, -1):
            shifts = self._of_year(year)
            place = bisect_left(shifts, at_ms + 1, key=lambda shift: shift.at_ms)
            if place:
                return shifts[place - 1] if shifts[place - 1].at_ms >= since_ms else None
        return None

    def local(self, at_ms: int) -> datetime:
        """The local date and time of an instant."""
        return (EPOCH + timedelta(milliseconds=min(at_ms, _LAST_S * 1_000))).astimezone(self._rules)

    def _of_year(self, year: int) -> list[Shift]:
        """The shifts of a year, found by day and then to the second."""
        found = self._shifts.get(year)
        if found is None:
            found = self._shifts[year] = []
            start, end = _start_s(year), _start_s(year + 1)
            for day in range(start, end, _DAY_S):
                low, high = day - 1, min(day + _DAY_S, end) - 1
                before, after = self._offset_s(low), self._offset_s(high)
                if before == after:
                    continue
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if self._offset_s(middle) == before else (low, middle)
                found.append(Shift(high * 1_000, before * 1_000, after * 1_000))
        return found

    def _offset_s(self, at_s: int) -> int:
        # Local time must remain within the years that a date can represent.
        at_s = min(max(at_s, 0), _LAST_S)
        offset = datetime.fromtimestamp(at_s, self._rules).utcoffset()
        assert offset is not None
        return round(offset.total_seconds())


@lru_cache
def zone_names() -> frozenset[str]:
    """The name of every zone."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())


@lru_cache(maxsize=1_000)
def zone_of(name: str) -> Zone:
    """The zone with an IANA name; raises INVALID_SCHEDULE for an unknown name."""
    if name not in zone_names():
        near = sorted(known for known in zone_names() if name.casefold() in known.casefold())[:3] if name else []
        hint = f"; did you mean {' or '.join(near)}?" if near else "; give a name such as Europe/Berlin"
        raise error_of(Code.INVALID_SCHEDULE, f"{name[:80]!r} is not a time zone{hint}")
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return Zone(name, ZoneInfo.from_file(rules, key=name))


def _year(at_ms: int) -> int:
    year = (EPOCH + timedelta(milliseconds=at_ms)).year
    return min(max(year, _YEAR_MIN), _YEAR_MAX)


@lru_cache(maxsize=1_000)
def _start_s(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
