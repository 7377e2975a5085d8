"""Streaming read of the journal: its segments, in order of their sequences, a partition a segment.

An offset is the last sequence that was read of each origin. Segments never change, so a range of offsets always names
the same events, and a replayed micro-batch has the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from dejaq.journal.names import SegmentName, found_segments
from dejaq.journal.schema import OF_SHARED, SCHEMA
from pyspark_dejaq.options import OptionError, Options

EVENT_SCHEMA = (
    "origin string, sequence bigint, row int, at_ms bigint, kind string, topic string, id string, actor string, "
    "lease bigint, expires_ms bigint, ts_ms bigint, priority int, attempts int, body_bytes int, body_crc bigint, "
    "handed_us bigint, store string, ticket bigint"
)
_ARROW_SCHEMA = pa.schema([pa.field(field.name, field.type) for field in [*SCHEMA, *OF_SHARED]])
# Spark asks for the latest offset every few milliseconds; the directory is listed at most this often.
_LIST_EVERY_S = 0.5

Offsets = dict[str, int]


@dataclass
class SegmentPart(InputPartition):
    """The records behind `after` and up to `last` of one segment."""

    path: str
    after: int
    last: int
    topic: str


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the journal in a directory."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._directory = Path(options.need("journal"))
        if not self._directory.is_dir():
            raise OptionError(f"journal={options.journal!r} is not a directory that the driver can read")
        self._listed_at = 0.0
        # Each with the folder it is in: the directory, or that of a broker in it.
        self._segments: dict[SegmentName, Path] = {}
        self._events: dict[str, int] = {}
        self._available: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802  Spark's name
        """Before the first segment that is there, behind the last, or where the option says."""
        start = self._options.starting_offsets
        return _sorted(start) if isinstance(start, dict) else self._end() if start == "latest" else {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """About as many events as the option allows in one micro-batch."""
        limit = self._options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Read up to what is there now, and no further."""
        self._listed_at = 0.0
        self._available = self._end()

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802  Spark's name
        """What a query could have read."""
        return self._end() or None

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802  Spark's name
        """How far the next micro-batch goes: whole segments, as many as the limit allows and at least one."""
        end = self._available if self._available is not None else self._end()
        if not isinstance(limit, ReadMaxRows):
            return _sorted({**start, **end})
        reached, left = dict(start), limit.max_rows
        for segment in self._between(start, end):
            events = self._count(segment)
            if events > left and reached != start:
                break
            reached[segment.origin] = segment.last
            left -= events
        return _sorted(reached)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """A partition for each segment between the offsets."""
        found = list(self._between(start, end))
        self._check_gaps(start, end, found)
        return [
            SegmentPart(
                str(self._segments[segment] / segment.segment),
                start.get(segment.origin, 0),
                segment.last,
                self._options.subscribe,
            )
            for segment in found
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one segment."""
        assert isinstance(partition, SegmentPart)
        for batch in pq.ParquetFile(partition.path).iter_batches(batch_size=50_000):
            kept = pa.compute.greater(batch["sequence"], partition.after)
            if partition.topic:
                kept = pa.compute.and_(kept, pa.compute.equal(batch["topic"], partition.topic))
            yield _whole(batch.filter(kept)).cast(_ARROW_SCHEMA)

    def _between(self, start: Offsets, end: Offsets) -> Iterator[SegmentName]:
        for segment in self._list():
            if start.get(segment.origin, 0) < segment.last <= end.get(segment.origin, 0):
                yield segment

    def _check_gaps(self, start: Offsets, end: Offsets, found: list[SegmentName]) -> None:
        if not self._options.fail_on_data_loss:
            return
        for origin, last in end.items():
            expected = start.get(origin, 0) + 1
            mine = [segment for segment in found if segment.origin == origin]
            if origin in start and last >= expected and (not mine or mine[0].first > expected):
                raise OptionError(
                    f"the journal of {origin} no longer has the records from {expected} on: retention has dropped "
                    "them; keep more, or set failOnDataLoss to false"
                )

    def _end(self) -> Offsets:
        ends: Offsets = {}
        for segment in self._list():
            ends[segment.origin] = max(ends.get(segment.origin, 0), segment.last)
        return _sorted(ends)

    def _list(self) -> list[SegmentName]:
        if time.monotonic() - self._listed_at >= _LIST_EVERY_S:
            self._segments = dict(sorted(found_segments(self._directory).items()))
            self._listed_at = time.monotonic()
        return list(self._segments)

    def _count(self, segment: SegmentName) -> int:
        if segment.stem not in self._events:
            manifest = json.loads((self._segments[segment] / segment.manifest).read_text())
            self._events[segment.stem] = int(manifest["events"])
        return self._events[segment.stem]


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events with the columns that only stores of several brokers have; any other store is called by its origin."""
    if "store" in batch.schema.names:
        return batch
    tickets = pa.nulls(batch.num_rows, pa.int64())
    return batch.append_column("store", batch["origin"]).append_column("ticket", tickets)


def _sorted(offsets: Offsets) -> Offsets:
    """Spark compares offsets as JSON text, so their order counts."""
    return dict(sorted(offsets.items()))
