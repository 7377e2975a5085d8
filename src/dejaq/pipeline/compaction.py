"""Compaction: partitions in many small files become one file each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dejaq.pipeline.lake import Lake
from dejaq.pipeline.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Neighbours in a file are what is read together: events by time, so that a minute is few pages.
_ORDER = {
    "events": ("at_ms", "origin", "sequence", "row"),
    "messages": ("topic", "id"),
    "releases": ("topic", "handed_us"),
    "facts": ("topic", "minute_ms"),
}


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did to a table."""

    table: str
    partitions: int
    files: int


def compact(lake: Lake, *, files_max: int = 1) -> list[Compacted]:
    """Write every partition that is in more than `files_max` files anew, in one commit.

    The rows stay the same. The lake must be held for writing.
    """
    batch = lake.new_batch()
    after, done = lake.head, []
    for table in TABLES:
        crowded = {name: found for name, found in lake.head.partitions(table).items() if len(found) > files_max}
        if not crowded:
            continue
        rows = _gathered(lake.read(table, crowded), table)
        after = after.with_table(table, replaced=crowded, added=lake.write(table, rows, batch))
        done.append(Compacted(table, len(crowded), sum(map(len, crowded.values()))))
    if done:
        lake.commit(after)
    return done


def _gathered(rows: DataFrame, table: str) -> DataFrame:
    """The rows of a partition in one place, in their order."""
    by = TABLES[table].partitioned_by
    return rows.repartition(*by).sortWithinPartitions(*by, *_ORDER[table])
