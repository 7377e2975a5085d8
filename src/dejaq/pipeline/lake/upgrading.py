"""A lake of an earlier release becomes one of this release, in place."""

from __future__ import annotations

import pyarrow.parquet as pq

from dejaq.pipeline.lake.commit import FORMAT
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.lake.tables import TABLES

_WITH_STORE = [table.name for table in TABLES.values() if "store" in table.columns and "origin" not in table.columns]


def upgrade(lake: Lake) -> bool:
    """Write those files again that no other engine would understand; whether the lake was of an earlier release.

    The first release named the store of a row `origin`. Everything else stays as it is. The lake must be held for
    writing.
    """
    if not lake.head.version or lake.head.format >= FORMAT:
        return False
    batch, after = lake.new_batch(), lake.head
    for table in _WITH_STORE:
        old = [file for file in after.files(table) if _names_origin(lake, f"{table}/{file}")]
        if old:
            after = after.with_table(table, dropped=old, added=lake.write(table, lake.read_files(table, old), batch))
    lake.commit(after, "UPGRADE")
    return True


def _names_origin(lake: Lake, name: str) -> bool:
    if lake.files.local is None:
        # Where a footer cannot be read cheaply, Spark reads it.
        return "store" not in lake.spark.read.parquet(lake.files.path(name)).columns
    return "store" not in pq.read_schema(lake.files.local / name).names
