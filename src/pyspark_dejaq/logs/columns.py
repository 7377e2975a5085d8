"""Messages of a log as Arrow record batches, and rows of a DataFrame as the records of appends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructType

from dejaq import limits
from dejaq.domain.headers import encode_headers
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.messages import LogBatch, bucket_of_key
from pyspark_dejaq.columns import arrow_headers
from pyspark_dejaq.options import OptionError

LOG_SCHEMA = (
    "topic string, bucket int, offset bigint, timestamp timestamp, key binary, headers map<string,string>, body binary"
)
_HEADERS = pa.map_(pa.string(), pa.string())
LOG_ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("bucket", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("headers", _HEADERS),
        pa.field("body", pa.binary()),
    ]
)
_TYPES: Mapping[str, tuple[type[DataType], ...]] = {
    "body": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "bucket": (IntegralType,),
}
# What a read has besides these: a DataFrame that was read can be written to another log without changes.
_READ_ONLY = frozenset({"topic", "offset", "timestamp"})


def log_record_batch(batches: Sequence[LogBatch], topic: str, *, bodies: bool = True) -> pa.RecordBatch:
    """The messages of some batches of one bucket. A message without a key has an empty one, as in the SDK."""
    counts = np.array([len(batch) for batch in batches], dtype=np.int64)
    count = int(counts.sum())
    bases = np.array([batch.base for batch in batches], dtype=np.int64)
    # The place of each row within its batch.
    places = np.arange(count, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    ts = np.repeat(np.array([batch.ts_ms for batch in batches], dtype=np.int64), counts)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic), count),
            pa.array(np.full(count, batches[0].bucket, dtype=np.int32)),
            pa.array(np.repeat(bases, counts) + places),
            pa.array(ts * 1_000).view(pa.timestamp("us", tz="UTC")),
            pa.array(_joined([batch.keys for batch in batches], counts), pa.binary()),
            arrow_headers(_joined([batch.headers for batch in batches], counts) if _any(batches) else [], count),
            pa.array(list(chain.from_iterable(batch.bodies for batch in batches)), pa.binary())
            if bodies
            else pa.nulls(count, pa.binary()),
        ],
        schema=LOG_ARROW_SCHEMA,
    )


def _any(batches: Sequence[LogBatch]) -> bool:
    return any(batch.headers for batch in batches)


def _joined(columns: Sequence[Sequence[bytes]], counts: np.ndarray) -> list[bytes]:
    """A column of all batches; it is empty in a batch in which no message has a value."""
    return list(
        chain.from_iterable(column or [b""] * count for column, count in zip(columns, counts.tolist(), strict=True))
    )


def check_log_schema(schema: StructType) -> None:
    """Raise an error when a DataFrame cannot be appended to a log."""
    names = {field.name.lower(): field.dataType for field in schema.fields}
    if len(names) < len(schema.fields):
        raise OptionError(f"two columns have one name in another case: {', '.join(f.name for f in schema.fields)}")
    if "body" not in names:
        raise OptionError(f"a log needs a column 'body'; the DataFrame has {', '.join(names)}")
    for name, kind in names.items():
        if name == "headers":
            if kind.simpleString() != "map<string,string>":
                raise OptionError(f"column 'headers' is {kind.simpleString()}; it must be map<string,string>")
        elif name in _TYPES:
            if not isinstance(kind, _TYPES[name]):
                wanted = " or ".join(t.__name__.removesuffix("Type").lower() for t in _TYPES[name])
                raise OptionError(f"column {name!r} is {kind.simpleString()}; it must be {wanted}")
        elif name not in _READ_ONLY:
            raise OptionError(
                f"column {name!r} is unknown; a message of a log has body, key, headers, bucket. Drop or rename it"
            )


def appends_of(batch: pa.RecordBatch, buckets: int, turn: int) -> Iterator[tuple[int, bytes, int]]:
    """The rows as (bucket, serialized records, number of rows), in the order of the rows within each bucket.

    A row is in the bucket that its column `bucket` names, else in that of its key, else all are in bucket `turn`.
    """
    batch = batch.rename_columns([name.lower() for name in batch.schema.names])
    names = set(batch.schema.names)
    bodies = _binary(batch["body"])
    if bodies.null_count:
        raise OptionError("the body of a row is null; a message of a log has a body, which may be empty")
    listed = bodies.to_pylist()
    keys = [key or b"" for key in _binary(batch["key"]).to_pylist()] if "key" in names else [b""] * len(listed)
    headers = [
        encode_headers(dict(one)) if one else b""
        for one in (batch["headers"].to_pylist() if "headers" in names else [None] * len(listed))
    ]
    wanted = batch["bucket"].to_pylist() if "bucket" in names else [None] * len(listed)
    rows: dict[int, list[int]] = {}
    for row, (key, bucket) in enumerate(zip(keys, wanted, strict=True)):
        if bucket is not None and not 0 <= bucket < buckets:
            raise OptionError(f"a row names bucket {bucket}; the log has the buckets 0 to {buckets - 1}")
        chosen = bucket if bucket is not None else bucket_of_key(key, buckets) if key else turn % buckets
        rows.setdefault(chosen, []).append(row)
    for bucket, chosen_rows in rows.items():
        for part in _parts(listed, chosen_rows):
            records = log_pb2.LogRecords(bodies=[listed[row] for row in part])
            if any(keys[row] for row in part):
                records.keys.extend(keys[row] for row in part)
            if any(headers[row] for row in part):
                records.headers.extend(headers[row] for row in part)
            yield bucket, records.SerializeToString(), len(part)


def _parts(bodies: Sequence[bytes], rows: Sequence[int]) -> Iterator[list[int]]:
    part: list[int] = []
    size = 0
    for row in rows:
        if part and (len(part) >= limits.BATCH_COUNT_MAX or size + len(bodies[row]) > limits.BATCH_BYTES_MAX // 2):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(bodies[row])
    if part:
        yield part


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
