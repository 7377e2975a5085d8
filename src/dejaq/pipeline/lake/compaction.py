"""Compaction: partitions in many small files become one file each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dejaq.pipeline.lake.joining import joined_segments
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.lake.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Neighbours in a file are what is read together: events by time, so that a minute is few pages.
_ORDER = {
    "events": ("at_ms", "origin", "sequence", "row"),
    "messages": ("topic", "id"),
    "releases": ("topic", "handed_us"),
    "facts": ("topic", "minute_ms"),
    "log_messages": ("bucket", "offset"),
}


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did to a table."""

    table: str
    partitions: int
    files: int


def compact(
    lake: Lake, *, files_max: Mapping[str, int] | None = None, bytes_small: int | None = None
) -> list[Compacted]:
    """In every partition with more than so many files (of its table, or 1), make those below `bytes_small` one.

    A file that has grown beyond that is never written again, so that all compactions together write a row a few times.
    The rows stay the same. The lake must be held for writing.
    """
    batch = lake.new_batch()
    after, done = lake.head, []
    for table in _ORDER:
        small = _small_files(lake, table, bytes_small)
        most = 1 if files_max is None else files_max[table]
        crowded = {name: files for name, files in small.items() if len(files) > most}
        if not crowded:
            continue
        gone = [file for files in crowded.values() for file in files]
        if table == "events" and lake.files.local is not None:
            added = joined_segments(lake, crowded, batch)
        else:
            added = lake.write(table, _gathered(lake.read_files(table, gone), table), batch)
        after = after.with_table(table, dropped=gone, added=added)
        done.append(Compacted(table, len(crowded), len(gone)))
    if done:
        lake.commit(after, "OPTIMIZE")
    return done


def _small_files(lake: Lake, table: str, bytes_small: int | None) -> dict[str, list[str]]:
    """The files of each partition that are worth joining."""
    found = lake.head.partitions(table)
    if bytes_small is None:
        return {name: list(files) for name, files in found.items()}
    return {
        name: [file for file in files if lake.files.size(f"{table}/{file}") < bytes_small]
        for name, files in found.items()
        if len(files) > 1
    }


def _gathered(rows: DataFrame, table: str) -> DataFrame:
    """The rows of a partition in one place, in their order."""
    by = TABLES[table].partitioned_by
    return rows.repartition(*by).sortWithinPartitions(*by, *_ORDER[table])
