"""Segments of a day become one file of events, group of rows by group of rows, without Spark.

The rows stay in the order of the segments, which is about that of their times: each group of rows is of few minutes, so
that a reader of some minutes leaves the others out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.errors import PipelineError
from dejaq.journal.schema import NAMES, OF_CALLERS, OF_SHARED, SCHEMA
from dejaq.journal.segment import ENCODINGS

if TYPE_CHECKING:
    from dejaq.pipeline.lake.lake import Lake

# Groups of fewer rows are joined, so that many small segments do not become many small groups.
_ROWS_MIN = 50_000
# Without the promise that a column has no nulls: Spark wrote some of the files, and promises nothing.
_SCHEMA = pa.schema([pa.field(field.name, field.type) for field in (*SCHEMA, *OF_CALLERS, *OF_SHARED)])


def joined_segments(lake: Lake, partitions: Mapping[str, Sequence[str]], batch: str) -> list[str]:
    """Write the files of each partition of `events` as one; returns the new files. The lake is on this machine."""
    assert lake.files.local is not None
    home = lake.files.local / "events"
    added = []
    for partition, files in partitions.items():
        name = f"{batch}/{partition}/part-00000.parquet"
        lake.files.make(f"events/{batch}/{partition}")
        # By the first time in each: files of several brokers follow one another as they were written.
        times = {file: lake.delta.extent("events", file, "at_ms")[0] or 0 for file in files}
        try:
            join([home / file for file in sorted(files, key=lambda file: (times[file], file))], home / name)
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(f"the events of {partition} cannot be compacted: {error}") from None
        added.append(name)
    if added:
        lake.written("events", batch)
    return added


def join(paths: Sequence[Path], target: Path) -> None:
    """Write the rows of several files of events as one file, in their order."""
    options = {
        "compression": "zstd",
        "use_dictionary": [*NAMES, "principal", "store"],
        "column_encoding": ENCODINGS,
    }
    with pq.ParquetWriter(target, _SCHEMA, **options) as writer:
        waiting: list[pa.Table] = []
        for rows in _groups(paths):
            waiting.append(rows)
            if sum(one.num_rows for one in waiting) >= _ROWS_MIN:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _groups(paths: Sequence[Path]) -> Iterator[pa.Table]:
    """The groups of rows of files, each with every column."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number)
                columns = [
                    rows[field.name].cast(field.type)
                    if field.name in rows.column_names
                    else pa.nulls(len(rows), field.type)
                    for field in _SCHEMA
                ]
                yield pa.Table.from_arrays(columns, schema=_SCHEMA)
