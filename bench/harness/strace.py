"""Reads the summary that `strace -c` writes."""

from __future__ import annotations

import re

SYNCS = ("fsync", "fdatasync", "sync_file_range", "msync")
# share, seconds, microseconds per call, calls, errors when there are any, name
_ROW = re.compile(r"\s*[\d.,]+\s+[\d.]+\s+\d+\s+(?P<calls>\d+)\s+(?:\d+\s+)?(?P<name>\w+)\s*")


def total_calls(summary: str) -> int:
    """How often the sync calls were made."""
    rows = [row for line in summary.splitlines() if (row := _ROW.fullmatch(line))]
    return sum(int(row["calls"]) for row in rows if row["name"] in SYNCS)
