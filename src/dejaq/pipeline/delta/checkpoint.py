"""A checkpoint of a Delta log: everything that a table is at one version, as one Parquet file."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.pipeline.delta.actions import Action

_TEXTS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)


def to_parquet(actions: list[Action]) -> bytes:
    """A checkpoint with these actions."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([_as_pairs(action) for action in actions], _SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def from_parquet(content: bytes) -> list[Action]:
    """The actions of a checkpoint; raises ValueError where it is not one."""
    try:
        rows = pq.read_table(io.BytesIO(content)).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None
    return [_as_maps(name, values) for row in rows for name, values in row.items() if values is not None]


def last_checkpoint(version: int, actions: int) -> bytes:
    """The content of the file that names the newest checkpoint."""
    return json.dumps({"version": version, "size": actions}).encode()


def _as_pairs(action: Action) -> dict[str, Any]:
    """Maps as the lists of pairs that Arrow wants."""
    return {name: {key: _pairs(value) for key, value in values.items()} for name, values in action.items()}


def _pairs(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "provider" in value:
        return {"provider": value["provider"], "options": list(value["options"].items())}
    return list(value.items())


def _as_maps(name: str, values: Mapping[str, Any]) -> Action:
    found = {key: value for key, value in values.items() if value is not None}
    for key in ("partitionValues", "configuration"):
        if key in found:
            found[key] = dict(found[key])
    if "format" in found:
        found["format"] = {"provider": found["format"]["provider"], "options": dict(found["format"]["options"])}
    return {name: found}
