"""A small lake without Spark: commits over Parquet files that pyarrow writes, and what each engine reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import IntegerType, LongType, StringType

from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.tables import TABLES, Table

IDENTITY = "5c8e8f0a-5d5c-4f0e-9a53-0d1f4a4b3c2d"
_TYPES = {LongType: pa.int64(), IntegerType: pa.int32(), StringType: pa.string()}
Row = dict[str, Any]


def arrow_schema(table: Table) -> pa.Schema:
    types = {field.name: _TYPES.get(type(field.dataType)) for field in table.schema}
    return pa.schema([(name, kind or pa.float64()) for name, kind in types.items()])


def write(root: Path, table: str, path: str, rows: Sequence[Row]) -> str:
    """Write a file of a table below the lake's directory; its path below the table's."""
    place = root / table / path
    place.parent.mkdir(parents=True, exist_ok=True)
    schema = arrow_schema(TABLES[table])
    pq.write_table(pa.Table.from_pylist([dict.fromkeys(schema.names) | dict(row) for row in rows], schema), place)
    return path


def event(number: int, **values: Any) -> Row:
    base = {"origin": "a", "sequence": number, "row": 0, "at_ms": 1_000 * number, "kind": "created"}
    return base | {"topic": "mail", "id": f"m{number}", "actor": "g", "lease": 0} | values


class SmallLake:
    """A lake whose commits are made by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commits: list[Commit] = []
        self.rows: list[dict[str, list[Row]]] = []
        self._held: dict[str, dict[str, list[Row]]] = {name: {} for name in TABLES}

    @property
    def head(self) -> Commit:
        return self.commits[-1] if self.commits else Commit(identity=IDENTITY)

    def commit(self, table: str, *, added: dict[str, Sequence[Row]], dropped: Sequence[str] = ()) -> Commit:
        """One more commit, which adds files (a partition and its rows) to a table and drops others."""
        version = self.head.version + 1
        paths = []
        held = self._held[table]
        for path in dropped:
            del held[path]
        for number, (partition, rows) in enumerate(added.items()):
            path = f"batch={version:012d}-aa/{partition}/part-{number}.parquet"
            held[write(self.root, table, path, rows)] = list(rows)
            paths.append(path)
        after = self.head.with_table(table, dropped=dropped, added=paths)
        self.commits.append(replace(after, version=version, written_ms=1_000_000 + version))
        self.rows.append({name: [row for rows in files.values() for row in rows] for name, files in self._held.items()})
        return self.head

    def files(self, table: str) -> list[str]:
        return self.head.files(table)
