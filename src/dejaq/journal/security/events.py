"""One event of the security log, and the segments in which events are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.journal.names import named_files
from dejaq.journal.segment import WrittenSegment

# The directory in the data directory, and the files of its origin and its key, which are not in it.
DIRECTORY, ORIGIN, KEY = "security", "security.origin", "security.key"
SCHEMA = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("at_ms", pa.int64(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("principal", pa.string(), nullable=False),
        pa.field("peer", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("request", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class SecurityEvent:
    """What happened. `count` is how often, when the same happened several times within one segment."""

    sequence: int
    at_ms: int
    # Such as login, refused, rule added, topic created.
    event: str
    # ok or refused
    outcome: str
    principal: str
    peer: str
    # What it was about: a topic, a rule, a key.
    target: str
    reason: str
    request: str
    count: int
    broker: str

    def packed(self) -> bytes:
        """The event as a record that `write_events` takes."""
        return json.dumps(asdict(self)).encode()


def write_events(path: Path, records: Sequence[bytes], rows_max: int) -> WrittenSegment:
    """Write packed events as one segment."""
    rows = [json.loads(record) for record in records[:rows_max]]
    table = pa.Table.from_pylist(rows, SCHEMA)
    pq.write_table(table, path, compression="zstd")
    return WrittenSegment(len(rows), rows[0]["sequence"], rows[-1]["sequence"], len(rows))


def read_events(directory: Path) -> Iterator[SecurityEvent]:
    """Every event in a directory, in order; a segment that cannot be read is left to the verification."""
    names = [field.name for field in fields(SecurityEvent)]
    for name in sorted(named_files(directory, ".parquet")):
        try:
            table = pq.read_table(directory / name.segment)
        except (pa.ArrowException, OSError):
            continue
        if set(names) <= set(table.schema.names):
            for row in table.select(names).to_pylist():
                yield SecurityEvent(**row)
