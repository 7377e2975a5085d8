"""The journal as the lake reads it: which segments are new, and whether each is what its manifest says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.errors import PipelineError
from dejaq.journal.names import SegmentName, found_segments
from dejaq.journal.schema import OF_CALLERS, OF_SHARED, SCHEMA
from dejaq.journal.segment import file_hash
from dejaq.pipeline.lake.files import local_path
from dejaq.pipeline.lake.ranges import Ranges

# An event's place in its origin's history is one number: its record, then its row in these many bits.
ROW_BITS = 22
SEQUENCE_MAX = 2 ** (63 - ROW_BITS) - 1
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Segment:
    """The events of the records `first` to `last` of one origin."""

    name: SegmentName
    path: Path
    events: int
    sha256: str
    # By the clock of its broker; where that was set back, as the one before.
    written_ms: int = 0

    @property
    def origin(self) -> str:
        """Whose records these are."""
        return self.name.origin


def day_name(number: int) -> str:
    """A day, counted from 1970, as it stands in the name of a partition."""
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()


def journal_directory(text: str) -> Path:
    """The directory a path or a file: address names."""
    path = local_path(text)
    if path is None:
        raise PipelineError(f"the journal {text} is not a directory of this machine; mount it, or copy it here")
    return path


def new_segments(directory: Path, known: dict[str, Ranges]) -> list[Segment]:
    """The segments that count and are not in the lake; those of an origin in order, all about as they were written."""
    try:
        places = found_segments(directory)
        names = sorted(places)
    except OSError as error:
        raise PipelineError(f"the journal {directory} cannot be read: {error.strerror}") from None
    fresh = [name for name in names if not known.get(name.origin, Ranges()).holds(name.first, name.last)]
    for name in fresh:
        if known.get(name.origin, Ranges()).meets(name.first, name.last):
            raise PipelineError(
                f"{name.segment} repeats records that are in the lake already under another cut; "
                "the journal is not the one this lake was built from"
            )
    for earlier, later in pairwise(fresh):
        if earlier.origin == later.origin and later.first <= earlier.last:
            raise PipelineError(f"{earlier.segment} and {later.segment} both have record {later.first}")
    segments = []
    written_ms: dict[str, int] = {}
    for name in fresh:
        segment = _described(places[name], name)
        written_ms[name.origin] = max(written_ms.get(name.origin, 0), segment.written_ms)
        segments.append(replace(segment, written_ms=written_ms[name.origin]))
    return sorted(segments, key=lambda segment: (segment.written_ms, segment.name))


def _described(directory: Path, name: SegmentName) -> Segment:
    path, segment = directory / name.manifest, directory / name.segment
    try:
        manifest = json.loads(path.read_bytes())
        written_ms = int(manifest.get("created_ms", 0))
        return Segment(name, segment, int(manifest["events"]), str(manifest["sha256"]), written_ms)
    except (OSError, ValueError, KeyError, TypeError):
        raise PipelineError(f"{path} is not a manifest; run `dejaq audit verify {directory}`") from None


def check(segment: Segment) -> Checked:
    """Raise PipelineError unless the file is the one that the manifest vouches for, with the columns of a segment."""
    path = segment.path
    if not path.exists():
        raise PipelineError(f"{path} is missing although its manifest is there; run `dejaq audit verify {path.parent}`")
    try:
        found = file_hash(path)
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from None
    if found != segment.sha256:
        raise PipelineError(
            f"{path} is damaged: it is not what its manifest says; run `dejaq audit verify {path.parent}`"
        )
    try:
        meta = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        raise PipelineError(f"{path} is not a Parquet file") from None
    fault = "; ".join(_faults(meta, segment))
    if fault:
        raise PipelineError(f"{path} is not a segment of a journal: {fault}")
    extents = (_extent(meta, name) for name in ("at_ms", "handed_us", "kind", "ticket"))
    return Checked(segment, _store(path, meta) or segment.origin, *extents)


def _store(path: Path, meta: pq.FileMetaData) -> str | None:
    """The store that a segment names; it is one."""
    if "store" not in meta.schema.names or not meta.num_rows:
        return None
    named: str | None = pq.ParquetFile(path).read_row_group(0, columns=["store"])["store"][0].as_py()
    return named


def _extent(meta: pq.FileMetaData, column: str) -> ColumnRange:
    """The least and the greatest value of a column, by the file's own statistics."""
    if column not in meta.schema.names:
        return ColumnRange(known=True)
    place = meta.schema.names.index(column)
    groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    edges: list[Any] = []
    for group in groups:
        statistics = group.column(place).statistics
        if statistics is not None and statistics.has_min_max:
            edges += [statistics.min, statistics.max]
        elif statistics is None or statistics.null_count != group.num_rows:
            return ColumnRange(known=False)
    return ColumnRange(known=True, least=min(edges), greatest=max(edges)) if edges else ColumnRange(known=True)


