"""Columns of a scan as Arrow record batches: all steps work on vectors, and never on single rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dejaq.domain.bodies.large import is_reference
from dejaq.domain.bodies.packing import MARK, shown
from dejaq.domain.headers import decode_headers
from dejaq.protocol.v1 import carrier_pb2 as carrier

READ_SCHEMA = (
    "id string, topic string, bucket int, ts bigint, due timestamp, status string, priority int, attempts int, "
    "owner string, headers map<string,string>, body binary"
)

_HEADERS = pa.map_(pa.string(), pa.string())
ARROW_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("bucket", pa.int32()),
        pa.field("ts", pa.int64()),
        pa.field("due", pa.timestamp("us", tz="UTC")),
        pa.field("status", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("attempts", pa.int32()),
        pa.field("owner", pa.string()),
        pa.field("headers", _HEADERS),
        pa.field("body", pa.binary()),
    ]
)
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_SHIFTS = np.arange(28, -1, -4, dtype=np.uint32)


# A text that many rows share, written as its number.
CODED = pa.dictionary(pa.int32(), pa.string())


def in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Some columns of a record batch; those that are coded in the schema as numbers of texts."""
    columns = [batch[field.name].dictionary_encode() if field.type == CODED else batch[field.name] for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def record_batch(scan: carrier.ScanColumns, topic: str, at: int) -> pa.RecordBatch:
    """One portion of a snapshot taken at `at`."""
    count, stretches = len(scan.ts), list(scan.stretches)
    counts = np.array([stretch.span.count for stretch in stretches], dtype=np.int64)
    ts = np.fromiter(scan.ts, dtype=np.int64, count=count)
    held = np.repeat(np.array([bool(stretch.consumer) for stretch in stretches]), counts)
    columns = [
        # When all ids are listed, the spans need not be read one by one.
        pa.array(scan.ids, pa.string()) if len(scan.ids) == count else _ids(scan),
        pa.repeat(pa.scalar(topic), count),
        pa.array(np.repeat(np.array([s.bucket for s in stretches], dtype=np.int32), counts)),
        pa.array(ts),
        pa.array(ts * 1_000).view(pa.timestamp("us", tz="UTC")),
        statuses(ts, held, at),
        numbers(list(scan.priorities), count),
        numbers(list(scan.attempts), count),
        repeated([stretch.group for stretch in stretches], counts),
        arrow_headers(list(scan.headers), count),
        opened_bodies(scan.bodies[:], count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _ids(scan: carrier.ScanColumns) -> pa.Array:
    listed, place = pa.array(scan.ids, pa.string()), 0
    parts: list[pa.Array] = []
    for stretch in scan.stretches:
        span = stretch.span
        if span.prefix:
            parts.append(generated_ids(span.prefix, span.first, span.count))
        else:
            parts.append(listed.slice(place, span.count))
            place += span.count
    return pa.concat_arrays(parts) if len(parts) != 1 else parts[0]


def generated_ids(prefix: str, first: int, count: int) -> pa.Array:
    """The ids of consecutive counters; all digits are written at once."""
    width = len(prefix) + 8
    text = np.empty((count, width), dtype=np.uint8)
    text[:, :-8] = np.frombuffer(prefix.encode(), dtype=np.uint8)
    counters = np.arange(first, first + count, dtype=np.int64)[:, None]
    text[:, -8:] = _HEX[(counters >> _SHIFTS) & 15]
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


_STATUSES = pa.array(["available", "waiting", "processing"])


def statuses(ts: np.ndarray, held: np.ndarray, at: int) -> pa.Array:
    """The status of each row at a time."""
    index = np.where(ts <= at, 0, np.where(held, 2, 1)).astype(np.int8)
    if len(index) and index.min() == index.max():
        return pa.repeat(_STATUSES[index[0]], len(index))
    return pa.DictionaryArray.from_arrays(pa.array(index), _STATUSES).cast(pa.string())


def coded_statuses(ts: np.ndarray, at: int) -> pa.Array:
    """The same of rows without a lease, as numbers of texts."""
    return pa.DictionaryArray.from_arrays(pa.array((ts > at).astype(np.int32)), _STATUSES)


def numbers(values: list[int], count: int) -> pa.Array:
    """A column of numbers; zeros when the column is absent."""
    return pa.array(values, pa.int32()) if values else pa.array(np.zeros(count, dtype=np.int32))


def repeated(values: list[str], counts: np.ndarray) -> pa.Array:
    """Each text, repeated as often as its count says."""
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0]), int(counts.sum()))
    return coded(values, counts).cast(pa.string())


def coded(values: list[str], counts: np.ndarray) -> pa.Array:
    """The same as numbers of texts."""
    names = sorted(set(values))
    numbers = {name: number for number, name in enumerate(names)}
    places = np.array([numbers[value] for value in values], dtype=np.int32)
    index = pa.array(np.repeat(places, counts))
    return pa.DictionaryArray.from_arrays(index, pa.array(names, pa.string()))


def arrow_headers(values: list[bytes], count: int) -> pa.Array:
    """A column of encoded headers as maps; empty maps when the column is absent."""
    if not values:
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, dtype=np.int32)), nothing, nothing)
    return pa.array([list(decode_headers(value).items()) for value in values], _HEADERS)


def opened_bodies(stored: list[bytes] | pa.Array, count: int) -> pa.Array:
    """A column of stored bodies, decompressed where needed.

    A large body is null, and every body is null when the query does not need bodies.
    """
    if not len(stored):
        return pa.nulls(count, pa.binary())
    column = pa.array(stored, pa.binary()) if isinstance(stored, list) else stored
    packed = pc.any(pc.starts_with(column, pattern=MARK)).as_py()
    if not packed:
        return column
    return pa.array([None if is_reference(body) else shown(body) for body in column.to_pylist()], pa.binary())
