"""Rows of a DataFrame on their way to the broker: checked, and turned into the columns of a frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegralType, MapType, StringType, StructType, TimestampType

from dejaq import limits
from dejaq.domain.bodies import MARK, Compression, opened, sealed
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession, valid_id
from dejaq.protocol.v1 import carrier_pb2 as carrier
from pyspark_dejaq.options import OptionError

_TYPES: dict[str, tuple[type, ...]] = {
    "id": (StringType,),
    "ts": (IntegralType, TimestampType),
    "due": (TimestampType,),
    "body": (BinaryType, StringType),
    "priority": (IntegralType,),
    "headers": (MapType,),
}
_NEEDED = {"create": ("id", "body"), "move": ("id",), "cancel": ("id",)}


@dataclass(frozen=True)
class BadRow:
    """A row that was not taken, and why."""

    id: str
    reason: str


@dataclass
class Rows:
    """The good rows of a batch as columns, in the order of their times, and the bad ones.

    `priorities` and `headers` are empty where every row has 0 and none.
    """

    ids: list[str] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def frame(
        self,
        request: int,
        operation: str,
        session: ProducerSession,
        compression: Compression = Compression.NONE,
    ) -> carrier.ClientFrame:
        """The command that does `operation` with these rows."""
        frame = carrier.ClientFrame(request=request)
        if operation == "cancel":
            frame.cancel.ids.extend(self.ids)
        elif operation == "move":
            frame.edit.ids.extend(self.ids)
            frame.edit.ts.extend(self.ts)
        else:
            create = frame.create
            create.session = session.pack()
            create.ids.extend(self.ids)
            create.ts.extend(self.ts)
            # Without compression they were sealed when they were read.
            packs = compression is not Compression.NONE
            create.bodies.extend([sealed(opened(body), compression) for body in self.bodies] if packs else self.bodies)
            create.priorities.extend(self.priorities)
            create.headers.extend(self.headers)
        return frame


def check_schema(schema: StructType, operation: str) -> None:
    """Raise a sentence when the DataFrame cannot be written."""
    names = {field.name: field.dataType for field in schema.fields}
    for name in _NEEDED[operation]:
        if name not in names:
            raise OptionError(f"operation={operation} needs a column {name!r}; the DataFrame has {', '.join(names)}")
    if operation != "cancel" and not {"ts", "due"} & set(names):
        raise OptionError(f"operation={operation} needs a column 'ts' (epoch ms or timestamp) or 'due' (timestamp)")
    for name, kind in names.items():
        if name == "headers" and kind.simpleString() != "map<string,string>":
            raise OptionError(f"column 'headers' is {kind.simpleString()}; it must be map<string,string>")
        if name in _TYPES and not isinstance(kind, _TYPES[name]):
            wanted = " or ".join(t.__name__.removesuffix("Type").lower() for t in _TYPES[name])
            raise OptionError(f"column {name!r} is {kind.simpleString()}; it must be {wanted}")
        if name not in _TYPES:
            known = ", ".join(_TYPES)
            raise OptionError(f"column {name!r} is unknown; a message has {known}. Drop or rename it")


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch as it is, or in pieces that each fit a frame."""
    count = batch.num_rows
    if count <= limits.BATCH_COUNT_MAX and (count < 2 or batch.nbytes <= limits.BATCH_BYTES_MAX // 2):
        yield batch
        return
    half = min(count // 2, limits.BATCH_COUNT_MAX)
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))


def rows_of(batch: pa.RecordBatch, operation: str) -> Rows:
    """The rows of an Arrow batch, the bad ones apart; only those are looked at one by one."""
    columns = _columns(batch, operation)
    doubtful = _doubtful(columns)
    bad: list[BadRow] = []
    if doubtful.any():
        values = zip(*(column.filter(pa.array(doubtful)).to_pylist() for column in columns), strict=True)
        bad = [BadRow(str(row[0]), _fault(*row)) for row in values]
        columns = _Columns(*(column.filter(pa.array(~doubtful)) for column in columns))
    ts = columns.ts.to_numpy()
    if (ts[1:] < ts[:-1]).any():
        # A run is sorted, and a broker that finds it so need not do it.
        order = pa.array(np.argsort(ts, kind="stable"))
        columns = _Columns(*(column.take(order) for column in columns))
    return Rows(
        ids=columns.ids.to_pylist(),
        ts=columns.ts.to_pylist(),
        bodies=_sealed(columns.bodies),
        priorities=columns.priorities.to_pylist() if columns.priorities.to_numpy().any() else [],
        headers=_encoded(columns.headers),
        bad=bad,
    )


