"""Gathers the events of a change and writes them with it: one columnar record per change."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

# The same CRC-32 as zlib's, computed with the processor's own instructions: a body of 1 KB takes 0.05 us instead of
# 0.7.
from isal.isal_zlib import crc32

from dejaq.domain.batch import CreateBatch, IdSpan, LeaseSet, RowRange
from dejaq.domain.bodies.body_block import BodyBlock, varint
from dejaq.domain.bodies.large import content_of, size_of
from dejaq.domain.context import Principal
from dejaq.domain.id_column import SEPARATOR, joined
from dejaq.protocol.v1 import journal_pb2 as journal

CREATED, LEASED = journal.EVENT_CREATED, journal.EVENT_LEASED
EXTENDED, RELEASED, DELETED = journal.EVENT_EXTENDED, journal.EVENT_RELEASED, journal.EVENT_DELETED
EXPIRED, RECALLED = journal.EVENT_EXPIRED, journal.EVENT_RECALLED
MOVED, EDITED, CANCELLED = journal.EVENT_MOVED, journal.EVENT_EDITED, journal.EVENT_CANCELLED
TOPIC_DROPPED = journal.EVENT_TOPIC_DROPPED
DEAD_LETTERED = journal.EVENT_DEAD_LETTERED

# Check values of bodies as the journal gets them, packed, by the sequence of the record, the first row and the values.
MaskChecks = Callable[[int, int, Iterable[int]], bytes]
_CHECKS_TAG, _CHECK_BYTES = varint(journal.Events.BODY_CRCS_FIELD_NUMBER << 3 | 2), 4
_TS_TAG = varint(journal.Events.TS_FIELD_NUMBER << 3 | 2)


class Outbox:
    """The events of the change in progress."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self._opened = sequence
        self._bytes = 0
        self._record = journal.JournalRecord()
        # How many check values the record has that were masked.
        self._masked = 0

    def stats(self) -> dict[str, float]:
        """The last sequence, the sequence before the first record of this outbox, and the bytes written since then."""
        return {
            "journal_sequence": self.sequence,
            "journal_opened": self._opened,
            "journal_bytes": self._bytes,
        }

    def created(
        self, topic: str, batch: CreateBatch, stretches: Iterable[RowRange], mask: MaskChecks | None = None
    ) -> None:
        """Rows of a batch were created."""
        for start, end in stretches:
            # One group per stretch, so that a column with one value for all rows of a stretch is short.
            events = self._record.events.add(kind=CREATED, topic=topic, actor=batch.owner)
            if batch.ids is not None:
                events.spans.add(count=end - start)
                whole = end - start == len(batch.ids)
                events.joined = joined(batch.ids if whole else batch.ids[start:end])
            else:
                prefix = batch.session.prefix(batch.bucket)
                events.spans.add(count=end - start, prefix=prefix, first=batch.sequence + start)
            bodies = batch.bodies[start:end]
            _put_packed(events, _TS_TAG, "q", _short(batch.ts[start:end]))
            events.body_bytes.extend(_sizes(batch, bodies))
            self._put_checks(events, map(content_of, bodies) if batch.large else bodies, mask)
            if batch.priorities is not None:
                events.priorities.extend(_short(batch.priorities[start:end]))

    def leased(self, topic: str, lease: LeaseSet) -> None:
        """A lease set was created."""
        events = self._record.events.add(
            kind=LEASED, topic=topic, actor=lease.consumer, lease=lease.lease_id, expires=lease.expires
        )
        _put_spans(events, lease.spans)
        events.ts.extend(_short(lease.ts))
        if lease.attempts is not None:
            events.attempts.extend(lease.attempts)

    def settled(
        self,
        kind: journal.EventKind,
        topic: str,
        *,
        consumer: str,
        lease_id: int,
        spans: Iterable[IdSpan],
        expires: int = 0,
        ts: Sequence[int] = (),
        handed_us: Sequence[int] = (),
    ) -> None:
        """Rows of a lease were deleted, extended, released or recalled, or lost by its end."""
        events = self._record.events.add(kind=kind, topic=topic, actor=consumer, lease=lease_id, expires=expires)
        _put_spans(events, spans)
        events.ts.extend(ts)
        events.handed_us.extend(handed_us)

    def changed(
        self,
        kind: journal.EventKind,
        topic: str,
        *,
        owner: str,
        ids: Sequence[str],
        ts: Sequence[int] = (),
        bodies: Sequence[bytes] = (),
        priorities: Sequence[int] = (),
        mask: MaskChecks | None = None,
    ) -> None:
        """Messages were moved, edited or cancelled by their owner, or came from another topic."""
        if not ids:
            return
        events = self._record.events.add(kind=kind, topic=topic, actor=owner)
        events.spans.add(count=len(ids))
        events.joined = joined(ids)
        events.ts.extend(ts)
        events.body_bytes.extend(map(size_of, bodies))
        self._put_checks(events, map(content_of, bodies), mask)
        events.priorities.extend(priorities)

    def _put_checks(self, events: journal.Events, bodies: Iterable[bytes], mask: MaskChecks | None) -> None:
        if mask is None:
            _put_packed(events, _CHECKS_TAG, "I", map(crc32, bodies))
            return
        packed = mask(self.sequence + 1, self._masked, map(crc32, bodies))
        self._masked += len(packed) // _CHECK_BYTES
        events.MergeFromString(_CHECKS_TAG + varint(len(packed)) + packed)

    def dropped(self, topic: str) -> None:
        """A topic was deleted with every message it still had: one event, whose id is empty, for all of them."""
        events = self._record.events.add(kind=TOPIC_DROPPED, topic=topic)
        events.spans.add(count=1)

    def take(self, at_ms: int, principal: Principal) -> tuple[int, bytes] | None:
        """The record of the change that `principal` made, and its sequence; None when nothing happened."""
        if not self._record.events:
            return None
        self.sequence += 1
        self._record.sequence = self.sequence
        self._record.at_ms = at_ms
        if name := principal.recorded:
            self._record.principal = name
        packed = self._record.SerializeToString()
        self._bytes += len(packed)
        self._record, self._masked = journal.JournalRecord(), 0
        return self.sequence, packed


def _put_packed(events: journal.Events, tag: bytes, kind: str, numbers: Iterable[int]) -> None:
    """Add a column of numbers of a fixed size, as it is encoded; numbers that are such an array are only copied."""
    column = numbers if isinstance(numbers, array) else array(kind, numbers)
    if not column:
        return
    packed = column.tobytes()
    events.MergeFromString(tag + varint(len(packed)) + packed)


def _sizes(batch: CreateBatch, bodies: Sequence[bytes]) -> Sequence[int]:
    if isinstance(batch.bodies, BodyBlock) and batch.bodies.size is not None and not batch.large:
        return batch.bodies.sizes[:1]
    return _short(list(map(size_of if batch.large else len, bodies)))


def _short(column: Sequence[int]) -> Sequence[int]:
    """The column, or one number when all values are the same."""
    first = column[0]
    # In nearly every column with different values the first and the last value differ, so the whole column is rarely
    # read.
    return column[:1] if column[-1] == first and list(column).count(first) == len(column) else column


def _put_spans(events: journal.Events, spans: Iterable[IdSpan]) -> None:
    texts: list[str] = []
    for span in spans:
        if span.ids is not None:
            events.spans.add(count=span.count)
            texts.append(joined(span.ids))
        else:
            events.spans.add(count=span.count, prefix=span.prefix, first=span.first)
    events.joined = SEPARATOR.join(texts)
