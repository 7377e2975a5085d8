"""Replays the journal: its events one by one, and the messages that exist according to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from dejaq.domain.bodies.large import content_of, size_of
from dejaq.domain.ids import generated_ids
from dejaq.domain.message import Message
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Storage

KINDS: dict[int, str] = {
    number: name.removeprefix("EVENT_").lower() for name, number in journal.EventKind.items() if number
}
_STEP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReplayedEvent:
    """One event of one message; a field is None when the record does not have it."""

    sequence: int
    at_ms: int
    kind: str
    topic: str
    id: str
    actor: str
    lease: int = 0
    expires: int | None = None
    ts: int | None = None
    priority: int | None = None
    attempts: int | None = None
    body_bytes: int | None = None
    body_crc: int | None = None
    handed_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayedMessage:
    """A message according to the journal."""

    id: str
    ts: int
    owner: str
    priority: int
    attempts: int
    body_bytes: int
    body_crc: int
    lock_consumer: str = ""
    lease: int = 0
    # The time of the message before its lease.
    due: int = field(default=0, compare=False)


def described(messages: Iterable[Message], now: int) -> dict[str, ReplayedMessage]:
    """Messages of a store in the form that `Replay.standing` returns."""
    return {
        message.id: ReplayedMessage(
            id=message.id,
            ts=message.ts,
            owner=message.producer_group,
            priority=message.priority,
            attempts=message.attempts,
            body_bytes=size_of(message.body),
            body_crc=crc32(content_of(message.body)),
            lock_consumer=message.lock_consumer if message.ts > now else "",
            lease=message.version if message.lock_consumer and message.ts > now else 0,
        )
        for message in messages
    }


async def read_journal(storage: Storage, after: int = 0) -> list[journal.JournalRecord]:
    """Every record after a sequence."""
    records: list[journal.JournalRecord] = []
    while True:
        found = await storage.journal(records[-1].sequence if records else after, _STEP_BYTES)
        if not found:
            return records
        records += map(journal.JournalRecord.FromString, found)


def events_of(record: journal.JournalRecord) -> Iterator[ReplayedEvent]:
    """The events of a record, in order."""
    for group in record.events:
        ids = _ids(group)
        for row, message_id in enumerate(ids):
            yield ReplayedEvent(
                sequence=record.sequence,
                at_ms=record.at_ms,
                kind=KINDS[group.kind],
                topic=group.topic,
                id=message_id,
                actor=group.actor,
                lease=group.lease,
                expires=group.expires or None,
                ts=_cell(group.ts, row, len(ids)),
                priority=_cell(group.priorities, row, len(ids)),
                attempts=_cell(group.attempts, row, len(ids)),
                body_bytes=_cell(group.body_bytes, row, len(ids)),
                body_crc=_cell(group.body_crcs, row, len(ids)),
                handed_us=_cell(group.handed_us, row, len(ids)) or None,
            )


def _ids(group: journal.Events) -> list[str]:
    ids: list[str] = []
    listed = iter(group.ids or group.joined.split("\n")) if any(not span.prefix for span in group.spans) else iter(())
    for span in group.spans:
        if span.prefix:
            ids += generated_ids(span.prefix, span.first, span.count)
        else:
            ids += [next(listed) for _ in range(span.count)]
    assert next(listed, None) is None, "a record lists more ids than its spans name"
    return ids


def _cell(column: Sequence[int], row: int, count: int) -> int | None:
    assert len(column) in (0, 1, count), f"a column of {len(column)} for {count} messages"
    return None if not column else column[0] if len(column) == 1 else column[row]


@dataclass(slots=True)
class Replay:
    """The messages that exist after the events so far, by topic and id; raises AssertionError at a wrong event."""

    messages: dict[tuple[str, str], ReplayedMessage] = field(default_factory=dict)

    def follow(self, events: Iterable[ReplayedEvent]) -> None:
        """Apply the next events."""
        for event in events:
            key = (event.topic, event.id)
            if event.kind == "topic_dropped":
                self.messages = {key: known for key, known in self.messages.items() if key[0] != event.topic}
                continue
            if event.kind == "created":
                assert key not in self.messages, f"{event.id} is created a second time"
                self.messages[key] = _created(event)
                continue
            assert key in self.messages, f"{event.id} is {event.kind} but does not exist"
            changed = _STEPS[event.kind](self.messages[key], event)
            if changed is None:
                del self.messages[key]
            else:
                self.messages[key] = changed

    def standing(self, topic: str, now: int) -> dict[str, ReplayedMessage]:
        """The messages of a topic by id; a lease only while it is live at `now`."""
        return {
            message_id: known if known.ts > now else replace(known, lock_consumer="", lease=0)
            for (name, message_id), known in self.messages.items()
            if name == topic
        }


def _created(event: ReplayedEvent) -> ReplayedMessage:
    assert event.ts is not None
    assert event.body_bytes is not None
    assert event.body_crc is not None
    return ReplayedMessage(
        id=event.id,
        ts=event.ts,
        owner=event.actor,
        priority=event.priority or 0,
        attempts=0,
        body_bytes=event.body_bytes,
        body_crc=event.body_crc,
    )


def _leased(known: ReplayedMessage, event: ReplayedEvent) -> ReplayedMessage:
    assert not known.lock_consumer, f"{known.id} is leased although it is held"
    assert event.ts == known.ts, f"{known.id} is leased as due at {event.ts} but is due at {known.ts}"
    assert event.expires is not None
    attempts = 1 if event.attempts is None else event.attempts
    assert attempts == known.attempts + 1, f"{known.id} is leased for the {attempts}. time after {known.attempts}"
    return replace(
        known, ts=event.expires, due=known.ts, lock_consumer=event.actor, lease=event.lease, attempts=attempts
    )


def _held(known: ReplayedMessage, event: ReplayedEvent) -> ReplayedMessage:
    assert (event.actor, event.lease) == (known.lock_consumer, known.lease), (
        f"{event.kind} by a consumer that does not hold {known.id}"
    )
    return known


def _extended(known: ReplayedMessage, event: ReplayedEvent) -> ReplayedMessage:
    assert event.expires is not None
    return replace(_held(known, event), ts=event.expires)


def _released(known: ReplayedMessage, event: ReplayedEvent) -> ReplayedMessage:
    assert event.ts is not None
    return replace(_held(known, event), ts=event.ts, lock_consumer="", lease=0)


def _expired(known: ReplayedMessage, event: ReplayedEvent) -> ReplayedMessage:
    assert event.expires == known.ts, f"{known.id} ends at {known.ts} and not at {event.expires}"
    return replace(_held(known, event), ts=event.ts or known.ts, lock_consumer="", lease=0)


def _dead_lettered(known: ReplayedMessage, event: ReplayedEvent) -> None:
    _held(known, event)


def _recalled(known: ReplayedMessage, event: ReplayedEvent) -> ReplayedMessage:
    return replace(_held(known, event), ts=known.due, lock_consumer="", lease=0, attempts=known.attempts - 1)


def _deleted(known: ReplayedMessage, event: ReplayedEvent) -> None:
    _held(known, event)


def _changed(known: ReplayedMessage, event: ReplayedEvent) -> ReplayedMessage:
    assert event.actor == known.owner, f"{known.id} is {event.kind} by {event.actor}"
    assert not known.lock_consumer, f"{known.id} is {event.kind} while it is held"
    assert event.ts is not None
    return replace(
        known,
        ts=event.ts,
        priority=known.priority if event.priority is None else event.priority,
        body_bytes=known.body_bytes if event.body_bytes is None else event.body_bytes,
        body_crc=known.body_crc if event.body_crc is None else event.body_crc,
    )


def _cancelled(known: ReplayedMessage, event: ReplayedEvent) -> None:
    assert event.actor == known.owner, f"{known.id} is cancelled by {event.actor}"
    assert not known.lock_consumer, f"{known.id} is cancelled while it is held"


_STEPS = {
    "leased": _leased,
    "extended": _extended,
    "released": _released,
    "expired": _expired,
    "recalled": _recalled,
    "deleted": _deleted,
    "dead_lettered": _dead_lettered,
    "moved": _changed,
    "edited": _changed,
    "cancelled": _cancelled,
}
