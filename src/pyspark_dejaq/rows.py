"""Rows of a DataFrame on their way to the broker: checked, and turned into the columns of a frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegralType, MapType, StringType, StructType, TimestampType

from dejaq import limits
from dejaq.domain.bodies import sealed_column
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession, valid_id, valid_ids
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
    """The good rows of a batch as columns, and the bad ones."""

    ids: list[str] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def split(self) -> Iterator[Rows]:
        """As they are, or in pieces that each fit a frame."""
        size = sum(map(len, self.bodies)) + sum(map(len, self.headers))
        if len(self) < 2 or size <= limits.BATCH_BYTES_MAX // 2:
            yield self
            return
        half = len(self) // 2
        first = self._part(0, half)
        first.bad = self.bad
        yield from first.split()
        yield from self._part(half, len(self)).split()

    def _part(self, start: int, end: int) -> Rows:
        return Rows(
            ids=self.ids[start:end],
            ts=self.ts[start:end],
            bodies=self.bodies[start:end],
            priorities=self.priorities[start:end],
            headers=self.headers[start:end],
        )

    def frame(self, request: int, operation: str, session: ProducerSession) -> carrier.ClientFrame:
        """The command that does `operation` with these rows."""
        frame = carrier.ClientFrame(request=request)
        if operation == "cancel":
            frame.cancel.ids.extend(self.ids)
        elif operation == "move":
            frame.edit.ids.extend(self.ids)
            frame.edit.ts.extend(self.ts)
        else:
            frame.create.CopyFrom(
                carrier.CreateBatch(
                    session=session.pack(),
                    ids=self.ids,
                    ts=self.ts,
                    bodies=sealed_column(self.bodies),
                    priorities=self.priorities if any(self.priorities) else None,
                    headers=self.headers if any(self.headers) else None,
                )
            )
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


def rows_of(batch: pa.RecordBatch, operation: str) -> Rows:
    """The rows of an Arrow batch, the bad ones apart."""
    names = set(batch.schema.names)
    count = batch.num_rows
    ids = batch["id"].to_pylist()
    ts = [0] * count if operation == "cancel" else _times(batch, names).to_pylist()
    bodies = _bodies(batch) if "body" in names else [b""] * count
    priorities = batch["priority"].to_pylist() if "priority" in names else [0] * count
    headers = batch["headers"].to_pylist() if "headers" in names else [None] * count
    if _all_good(ids, ts, bodies, priorities) and not any(headers):
        return Rows(ids=ids, ts=ts, bodies=bodies, priorities=priorities, headers=[b""] * count)
    rows = Rows()
    for values in zip(ids, ts, bodies, priorities, headers, strict=True):
        reason = _fault(*values)
        if reason:
            rows.bad.append(BadRow(str(values[0]), reason))
            continue
        rows.ids.append(values[0])
        rows.ts.append(values[1])
        rows.bodies.append(values[2])
        rows.priorities.append(values[3] or 0)
        rows.headers.append(encode_headers(dict(values[4])) if values[4] else b"")
    return rows


def _all_good(ids: list[str], ts: list[int], bodies: list[bytes], priorities: list[int]) -> bool:
    """Whether no row needs to be looked at by itself."""
    if None in ids or None in ts or None in bodies or None in priorities or not ids:
        return False
    low, high = limits.PRIORITY_MIN, limits.PRIORITY_MAX
    return low <= min(priorities) and max(priorities) <= high and valid_ids(ids)


def _times(batch: pa.RecordBatch, names: set[str]) -> pa.Array:
    column = batch["ts" if "ts" in names else "due"]
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us")).cast(pa.int64())
        # Round up: a message is never early by the part of a millisecond.
        return pc.divide(pc.add(micros, 999), 1_000)
    return column.cast(pa.int64())


def _bodies(batch: pa.RecordBatch) -> list[bytes]:
    column = batch["body"]
    bodies: list[bytes] = (column if pa.types.is_binary(column.type) else column.cast(pa.binary())).to_pylist()
    return bodies


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
    if headers and any(value is None for _, value in headers):
        return "a header is null"
    return ""
