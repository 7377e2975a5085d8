"""Files of a table become one, group of rows by group of rows, without Spark.

The rows stay in the order of the files. Segments are in about the order of their times: each group of rows is of few
minutes, so that a reader of some minutes leaves the others out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from dejaq.journal.schema import NAMES
from dejaq.journal.segment import ENCODINGS
from dejaq.pipeline.lake.tables import TABLES, Table

# Groups of fewer rows are joined, so that many small files do not become many small groups; of more, divided, so that
# the memory does not depend on the files.
_ROWS_MIN, _ROWS_MAX = 50_000, 250_000


class Abandoned(Exception):
    """A join that nobody waits for any more."""


def join(
    paths: Sequence[Path], target: Path, table: Table = TABLES["events"], *, wanted: Callable[[], bool] = lambda: True
) -> None:
    """Write the rows of several files of a table as one file, in their order; raises Abandoned when not `wanted`."""
    # Without the promise that a column has no nulls: Spark wrote some of the files, and promises nothing.
    schema = to_arrow_schema(table.schema)
    with pq.ParquetWriter(target, schema, **_options(table)) as writer:
        waiting: list[pa.Table] = []
        for rows in _groups(paths, schema):
            if not wanted():
                raise Abandoned(str(target))
            waiting.append(rows)
            if sum(one.num_rows for one in waiting) >= _ROWS_MIN:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _options(table: Table) -> dict[str, object]:
    """How the columns are written; those of events as in a segment."""
    if table.name == "events":
        repeated = [*NAMES, "principal", "store"]
        return {"compression": "zstd", "use_dictionary": repeated, "column_encoding": ENCODINGS}
    return {"compression": "zstd", "use_dictionary": [name for name in table.columns if name not in table.unlike]}


def _groups(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The groups of rows of files, each with every column."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                for rows in file.iter_batches(_ROWS_MAX, row_groups=[number]):
                    columns = [
                        rows[field.name].cast(field.type)
                        if field.name in rows.schema.names
                        else pa.nulls(len(rows), field.type)
                        for field in schema
                    ]
                    yield pa.Table.from_arrays(columns, schema=schema)
