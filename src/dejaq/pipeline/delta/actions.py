"""The actions of a Delta log, as the protocol names them: what a version adds, removes and declares."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from dejaq.pipeline.lake.tables import TEXT, Table

Action = Mapping[str, Any]

# Which application wrote a version. It distinguishes our versions from those of other programs.
APPLICATION = "dejaq.lake"
# A feature that no other program implements. By the protocol, a program that does not know a feature for writers
# may read the table and must not write it. Readers need none of the newer features.
FEATURE = "dejaqSingleWriter"
# The column that names the write by which a row came; it is part of every path.
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its path below the table's directory, its size, and what is known of its columns."""

    path: str
    size: int
    written_ms: int
    stats: str | None = None

    @property
    def partition_values(self) -> dict[str, str]:
        """The values of the partition columns, which the path contains."""
        parts = (part.partition("=") for part in self.path.split("/")[:-1])
        return {name: unquote(value) for name, _, value in parts}


def protocol() -> Action:
    """Every engine may read; only this pipeline may write."""
    return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [FEATURE]}}


def schema_string(table: Table) -> str:
    """A table's columns. Spark's form of a schema is also that of Delta."""
    schema = type(table.schema)(list(table.schema))
    for column in (BATCH, *table.partitioned_by):
        schema.add(column, TEXT)
    return str(schema.json())


def metadata(table: Table, schema: str, *, identity: str, created_ms: int) -> Action:
    """What a table is."""
    return {
        "metaData": {
            "id": str(uuid.uuid5(uuid.UUID(identity), table.name)),
            "name": table.name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [BATCH, *table.partitioned_by],
            "configuration": {},
            "createdTime": created_ms,
        }
    }


def add(file: DataFile, *, data_change: bool) -> Action:
    """A file that belongs to the table from this version on."""
    values: dict[str, Any] = {
        "path": encoded(file.path),
        "partitionValues": file.partition_values,
        "size": file.size,
        "modificationTime": file.written_ms,
        "dataChange": data_change,
    }
    return {"add": values if file.stats is None else values | {"stats": file.stats}}


def remove(file: DataFile, at_ms: int, *, data_change: bool) -> Action:
    """A file that no longer belongs to the table."""
    return {
        "remove": {
            "path": encoded(file.path),
            "deletionTimestamp": at_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": file.partition_values,
            "size": file.size,
        }
    }


def written(version: int, at_ms: int, operation: str) -> tuple[Action, Action]:
    """The writer, time and operation of a version; and its commit of the lake, as an application transaction."""
    info = {"timestamp": at_ms, "operation": operation, "operationParameters": {}, "engineInfo": APPLICATION}
    return {"commitInfo": info}, {"txn": {"appId": APPLICATION, "version": version, "lastUpdated": at_ms}}


def file_of(values: Mapping[str, Any]) -> DataFile:
    """The file that an `add` describes."""
    return DataFile(
        decoded(str(values["path"])), int(values["size"]), int(values["modificationTime"]), values.get("stats")
    )


def lines(actions: Iterable[Action]) -> bytes:
    """Actions as the content of a version's file."""
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def parsed(content: bytes) -> list[Action]:
    """The actions in a version's file; raises ValueError where it is not one."""
    found = [json.loads(line) for line in content.splitlines() if line.strip()]
    if not all(isinstance(action, dict) for action in found):
        raise ValueError("an action is not an object")
    return found


def encoded(path: str) -> str:
    """A path as a relative URI."""
    return quote(path, safe="/=-_.~")


def decoded(path: str) -> str:
    """The path of a relative URI."""
    return unquote(path)