class _Columns(NamedTuple):
    ids: pa.Array
    ts: pa.Array
    bodies: pa.Array
    priorities: pa.Array
    headers: pa.Array


def _columns(batch: pa.RecordBatch, operation: str) -> _Columns:
    """The columns of a batch; what it has not, and need not have, has a default."""
    names, count = set(batch.schema.names), batch.num_rows
    zeros = pa.array(np.zeros(count, dtype=np.int64))
    body = batch["body"] if "body" in names else pa.repeat(pa.scalar(b"", pa.binary()), count)
    return _Columns(
        ids=batch["id"].cast(pa.string()),
        ts=zeros if operation == "cancel" else _times(batch, names),
        bodies=body if pa.types.is_binary(body.type) else body.cast(pa.binary()),
        priorities=pc.fill_null(batch["priority"].cast(pa.int64()), 0) if "priority" in names else zeros,
        headers=batch["headers"] if "headers" in names else pa.nulls(count),
    )


def _doubtful(columns: _Columns) -> np.ndarray:
    """Which rows have a fault."""
    doubtful = np.zeros(len(columns.ids), dtype=bool)
    for column in columns[:3]:
        if column.null_count:
            doubtful |= column.is_null().to_numpy(zero_copy_only=False)
    if not _plain_ids(columns.ids):
        doubtful |= ~pc.fill_null(pc.match_substring_regex(columns.ids, _ID), True).to_numpy(zero_copy_only=False)
    sizes = pc.fill_null(pc.binary_length(columns.bodies), 0).to_numpy()
    priorities = columns.priorities.to_numpy()
    doubtful |= sizes > limits.BODY_BYTES_MAX
    doubtful |= (priorities < limits.PRIORITY_MIN) | (priorities > limits.PRIORITY_MAX)
    if columns.headers.null_count < len(columns.headers):
        doubtful |= [bool(_fault_of_headers(headers)) for headers in columns.headers.to_pylist()]
    return doubtful


# The same as `dejaq.domain.ids.valid_id`, for Arrow.
_ID = r"\A[0-9A-Za-z._:\-]{1,64}\z"
_ID_BYTES = np.zeros(256, dtype=bool)
_ID_BYTES[list(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._:-")] = True


def _plain_ids(ids: pa.Array) -> bool:
    """Whether every id that is there has the form of one: looked at as one text."""
    lengths = pc.min_max(pc.binary_length(ids))
    if lengths["min"].as_py() is None or lengths["min"].as_py() < 1 or lengths["max"].as_py() > limits.ID_CHARS_MAX:
        return False
    _, offsets, data = ids.buffers()
    edges = np.frombuffer(offsets, dtype=np.int32)[ids.offset :][: len(ids) + 1]
    return bool(_ID_BYTES[np.frombuffer(data, dtype=np.uint8)[edges[0] : edges[-1]]].all())


def _times(batch: pa.RecordBatch, names: set[str]) -> pa.Array:
    column = batch["ts" if "ts" in names else "due"]
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us")).cast(pa.int64())
        # Round up: a message is never early by the part of a millisecond.
        return pc.divide(pc.add(micros, 999), 1_000)
    return column.cast(pa.int64())


def _sealed(column: pa.Array) -> list[bytes]:
    bodies: list[bytes] = column.to_pylist()
    return list(map(sealed, bodies)) if pc.any(pc.starts_with(column, pattern=MARK)).as_py() else bodies


def _encoded(column: pa.Array) -> list[bytes]:
    if column.null_count == len(column):
        return []
    encoded = [encode_headers(dict(headers)) if headers else b"" for headers in column.to_pylist()]
    return encoded if any(encoded) else []


def _fault_of_headers(headers: list[tuple[str, str | None]] | None) -> str:
    return "a header is null" if headers and any(value is None for _, value in headers) else ""


def _fault(
    message_id: object,
    ts: object,
    body: bytes | None,
    priority: int | None,
    headers: list[tuple[str, str | None]] | None,
) -> str:
    if message_id is None:
        return "the id is null"
    if not valid_id(str(message_id)):
        return "an id is 1 to 64 characters of 0-9 A-Z a-z . _ : -"
    if ts is None:
        return "the time is null"
    if body is None:
        return "the body is null"
    if len(body) > limits.BODY_BYTES_MAX:
        return f"the body has {len(body):,} bytes, more than {limits.BODY_BYTES_MAX:,}"
    if priority is not None and not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX:
        return f"the priority {priority} is not within {limits.PRIORITY_MIN} to {limits.PRIORITY_MAX}"
    return _fault_of_headers(headers)
