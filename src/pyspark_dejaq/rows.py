"""Checks the rows of a DataFrame and converts them to the columns of a frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegralType, MapType, StringType, StructType, TimestampType

from dejaq import limits
from dejaq.domain.bodies.packing import MARK, Compression, opened, sealed
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
# Columns that a read adds to these: a DataFrame that was read can be written without changes.
_READ_ONLY = frozenset({"topic", "bucket", "status", "attempts", "owner"})
_NEEDED = {"create": ("id", "body"), "move": ("id",), "cancel": ("id",)}


@dataclass(frozen=True)
class BadRow:
    """A row that was refused, and the reason."""

    # None when the row has no id.
    id: str | None
    reason: str


@dataclass
class Rows:
    """The valid rows of a batch as columns, in the order of their times, and the bad rows.

    `priorities` and `headers` are empty when every row has priority 0 and no headers.
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
        operation: str,
        session: ProducerSession,
        compression: Compression = Compression.NONE,
    ) -> carrier.ClientFrame:
        """The command that does `operation` with these rows."""
        frame = carrier.ClientFrame()
        if operation == "cancel":
            frame.cancel.ids.extend(self.ids)
            frame.cancel.session = session.pack()
        elif operation == "move":
            frame.edit.ids.extend(self.ids)
            frame.edit.ts.extend(self.ts)
        else:
            create = frame.create
            create.session = session.pack()
            create.ids.extend(self.ids)
            create.ts.extend(self.ts)
            # Without compression, the bodies were already prepared when the rows were read.
            packs = compression is not Compression.NONE
            create.bodies.extend([sealed(opened(body), compression) for body in self.bodies] if packs else self.bodies)
            create.priorities.extend(self.priorities)
            create.headers.extend(self.headers)
        return frame


def check_read_schema(given: StructType, own: str) -> None:
    """Raise an error when the user gave a schema for a read."""
    if ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in given.fields) != own:
        raise OptionError("format dejaq has columns of its own: leave .schema(...) out and select what you need")


def check_schema(schema: StructType, operation: str) -> None:
    """Raise an error when the DataFrame cannot be written. The case of names does not matter, as in Spark."""
    names = {field.name.lower(): field.dataType for field in schema.fields}
    if len(names) < len(schema.fields):
        raise OptionError(f"two columns have one name in another case: {', '.join(f.name for f in schema.fields)}")
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
        if name not in _TYPES and name not in _READ_ONLY:
            known = ", ".join(_TYPES)
            raise OptionError(f"column {name!r} is unknown; a message has {known}. Drop or rename it")


def pieces(batch: pa.RecordBatch, operation: str) -> Iterator[pa.RecordBatch]:
    """The batch itself, or pieces of it that each fit a frame."""
    most = limits.NAMED_CHANGES_MAX if operation == "cancel" else limits.BATCH_COUNT_MAX
    count = batch.num_rows
    if count <= most and (count < 2 or batch.nbytes <= limits.BATCH_BYTES_MAX // 2):
        yield batch
        return
    half = min(count // 2, most)
    yield from pieces(batch.slice(0, half), operation)
    yield from pieces(batch.slice(half), operation)


def rows_of(batch: pa.RecordBatch, operation: str) -> Rows:
    """The rows of an Arrow batch. The bad rows are separated, and only they are read one by one."""
    columns = _columns(batch.rename_columns([name.lower() for name in batch.schema.names]), operation)
    doubtful = _doubtful(columns)
    bad: list[BadRow] = []
    if doubtful.any():
        values = zip(*(column.filter(pa.array(doubtful)).to_pylist() for column in columns), strict=True)
        bad = [BadRow(row[0], _fault(*row)) for row in values]
        columns = _Columns(*(column.filter(pa.array(~doubtful)) for column in columns))
    ts = columns.ts.to_numpy()
    if (ts[1:] < ts[:-1]).any():
        # Sorted rows save work in the broker, which sorts every batch that is not sorted.
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
    # Whether the columns `ts` and `due` of the row have different times.
    torn: pa.Array


def _columns(batch: pa.RecordBatch, operation: str) -> _Columns:
    """The columns of a batch; a missing column that is optional has its default."""
    names, count = set(batch.schema.names), batch.num_rows
    zeros = pa.array(np.zeros(count, dtype=np.int64))
    ts, torn = (zeros, None) if operation == "cancel" else _times(batch, names)
    body = batch["body"] if "body" in names else pa.repeat(pa.scalar(b"", pa.binary()), count)
    return _Columns(
        ids=batch["id"].cast(pa.string()),
        ts=ts,
        bodies=body if pa.types.is_binary(body.type) else body.cast(pa.binary()),
        priorities=pc.fill_null(batch["priority"].cast(pa.int64()), 0) if "priority" in names else zeros,
        headers=batch["headers"] if "headers" in names else pa.nulls(count),
        torn=pa.array(np.zeros(count, dtype=bool)) if torn is None else torn,
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
    doubtful |= columns.torn.to_numpy(zero_copy_only=False)
    doubtful |= sizes > limits.BODY_BYTES_MAX
    doubtful |= (priorities < limits.PRIORITY_MIN) | (priorities > limits.PRIORITY_MAX)
    if columns.headers.null_count < len(columns.headers):
        doubtful |= [bool(_fault_of_headers(headers)) for headers in columns.headers.to_pylist()]
    return doubtful


# The same pattern as `dejaq.domain.ids.valid_id`, for Arrow.
_ID = r"\A[0-9A-Za-z._:\-]{1,64}\z"
_ID_BYTES = np.zeros(256, dtype=bool)
_ID_BYTES[list(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._:-")] = True


def _plain_ids(ids: pa.Array) -> bool:
    """Whether every id that is not null is valid; checks all ids as one text."""
    lengths = pc.min_max(pc.binary_length(ids))
    if lengths["min"].as_py() is None or lengths["min"].as_py() < 1 or lengths["max"].as_py() > limits.ID_CHARS_MAX:
        return False
    _, offsets, data = ids.buffers()
    edges = np.frombuffer(offsets, dtype=np.int32)[ids.offset :][: len(ids) + 1]
    return bool(_ID_BYTES[np.frombuffer(data, dtype=np.uint8)[edges[0] : edges[-1]]].all())


def _times(batch: pa.RecordBatch, names: set[str]) -> tuple[pa.Array, pa.Array | None]:
    """When each message is due, from either column, and the rows whose two columns have different times."""
    found = [_epoch_ms(batch[name]) for name in ("ts", "due") if name in names]
    if len(found) == 1:
        return found[0], None
    return pc.coalesce(*found), pc.fill_null(pc.not_equal(*found), False)


def _epoch_ms(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us")).cast(pa.int64())
        # Round up, so that no message is early by a fraction of a millisecond.
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
    torn: bool,
) -> str:
    if message_id is None:
        return "the id is null"
    if not valid_id(str(message_id)):
        return "an id is 1 to 64 characters of 0-9 A-Z a-z . _ : -"
    if ts is None:
        return "the time is null"
    if torn:
        return "ts and due are different times; drop one of the columns"
    if body is None:
        return "the body is null"
    if len(body) > limits.BODY_BYTES_MAX:
        return f"the body has {len(body):,} bytes, more than {limits.BODY_BYTES_MAX:,}"
    if priority is not None and not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX:
        return f"the priority {priority} is not within {limits.PRIORITY_MIN} to {limits.PRIORITY_MAX}"
    return _fault_of_headers(headers)
