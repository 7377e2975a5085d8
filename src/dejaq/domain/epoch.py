"""Plain numbers as times: epoch milliseconds. A number that is most likely in epoch seconds is refused."""

from __future__ import annotations

from datetime import UTC, datetime

from dejaq import limits


def seconds_suspected(value: int) -> str | None:
    """Why `value` is not accepted as epoch milliseconds, with both readings; None when it is accepted.

    The epoch itself is the same in both units. This function does not check the range of DejaQ's times.
    """
    if not 0 < value < limits.PLAIN_TIME_MS_MIN:
        return None
    as_ms, as_seconds = (_shown(ms) for ms in (value, value * 1_000))
    return (
        f"{value} is {as_ms} when read as milliseconds and {as_seconds} when read as seconds; "
        f"give epoch milliseconds ({value * 1_000}); a time before 2001 must be given as a datetime or in ISO 8601"
    )


def _shown(ms: int) -> str:
    moment = datetime.fromtimestamp(min(ms, limits.TS_MS_MAX) // 1_000, UTC)
    return moment.isoformat().replace("+00:00", "Z")
