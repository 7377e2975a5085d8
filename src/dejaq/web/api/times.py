"""Times in requests: ISO 8601 with a zone, epoch milliseconds, or relative to the broker's clock."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from dejaq import limits
from dejaq.domain.durations import parse_length_ms
from dejaq.errors import Code, error_of
from dejaq.sdk.times import RelativeTime, to_datetime, to_ms

_RELATIVE = re.compile(r"([+-]?)(\d[0-9.]*\s*[a-z]+)", re.ASCII)
_MS = re.compile(r"\d{1,18}", re.ASCII)


def parse_time(text: str | int | None, now_ms: int) -> int | None:
    """UTC milliseconds; raises INVALID_TIME for anything else."""
    if text is None or text == "":
        return None
    ms = text if isinstance(text, int) else _parsed(text.strip(), now_ms)
    if ms is None or not 0 <= ms <= limits.TS_MS_MAX:
        raise error_of(
            Code.INVALID_TIME,
            f"{str(text)[:60]!r} is not a time; write ISO 8601 with a zone (2030-01-31T09:00:00+01:00), epoch "
            "milliseconds, or a time relative to now (+90s, 5m, -2h)",
        )
    return to_ms(ms) if isinstance(text, int) or _MS.fullmatch(text.strip()) else ms


def times_of(at: str | int | None, delay: float | None, now_ms: int) -> dict[str, Any]:
    """`at` or `delay` as arguments of the SDK."""
    parsed = parse_time(at, now_ms)
    if parsed is None:
        return {} if delay is None else {"delay": delay}
    if delay is not None:
        raise error_of(Code.INVALID_ARGUMENT, "give one of at and delay")
    return {"at": parsed}


def _parsed(text: str, now_ms: int) -> int | None:
    if text == "now":
        return RelativeTime(now_ms)
    if _MS.fullmatch(text):
        return int(text)
    if (relative := _RELATIVE.fullmatch(text)) is not None:
        length = parse_length_ms(relative[2])
        # A repeat of the request has another time, and is the same request.
        return None if length is None else RelativeTime(now_ms + (-length if relative[1] == "-" else length))
    try:
        # A plus sign in a query string that was not escaped arrives as a space.
        return to_ms(datetime.fromisoformat(text.replace(" ", "+") if text.count(" ") == 1 and "T" in text else text))
    except (ValueError, OverflowError):
        return None


def iso_of(ms: int) -> str:
    """A time as ISO 8601 in UTC with milliseconds."""
    return to_datetime(max(ms, 0)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
