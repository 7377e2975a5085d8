"""The columns of a segment: one row is one event of one message."""

from __future__ import annotations

import pyarrow as pa

from dejaq.protocol.v1 import journal_pb2 as journal

# The name of every kind of event in a segment, by its number in a record.
KINDS: dict[int, str] = {
    number: name.removeprefix("EVENT_").lower()
    for name, number in journal.EventKind.items()
    if number != journal.EVENT_KIND_UNSPECIFIED
}

NAMES = ("origin", "kind", "topic", "actor")
SCHEMA = pa.schema(
    [
        pa.field("origin", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        # The position within the record; (origin, sequence, row) identifies an event permanently.
        pa.field("row", pa.int32(), nullable=False),
        pa.field("at_ms", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("actor", pa.string(), nullable=False),
        # 0: no lease is concerned.
        pa.field("lease", pa.int64(), nullable=False),
        pa.field("expires_ms", pa.int64()),
        pa.field("ts_ms", pa.int64()),
        pa.field("priority", pa.int32()),
        pa.field("attempts", pa.int32()),
        pa.field("body_bytes", pa.int32()),
        pa.field("body_crc", pa.int64()),
        pa.field("handed_us", pa.int64()),
    ]
)
# What a store with several brokers adds: its identity, and the place of the record among those of all of them.
OF_SHARED = pa.schema([pa.field("store", pa.string()), pa.field("ticket", pa.int64())])
# The authenticated caller of the change; empty for the anonymous one. Segments of release 0.2 do not have it.
OF_CALLERS = pa.schema([pa.field("principal", pa.string())])
_NAMED = pa.dictionary(pa.int32(), pa.string())
# The writer receives names as dictionaries, so it does not examine each one; in the file they are strings.
WRITTEN = pa.schema(
    [
        *(pa.field(field.name, _NAMED, nullable=False) if field.name in NAMES else field for field in SCHEMA),
        pa.field("principal", _NAMED),
    ]
)
WRITTEN_OF_SHARED = pa.schema([*WRITTEN, pa.field("store", _NAMED), OF_SHARED.field("ticket")])