def _faults(meta: pq.FileMetaData, segment: Segment) -> Iterator[str]:
    schema = meta.schema.to_arrow_schema()
    missing = [name for name in SCHEMA.names if name not in schema.names]
    if missing:
        yield f"it lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    for field in [*SCHEMA, *OF_SHARED, *OF_CALLERS]:
        if field.name in schema.names and schema.field(field.name).type != field.type:
            yield f"its {field.name} is {schema.field(field.name).type} and not {field.type}"
    if meta.num_rows != segment.events:
        yield f"it has {meta.num_rows} events and its manifest says {segment.events}"
    if segment.name.last > SEQUENCE_MAX:
        yield f"its sequences are beyond {SEQUENCE_MAX}"
    if "ticket" in schema.names and (_extent(meta, "ticket").greatest or 0) > SEQUENCE_MAX:
        yield f"its tickets are beyond {SEQUENCE_MAX}"


def batches(segments: Sequence[Segment], known: dict[str, Ranges], events_max: int) -> Iterator[SegmentBatch]:
    """The segments in portions of about `events_max` events; those that come behind later ones first and alone."""
    for is_late in (True, False):
        taken: list[Segment] = []
        events = 0
        for segment in (one for one in segments if _is_late(one, known) is is_late):
            if taken and events + segment.events > events_max:
                yield SegmentBatch(tuple(taken), late=is_late)
                taken, events = [], 0
            taken.append(segment)
            events += segment.events
        if taken:
            yield SegmentBatch(tuple(taken), late=is_late)


def _is_late(segment: Segment, known: dict[str, Ranges]) -> bool:
    return segment.name.first < known.get(segment.origin, Ranges()).end


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Between which values a column lies; none when all are null, not known when the file does not say."""

    known: bool
    least: Any = None
    greatest: Any = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A segment that is what it should be, and what its file says of all its events."""

    segment: Segment
    # The store whose messages it describes.
    store: str
    at_ms: ColumnRange
    handed_us: ColumnRange
    kind: ColumnRange
    # Its place among the changes of all brokers that share the store; none where one broker has it alone.
    ticket: ColumnRange

    @property
    def day(self) -> str | None:
        """The UTC day of every event; None when there are several, or when the file does not say."""
        if self.at_ms.least is None:
            return None
        days = {self.at_ms.least // DAY_MS, self.at_ms.greatest // DAY_MS}
        return day_name(days.pop()) if len(days) == 1 else None


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Segments that enter the lake together."""

    segments: tuple[Segment, ...]
    late: bool

    @property
    def events(self) -> int:
        """How many events they hold."""
        return sum(segment.events for segment in self.segments)


def add_all(known: dict[str, Ranges], segments: Iterable[Segment]) -> dict[str, Ranges]:
    """What is known once the segments are in."""
    after = dict(known)
    for segment in segments:
        after[segment.origin] = after.get(segment.origin, Ranges()).with_range(segment.name.first, segment.name.last)
    return after
