"""Looking at the logs of a data directory from outside: whether their segments are whole and their offsets dense."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dejaq.errors import DejaqError
from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.commit_log.operations import Operations
from dejaq.storage.commit_log.recovery import Recovery
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.overlay import Generation, Overlay, merged
from dejaq.storage.rocksdb.log import records
from dejaq.storage.segments.block import SegmentHeader
from dejaq.storage.segments.files import SegmentFiles
from dejaq.storage.segments.writer import LogSegment, segment_name

# The keys and values of a table of the database.
Scan = Callable[[bytes], Iterator[tuple[bytes, bytes]]]
# A bucket: its topic and its number.
Place = tuple[int, int]
_TABLES = (keys.LOG_SEGMENT, keys.LOG_BATCH, keys.LOG_BUCKET, keys.TOPIC)


@dataclass(slots=True)
class SegmentReport:
    """What the segments of a store have, and what is wrong with them and with the offsets of the logs."""

    files: int = 0
    blocks: int = 0
    bytes: int = 0
    # Files that no record names; a start removes them.
    unused: int = 0
    problems: list[str] = field(default_factory=list)


def summary(scan: Scan) -> dict[str, Any]:
    """The segments of each log, by the number of its topic, as of the tables of the database."""
    files: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    contents: Counter[int] = Counter()
    for key, value in scan(keys.LOG_SEGMENT):
        topic, segment = keys.topic_of(key), records.unpack_segment(key, value)
        files[topic] += 1
        stored[topic] += segment.file_bytes
        contents[topic] += segment.bytes
    return {
        "files": sum(files.values()),
        "bytes": sum(stored.values()),
        "topics": {
            str(topic): {"files": files[topic], "bytes": stored[topic], "content_bytes": contents[topic]}
            for topic in sorted(files)
        },
    }


def verify(
    scan: Scan, segments_path: Path, log_path: Path, *, applied: int, on_bytes: Callable[[int], None]
) -> SegmentReport:
    """Read every segment. The changes behind `applied` are read from the commit log, as a start does."""
    report = SegmentReport()
    overlay = _pending(log_path, applied)
    segments: dict[Place, list[LogSegment]] = {}
    for key, value in _merged(scan, overlay, keys.LOG_SEGMENT):
        segments.setdefault(_place(key), []).append(records.unpack_segment(key, value))
    files = SegmentFiles(DiskFiles(segments_path, open_max=16)) if segments_path.is_dir() else None
    named = {one.number for listed in segments.values() for one in listed}
    try:
        for place, listed in segments.items():
            for one in listed:
                report.files += 1
                if files is None:
                    report.problems.append(f"the segment {segment_name(one.number)} of a log is lost")
                else:
                    _verify_segment(files, place, one, report, on_bytes)
        report.unused = len(files.numbers() - named) if files is not None else 0
    finally:
        if files is not None:
            files.close()
    _verify_offsets(scan, overlay, segments, report)
    return report


def _pending(log_path: Path, applied: int) -> Overlay:
    """The changes of logs that the tables of the database do not have yet."""
    found = Generation()
    files = DiskFiles(log_path)
    # What is damaged is reported by the check of the commit log.
    with suppress(DejaqError, ValueError):
        for record in Recovery(files, applied=applied, watermark=0).records():
            some = Operations()
            for kind, key, value in Operations.decode(record.operations):
                if key.startswith(_TABLES):
                    some.kinds.append(kind)
                    some.parts += (key, value)
            found.add(some)
    files.close()
    return Overlay([found])


def _merged(scan: Scan, overlay: Overlay, table: bytes) -> Iterator[tuple[bytes, bytes]]:
    return merged(scan(table), overlay.between(table, keys.after(table)), overlay.ranges)


def _place(key: bytes) -> Place:
    return keys.topic_of(key), int.from_bytes(key[keys.BUCKET_BYTES], "big")


def _verify_segment(
    files: SegmentFiles, place: Place, segment: LogSegment, report: SegmentReport, on_bytes: Callable[[int], None]
) -> None:
    name = segment_name(segment.number)
    try:
        header = files.header(segment)
        if header is None or header[:3] != SegmentHeader(segment.number, *place, segment.base)[:3]:
            report.problems.append(f"{name} is not the segment {segment.number} of bucket {place[1]} of log {place[0]}")
        at, ts, rows, size = segment.base, 0, 0, 0
        for entry in files.index(segment):
            for batch in files.block(segment, entry, keep=False):
                if batch.base < at or (batch.base > at and not segment.clean) or batch.ts < ts:
                    report.problems.append(f"{name} has a batch at {batch.base} and {batch.ts} behind {at} and {ts}")
                at, ts, rows, size = batch.end, batch.ts, rows + 1, size + len(batch.records)
            report.blocks += 1
            on_bytes(entry.length)
        report.bytes += segment.file_bytes
        if (
            (rows, size) != (segment.rows, segment.bytes)
            or at > segment.end
            or (at < segment.end and not segment.clean)
        ):
            report.problems.append(
                f"{name} has {rows} batches of {size} bytes up to offset {at}, not those of {segment}"
            )
    except DejaqError as error:
        report.problems.append(f"{error.message}: {error.details}" if error.details else error.message)


def _verify_offsets(
    scan: Scan, overlay: Overlay, segments: dict[Place, list[LogSegment]], report: SegmentReport
) -> None:
    """The segments of a bucket follow each other, the other batches follow them, and nothing is missing at the end."""
    ends: dict[Place, int] = {}
    known = {_place(key): records.unpack_bucket(value) for key, value in _merged(scan, overlay, keys.LOG_BUCKET)}
    for place, (_, start, *_) in known.items():
        listed = segments.get(place, ())
        ends[place] = listed[-1].end if listed else start
        for one, other in pairwise(listed):
            if one.end != other.base:
                report.problems.append(f"{_named(place)} has no segment from offset {one.end} to {other.base}")
        if listed and not listed[0].base <= start <= listed[0].end:
            report.problems.append(f"{_named(place)} begins at offset {start}, its segments at {listed[0].base}")
    for key, value in _merged(scan, overlay, keys.LOG_BATCH):
        entry, place = records.unpack_batch(key, value), _place(key)
        if ends.get(place) != entry.base:
            report.problems.append(f"{_named(place)} has a batch at offset {entry.base} behind {ends.get(place)}")
        ends[place] = entry.end
    for place, (end, *_) in known.items():
        if ends[place] != end:
            report.problems.append(f"{_named(place)} ends at offset {ends[place]}, not at {end}")


def _named(place: Place) -> str:
    return f"bucket {place[1]} of log {place[0]}"
