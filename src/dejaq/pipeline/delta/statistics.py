"""What the footer of a Parquet file says of its columns, in the form of a Delta log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# A longer text is cut as a lower bound and left out as an upper bound, so that a log stays small.
_CHARS_MAX = 64


def statistics_of(path: Path) -> str | None:
    """The number of rows, and for each column its least and greatest value and its nulls; None if not readable."""
    try:
        meta = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return None
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    for place, name in enumerate(meta.schema.names):
        if "." in meta.schema.column(place).path:
            # A part of a map; its name may also be that of a column.
            continue
        found = [group.column(place).statistics for group in groups]
        if any(one is None for one in found):
            continue
        if all(one.has_null_count for one in found):
            nulls[name] = sum(one.null_count for one in found)
        # A group of nulls alone has no least value and does not change that of the file.
        with_values = [
            one for one, group in zip(found, groups, strict=True) if one.has_min_max or not _is_null(one, group)
        ]
        if not with_values or not all(one.has_min_max for one in with_values):
            continue
        low, high = min(one.min for one in with_values), max(one.max for one in with_values)
        if _fits(low):
            least[name] = low[:_CHARS_MAX] if isinstance(low, str) else low
        if _fits(high) and not (isinstance(high, str) and len(high) > _CHARS_MAX):
            greatest[name] = high
    values = {"numRecords": meta.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(values, separators=(",", ":"))


def within(statistics: str, column: str) -> tuple[int | None, int | None]:
    """The least and the greatest value of a column of numbers; None where it is not known."""
    values = json.loads(statistics)
    return values["minValues"].get(column), values["maxValues"].get(column)


def rows_in(statistics: str) -> int:
    """The number of rows of a file."""
    return int(json.loads(statistics)["numRecords"])


def _is_null(statistics: Any, group: Any) -> bool:
    return bool(statistics.has_null_count and statistics.null_count == group.num_rows)


def _fits(value: Any) -> bool:
    """Whether JSON has a form for a value."""
    return isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value))
