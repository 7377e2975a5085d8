"""Streaming read of the journal: its segments in order of their sequences, with one partition per segment.

An offset is the last sequence that was read of each origin. Segments never change, so a range of offsets always names
the same events, and a replayed micro-batch has the same rows.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from dejaq.journal.extents import OriginExtent, journal_extents
from dejaq.journal.names import SegmentName, found_segments
from dejaq.journal.schema import OF_CALLERS, OF_SHARED, SCHEMA
from pyspark_dejaq.options import OptionError, Options

EVENT_SCHEMA = (
    "origin string, sequence bigint, row int, at_ms bigint, kind string, topic string, id string, actor string, "
    "lease bigint, expires_ms bigint, ts_ms bigint, priority int, attempts int, body_bytes int, body_crc bigint, "
    "handed_us bigint, store string, ticket bigint, principal string"
)
SEGMENT_SCHEMA = "origin string, last bigint, path string"
_ARROW_SEGMENT = pa.schema(
    [pa.field("origin", pa.string()), pa.field("last", pa.int64()), pa.field("path", pa.string())]
)
_ARROW_SCHEMA = pa.schema([pa.field(field.name, field.type) for field in [*SCHEMA, *OF_SHARED, *OF_CALLERS]])
# Spark asks for the latest offset every few milliseconds; the directory is listed at most this often.
_LIST_EVERY_S = 0.5

# How long a running query waits for missing records that are followed by other records: files may be copied in any
# order.
HOLE_PATIENCE_S = 60.0

Offsets = dict[str, int]


@dataclass
class SegmentPart(InputPartition):
    """The records after `after` and up to `last` of one segment."""

    path: str
    after: int
    last: int
    topic: str
    fail_on_data_loss: bool = True


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams the journal in a directory.

    The records of each origin are read without a gap: the reader waits for a segment that is late, and fails when the
    segment does not arrive. Without failOnDataLoss it skips missing records.
    """

    def __init__(self, options: Options, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._directory = Path(options.need("journal"))
        if not self._directory.is_dir():
            raise OptionError(f"journal={options.journal!r} is not a directory that the driver can read")
        self._listed_at: float | None = None
        # Each segment with its folder: the directory itself, or the folder of a broker in it.
        self._folders: dict[SegmentName, Path] = {}
        self._extents: dict[str, OriginExtent] = {}
        self._by_origin: dict[str, list[SegmentName]] = {}
        self._events: dict[SegmentName, int] = {}
        self._available: Offsets | None = None
        # When each gap was first seen.
        self._holes: dict[_Hole, float] = {}

    def initialOffset(self) -> Offsets:  # noqa: N802  Spark's name
        """Before the first segment that exists, after the last, or where the option says."""
        start = self._options.starting_offsets
        return _sorted(start) if isinstance(start, dict) else self._last() if start == "latest" else {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """About as many events as the option allows in one micro-batch."""
        limit = self._options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Read only the records that exist now."""
        self._listed_at = None
        self._available = self._last()

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802  Spark's name
        """The latest offset that a query could read."""
        return self._last() or None

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802  Spark's name
        """The end of the next micro-batch: whole segments, as many as the limit allows and at least one."""
        end = self._available if self._available is not None else self._last()
        if self._options.fail_on_data_loss:
            end = self._without_holes(start, end)
        if not isinstance(limit, ReadMaxRows):
            return _sorted({**start, **end})
        reached, left = dict(start), limit.max_rows
        for segment in self._in_turn(start, end):
            events = self._count(segment)
            if events > left and reached != start:
                break
            reached[segment.origin] = segment.last
            left -= events
        return _sorted(reached)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """One partition per segment between the offsets."""
        # A replayed batch may contain segments that were dropped since.
        self._listed_at = None
        self._list()
        if self._options.fail_on_data_loss:
            for origin, last in end.items():
                hole = self._hole(origin, start, last)
                if hole is not None:
                    raise OptionError(hole.told(self._options.journal))
        return [
            SegmentPart(
                str(self._folders[segment] / segment.segment),
                start.get(segment.origin, 0),
                segment.last,
                self._options.subscribe,
                self._options.fail_on_data_loss,
            )
            for segment in self._in_turn(start, end)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one segment."""
        assert isinstance(partition, SegmentPart)
        try:
            file = pq.ParquetFile(partition.path)
        except FileNotFoundError:
            if not partition.fail_on_data_loss:
                return
            raise OptionError(
                f"the segment {partition.path} is gone, or this executor does not see it; keep the journal longer, or "
                "set failOnDataLoss to false"
            ) from None
        with file:
            for batch in file.iter_batches(batch_size=50_000):
                kept = pa.compute.greater(batch["sequence"], partition.after)
                if partition.topic:
                    kept = pa.compute.and_(kept, pa.compute.equal(batch["topic"], partition.topic))
                yield _whole(batch.filter(kept)).cast(_ARROW_SCHEMA)

    # Gaps

    def _without_holes(self, start: Offsets, end: Offsets) -> Offsets:
        """How far each origin can be read without a gap; raises an error when a gap has lasted for too long."""
        reached: Offsets = {}
        seen: dict[_Hole, float] = {}
        for origin, last in end.items():
            hole = self._hole(origin, start, last)
            if hole is None:
                reached[origin] = last
                continue
            seen[hole] = self._holes.get(hole, self._clock())
            waited = self._clock() - seen[hole]
            if hole.dropped or self._available is not None or waited > HOLE_PATIENCE_S:
                raise OptionError(hole.told(self._options.journal))
            if hole.first > start.get(origin, 0) + 1:
                reached[origin] = hole.first - 1
        self._holes = seen
        return reached

    def _hole(self, origin: str, start: Offsets, last: int) -> _Hole | None:
        """The first records of an origin, after its start, that are missing although later records exist."""
        segments = self._behind(origin, start.get(origin, 0))
        first = self._beginning(segments[0]) if segments else 1
        expected = start[origin] + 1 if origin in start else first
        for segment in segments:
            if expected > last or segment.first > expected:
                break
            expected = segment.last + 1
        if expected > last:
            return None
        found = next((segment.first for segment in segments if segment.first > expected), last + 1)
        kept_from = self._extents.get(origin, OriginExtent()).kept_from
        return _Hole(origin, expected, found - 1, dropped=expected < kept_from)

    def _beginning(self, segment: SegmentName) -> int:
        """The position before the first record of an origin, given its first segment."""
        extent = self._extents.get(segment.origin, OriginExtent())
        begin = max(extent.begin, extent.kept_from)
        # The first segment of a chain names no earlier segment: the journal was given a new directory at that time.
        return segment.first if segment.first <= begin or self._begins_chain(segment) else begin

    def _begins_chain(self, segment: SegmentName) -> bool:
        return segment.first > 1 and not self._manifest(segment).get("previous_sha256")

    # Segments

    def _in_turn(self, start: Offsets, end: Offsets) -> list[SegmentName]:
        """The segments between the offsets: those of one origin in order, and the origins in turn."""
        turns = zip_longest(
            *(
                [segment for segment in self._behind(origin, start.get(origin, 0)) if segment.last <= end[origin]]
                for origin in end
            )
        )
        return [segment for turn in turns for segment in turn if segment is not None]

    def _behind(self, origin: str, after: int) -> list[SegmentName]:
        segments = self._list().get(origin, [])
        return segments[bisect_right(segments, after, key=lambda segment: segment.last) :]

    def _last(self) -> Offsets:
        return _sorted({origin: segments[-1].last for origin, segments in self._list().items()})

    def _list(self) -> dict[str, list[SegmentName]]:
        now = self._clock()
        if self._listed_at is None or now - self._listed_at >= _LIST_EVERY_S:
            # Read the statements first, so that they name no segment that was written after the list was made.
            self._extents = journal_extents(self._directory)
            self._folders = found_segments(self._directory)
            self._by_origin = {}
            for segment in sorted(self._folders):
                self._by_origin.setdefault(segment.origin, []).append(segment)
            self._events = {segment: count for segment, count in self._events.items() if segment in self._folders}
            self._listed_at = now
        return self._by_origin

    def _count(self, segment: SegmentName) -> int:
        if segment not in self._events:
            self._events[segment] = int(self._manifest(segment).get("events", 0))
        return self._events[segment]

    def _manifest(self, segment: SegmentName) -> dict[str, Any]:
        """The manifest of a segment; None when the segment was dropped meanwhile."""
        try:
            found: dict[str, Any] = json.loads((self._folders[segment] / segment.manifest).read_text())
        except FileNotFoundError:
            return {}
        return found


class SegmentStreamReader(JournalStreamReader):
    """Streams the segments themselves, one row for each, for programs that read the files in their own way."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One segment."""
        assert isinstance(partition, SegmentPart)
        origin = Path(partition.path).name.partition("-")[0]
        yield pa.RecordBatch.from_pylist(
            [{"origin": origin, "last": partition.last, "path": partition.path}], schema=_ARROW_SEGMENT
        )


@dataclass(frozen=True, slots=True)
class _Hole:
    """Missing records of an origin that are followed by other records."""

    origin: str
    first: int
    last: int
    dropped: bool

    def told(self, journal: str) -> str:
        why = (
            "retention has dropped them: keep the journal longer"
            if self.dropped
            else "their segments are missing although later ones exist: copy them there"
        )
        return (
            f"the journal {journal} does not have the records {self.first} to {self.last} of {self.origin}; {why}, or "
            "set failOnDataLoss to false to continue without them"
        )


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events, with the columns that only stores of several brokers or later releases write; for other stores the
    origin names the store.
    """
    names = batch.schema.names
    missing = pa.nulls(batch.num_rows)
    if "store" not in names:
        batch = batch.append_column("store", batch["origin"]).append_column("ticket", missing)
    if "principal" not in names:
        batch = batch.append_column("principal", missing)
    return batch.select(_ARROW_SCHEMA.names)


def _sorted(offsets: Offsets) -> Offsets:
    """Spark compares offsets as JSON text, so the order of the keys matters."""
    return dict(sorted(offsets.items()))
