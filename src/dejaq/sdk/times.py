"""Times as callers give them: an aware datetime or epoch milliseconds, or a delay in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from dejaq import limits
from dejaq.domain.durations import parse_length_ms
from dejaq.domain.epoch import seconds_suspected
from dejaq.errors import Code, DejaqError, error_of

At = datetime | int
Delay = float | timedelta
# A setting: seconds, a timedelta, or a text such as 90s, 24h or 7d.
Duration = str | float | timedelta


class RelativeTime(int):
    """Epoch ms that the SDK computed from a delay; a repeat need not have the same."""


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_ms(at: At) -> int:
    """UTC milliseconds of a datetime (rounded up) or of epoch milliseconds; INVALID_TIME for any other value.

    A number that would be a time before 2001 is refused, because it is most likely in seconds.
    """
    if isinstance(at, datetime):
        if at.tzinfo is None or at.utcoffset() is None:
            raise error_of(
                Code.INVALID_TIME,
                f"{at.isoformat()} has no time zone; give an aware datetime, such as datetime.now(timezone.utc)",
            )
        return -((EPOCH - at) // _MILLISECOND)
    if isinstance(at, int) and not isinstance(at, bool):
        if (problem := seconds_suspected(at)) is not None:
            raise error_of(Code.INVALID_TIME, problem)
        return at
    raise error_of(Code.INVALID_TIME, f"{at!r} is not a time; give an aware datetime or epoch ms as an int")


def to_datetime(ms: int) -> datetime:
    """The UTC datetime of epoch milliseconds; times beyond the year 9999 are shown as its end."""
    return EPOCH + timedelta(milliseconds=min(ms, limits.TS_MS_MAX))


def delay_us(delay: Delay) -> int:
    """A delay in microseconds."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise error_of(Code.INVALID_TIME, f"{delay!r} is not a delay; give seconds or a timedelta")
    return round(seconds * 1_000_000)


def duration_ms(length: Duration) -> int | None:
    """Milliseconds of a duration, as the command line reads it too; None for what is not one."""
    seconds: object = length
    if isinstance(length, str):
        if (ms := parse_length_ms(length)) is not None:
            return ms
        try:
            seconds = float(length)
        except ValueError:
            return None
    try:
        ms = round(delay_us(seconds) / 1_000)  # type: ignore[arg-type]
    except DejaqError:
        return None
    return ms if ms >= 0 else None


def resolve(at: At | None, delay: Delay | None, now_us: int) -> int:
    """The time that `at` or `delay` means: a delay never ends early; without either, the present time."""
    if at is not None and delay is not None:
        raise error_of(Code.INVALID_ARGUMENT, "give one of `at` and `delay`, not both")
    if at is not None:
        return to_ms(at)
    return now_us // 1_000 if delay is None else -(-(now_us + delay_us(delay)) // 1_000)


def is_relative(at: At | None) -> bool:
    """Whether a time was not given as a point in time."""
    return at is None or isinstance(at, RelativeTime)


def resolve_column(
    at: At | Sequence[At] | None,
    delay: Delay | Sequence[Delay] | None,
    *,
    count: int,
    now_us: int,
) -> list[int]:
    """One time per row, from one value for all rows or from a column."""
    if at is not None and delay is not None:
        raise error_of(Code.INVALID_ARGUMENT, "give one of `at` and `delay`, not both")
    if isinstance(at, Sequence):
        # A column of plain ints in the usual range is used without a copy: the common case costs two passes in C.
        plain = set(map(type, at)) <= {int} and min(at, default=0) >= limits.PLAIN_TIME_MS_MIN  # type: ignore[operator]
        times: list[int] = list(at) if plain else [to_ms(value) for value in at]  # type: ignore[arg-type]
    elif isinstance(delay, Sequence):
        times = [resolve(None, value, now_us) for value in delay]
    else:
        return [resolve(at, delay, now_us)] * count
    if len(times) != count:
        raise error_of(Code.INVALID_ARGUMENT, f"{len(times)} times for {count} messages")
    return times


def lease_ms(seconds: float | timedelta) -> int:
    """The length of a lease in milliseconds; INVALID_LEASE when it is out of range."""
    length = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if isinstance(length, bool) or not isinstance(length, int | float) or not math.isfinite(length):
        raise error_of(Code.INVALID_LEASE, f"{seconds!r} is not a length of time; give seconds or a timedelta")
    ms = round(length * 1_000)
    if not limits.LEASE_MS_MIN <= ms <= limits.LEASE_MS_MAX:
        raise error_of(
            Code.INVALID_LEASE,
            f"a lease of {length:g} s; it must be {limits.LEASE_MS_MIN / 1000:g} to {limits.LEASE_MS_MAX / 1000:g} s",
        )
    return ms
