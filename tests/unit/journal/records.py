"""Journal records for tests."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.protocol.v1 import journal_pb2 as journal

PREFIX = "0197a0c0d0e0000fdeadbeef"


def created(sequence: int, ids: Sequence[str], *, at_ms: int = 1_700_000_000_000) -> bytes:
    """A record of created messages with natural ids."""
    record = journal.JournalRecord(sequence=sequence, at_ms=at_ms)
    events = record.events.add(kind=journal.EVENT_CREATED, topic="mail", actor="billing")
    events.spans.add(count=len(ids))
    events.ids.extend(ids)
    events.ts.append(at_ms + 5)
    events.body_bytes.append(3)
    events.body_crcs.append(7)
    return bytes(record.SerializeToString())


def deleted(sequence: int, count: int, *, first: int = 0) -> bytes:
    """A record of deleted messages with generated ids."""
    record = journal.JournalRecord(sequence=sequence, at_ms=1_700_000_000_000)
    events = record.events.add(kind=journal.EVENT_DELETED, topic="mail", actor="worker", lease=77)
    events.spans.add(count=count, prefix=PREFIX, first=first)
    return bytes(record.SerializeToString())
