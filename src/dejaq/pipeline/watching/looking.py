"""What the alarms need of the lake. Each look reads a few small partitions, however large the lake is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from dejaq.pipeline.intake.messages import OPEN
from dejaq.pipeline.intake.segments import DAY_MS, day_name
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.watching.conditions import HOUR_MINUTES, MINUTE_MS

if TYPE_CHECKING:
    from pyspark.sql import Row

_COLUMNS = ("topic", "minute_ms", "created", "delivered", "late", "early")
# Facts of so many topics and minutes are looked at; of more, the newest.
_ROWS_MAX = 100_000


def last_hour(lake: Lake) -> list[dict[str, Any]]:
    """The facts of the hour before the newest event, and of the hour before that."""
    newest_ms = lake.head.reached_ms
    first_ms = newest_ms - 2 * HOUR_MINUTES * MINUTE_MS
    days = [f"day={day_name(number)}" for number in range(max(0, first_ms) // DAY_MS, newest_ms // DAY_MS + 1)]
    facts = lake.read("facts", days).where(F.col("minute_ms") >= first_ms).select(*_COLUMNS)
    rows: list[Row] = facts.orderBy(F.desc("minute_ms")).limit(_ROWS_MAX).collect()
    return [row.asDict() for row in rows]


def overdue(lake: Lake, before_ms: int) -> int:
    """How many messages are pending although their time, or the end of their lease, was before a time."""
    day = day_name(before_ms // DAY_MS)
    opened = [
        name
        for name in lake.head.partitions("messages")
        # Months and years of a partition's name are before the days in them.
        if name.startswith(f"state={OPEN}/") and name.rpartition("=")[2][: len(day)] <= day
    ]
    due = F.coalesce("lease_until_ms", "scheduled_ms", "last_ms")
    return lake.read("messages", opened).where(due < before_ms).count()
