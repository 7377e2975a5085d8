"""Lengths of time as people write them, in the SDK, at the command line and in back-off policies."""

from __future__ import annotations

import re

_LENGTH = re.compile(r"(?:\d{1,12}(?:\.\d{1,6})?(?:ms|s|m|h|d|w))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
FORMS = "write seconds (2.5), or 250ms, 90s, 5m, 1h30m, 7d"


def parse_length_ms(text: str) -> int | None:
    """The milliseconds of 250ms, 90s, 1h30m or 7d; None for any other text."""
    if _LENGTH.fullmatch(text) is None:
        return None
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))
