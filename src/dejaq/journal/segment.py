"""One segment: the events of consecutive records as a Parquet file.

The format and the encodings were chosen by measurement (docs/journal.md): deltas for increasing numbers, dictionaries
for names, then zstd.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.journal.expansion import Expansion
from dejaq.journal.schema import NAMES, SCHEMA
from dejaq.limits import BATCH_COUNT_MAX

ROW_GROUP_ROWS = 64 * 1024
SEGMENT_ROWS_MAX = 1_000_000
# The event loop needs the interpreter sooner than after Python's own 5 ms: the length of one piece of work, and of
# the pause after it.
_STRETCH_SECONDS = 0.000_5
_PAUSE_SECONDS = 0.000_05

_DELTAS = ("sequence", "row", "at_ms", "lease", "expires_ms", "ts_ms", "handed_us", "ticket")
ENCODINGS = dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED")
# The columns by which a reader may skip row groups, and by which the lake finds the days that a segment concerns.
STATISTICS = ("sequence", "at_ms", "kind", "handed_us", "ticket")


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """The content of a segment: the number of records, their first and last sequence, and the number of events."""

    records: int
    first: int
    last: int
    events: int


def expansion_of(origin: str, *, store: str = "") -> Expansion:
    """The object that expands segments of an origin: created once, because its memory is reused."""
    return Expansion(origin, rows=ROW_GROUP_ROWS + BATCH_COUNT_MAX, store=store)


def write_segment(
    path: Path, expansion: Expansion, records: Sequence[bytes], *, rows_max: int = SEGMENT_ROWS_MAX
) -> WrittenSegment:
    """Write the events of consecutive records until `rows_max` is reached; a record is never cut."""
    taken = first = last = events = 0
    names = expansion.schema.names
    pause_at = time.perf_counter() + _STRETCH_SECONDS
    with pq.ParquetWriter(
        path,
        expansion.schema,
        compression="zstd",
        use_dictionary=[name for name in (*NAMES, "store", "principal") if name in names],
        column_encoding={name: encoding for name, encoding in ENCODINGS.items() if name in names},
        write_statistics=[name for name in STATISTICS if name in names],
        store_schema=False,
    ) as writer:
        for record in records:
            sequence = expansion.add(record)
            if taken and sequence != last + 1:
                raise ValueError(f"record {sequence} comes after record {last}")
            first, last = first or sequence, sequence
            taken += 1
            if expansion.rows >= ROW_GROUP_ROWS:
                events += _write(writer, expansion)
            if time.perf_counter() >= pause_at:
                time.sleep(_PAUSE_SECONDS)
                pause_at = time.perf_counter() + _STRETCH_SECONDS
            if events + expansion.rows >= rows_max:
                break
        if expansion.rows:
            events += _write(writer, expansion)
    return WrittenSegment(records=taken, first=first, last=last, events=events)


def _write(writer: pq.ParquetWriter, expansion: Expansion) -> int:
    batch = expansion.take()
    writer.write_batch(batch)
    return int(batch.num_rows)


def read_segment(path: Path) -> pa.Table:
    """The events of a segment, with the columns of `SCHEMA`."""
    return pq.read_table(path, schema=SCHEMA)


def file_hash(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
