"""Finds the events of one message id: in serialized records, and in the segments of a directory.

A segment has no index of ids, so it is read: the ids and topics of one row group at a time, and the other columns only
of row groups that have an event of the id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dejaq.domain.id_column import SEPARATOR
from dejaq.domain.ids import parse_generated
from dejaq.journal.identifiers import PREFIX_CHARS
from dejaq.journal.names import MANIFEST_SUFFIX, SegmentName, named_files
from dejaq.journal.schema import KINDS, OF_CALLERS, SCHEMA
from dejaq.protocol.v1 import history_pb2
from dejaq.protocol.v1 import journal_pb2 as journal

_DROPPED = KINDS[journal.EVENT_TOPIC_DROPPED]
# The optional columns of an event, and the columns of a record that they come from.
_LISTED = {
    "ts_ms": "ts",
    "priority": "priorities",
    "attempts": "attempts",
    "body_bytes": "body_bytes",
    "body_crc": "body_crcs",
    "handed_us": "handed_us",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The message id whose events are searched, and its topic."""

    topic: str
    id: str

    @property
    def needles(self) -> tuple[bytes, ...]:
        """Bytes of which a record with an event of the id has at least one."""
        whole = self.id.encode()
        generated = parse_generated(self.id) is not None
        return (whole, whole[:PREFIX_CHARS]) if generated else (whole,)


def segments_of(directory: Path) -> dict[str, list[SegmentName]]:
    """The segments of each origin in the directory, the newest first."""
    found: dict[str, list[SegmentName]] = {}
    for name in named_files(directory, MANIFEST_SUFFIX):
        found.setdefault(name.origin, []).append(name)
    return {origin: sorted(names, reverse=True) for origin, names in found.items()}


def events_in_segment(directory: Path, name: SegmentName, wanted: Wanted) -> list[history_pb2.HistoryEvent]:
    """The events of the id in one segment, in order; none when the segment was dropped meanwhile."""
    try:
        file = pq.ParquetFile(directory / name.segment)
    except FileNotFoundError:
        return []
    with file:
        return [event for group in range(file.num_row_groups) for event in _in_group(file, group, wanted)]


def _in_group(file: pq.ParquetFile, group: int, wanted: Wanted) -> Iterator[history_pb2.HistoryEvent]:
    looked = file.read_row_group(group, columns=["id", "topic", "kind"], use_threads=False)
    own = pc.or_(pc.equal(looked["id"], wanted.id), pc.equal(looked["kind"], _DROPPED))
    mask = pc.and_(own, pc.equal(looked["topic"], wanted.topic))
    if not pc.any(mask).as_py():
        return
    rows: pa.Table = file.read_row_group(group, use_threads=False).filter(mask)
    known = {*SCHEMA.names, *OF_CALLERS.names, "ticket"} - {"id", "topic"}
    for row in rows.to_pylist():
        yield history_pb2.HistoryEvent(**{key: value for key, value in row.items() if key in known})


def events_in_records(
    records: Sequence[bytes], origin: str, wanted: Wanted, *, after: int = 0
) -> list[history_pb2.HistoryEvent]:
    """The events of the id in serialized records, in order."""
    needles = (*wanted.needles, wanted.topic.encode())
    found: list[history_pb2.HistoryEvent] = []
    for record in records:
        if any(needle in record for needle in needles):
            parsed = journal.JournalRecord.FromString(record)
            if parsed.sequence > after:
                found += _in_record(parsed, origin, wanted)
    return found


def _in_record(record: journal.JournalRecord, origin: str, wanted: Wanted) -> Iterator[history_pb2.HistoryEvent]:
    first = 0
    for events in record.events:
        count = sum(span.count for span in events.spans)
        if events.topic == wanted.topic:
            for place in _places(events, wanted):
                yield _event(record, origin, events, place, row=first + place)
        first += count


def _places(events: journal.Events, wanted: Wanted) -> Iterator[int]:
    """The positions of the id among the ids of a group of events."""
    if events.kind == journal.EVENT_TOPIC_DROPPED:
        yield 0
        return
    prefix, counter = wanted.id[:PREFIX_CHARS], -1
    if parse_generated(wanted.id) is not None:
        counter = int(wanted.id[PREFIX_CHARS:], 16)
    text = events.joined or SEPARATOR.join(events.ids)
    listed = text.split(SEPARATOR) if wanted.id in text else []
    start = taken = 0
    for span in events.spans:
        if span.prefix:
            if span.prefix == prefix and span.first <= counter < span.first + span.count:
                yield start + counter - span.first
        else:
            for offset, one in enumerate(listed[taken : taken + span.count]):
                if one == wanted.id:
                    yield start + offset
            taken += span.count
        start += span.count


def _event(
    record: journal.JournalRecord, origin: str, events: journal.Events, place: int, *, row: int
) -> history_pb2.HistoryEvent:
    event = history_pb2.HistoryEvent(
        at_ms=record.at_ms,
        kind=KINDS[events.kind],
        actor=events.actor,
        lease=events.lease,
        origin=origin,
        sequence=record.sequence,
        row=row,
        ticket=record.ticket,
        principal=record.principal,
    )
    if events.expires:
        event.expires_ms = events.expires
    for name, field in _LISTED.items():
        values = getattr(events, field)
        if values:
            setattr(event, name, values[0] if len(values) == 1 else values[place])
    if events.kind == journal.EVENT_CREATED and not events.priorities:
        event.priority = 0
    elif events.kind == journal.EVENT_LEASED and not events.attempts:
        event.attempts = 1
    if not event.handed_us:
        event.ClearField("handed_us")
    return event
