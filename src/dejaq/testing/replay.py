"""The journal read as a story: its events one by one, and the messages that must stand when it is true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from dejaq.domain.ids import generated_ids
from dejaq.domain.large import content_of, size_of
from dejaq.domain.message import Message
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Storage

KINDS: dict[int, str] = {
    number: name.removeprefix("EVENT_").lower() for name, number in journal.EventKind.items() if number
}
_STEP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one message; None where the record says nothing."""

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
class Told:
    """A message as the journal tells of it."""

    id: str
    ts: int
    owner: str
    priority: int
    attempts: int
    body_bytes: int
    body_crc: int
    lock_consumer: str = ""
    lease: int = 0
    # The place it had before its lease.
    due: int = field(default=0, compare=False)


def described(messages: Iterable[Message], now: int) -> dict[str, Told]:
    """Messages of a store as `Replay.standing` tells of them."""
    return {
        message.id: Told(
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
    """Every record behind a sequence."""
    records: list[journal.JournalRecord] = []
    while True:
        found = await storage.journal(records[-1].sequence if records else after, _STEP_BYTES)
        if not found:
            return records
        records += map(journal.JournalRecord.FromString, found)


def events_of(record: journal.JournalRecord) -> Iterator[Event]:
    """The events of a record, in order."""
    for group in record.events:
        ids = _ids(group)
        for row, message_id in enumerate(ids):
            yield Event(
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
    """The messages that stand after the events so far, by topic and id; raises AssertionError at a false step."""

    messages: dict[tuple[str, str], Told] = field(default_factory=dict)

    def follow(self, events: Iterable[Event]) -> None:
        """Take the next events."""
        for event in events:
            key = (event.topic, event.id)
            if event.kind == "topic_dropped":
                self.messages = {key: told for key, told in self.messages.items() if key[0] != event.topic}
                continue
            if event.kind == "created":
                assert key not in self.messages, f"{event.id} is created a second time"
                self.messages[key] = _created(event)
                continue
            assert key in self.messages, f"{event.id} is {event.kind} but is not there"
            changed = _STEPS[event.kind](self.messages[key], event)
            if changed is None:
                del self.messages[key]
            else:
                self.messages[key] = changed

    def standing(self, topic: str, now: int) -> dict[str, Told]:
        """The messages of a topic by id; of a lease only what holds at `now`."""
        return {
            message_id: told if told.ts > now else replace(told, lock_consumer="", lease=0)
            for (name, message_id), told in self.messages.items()
            if name == topic
        }


def _created(event: Event) -> Told:
    assert event.ts is not None
    assert event.body_bytes is not None
    assert event.body_crc is not None
    return Told(
        id=event.id,
        ts=event.ts,
        owner=event.actor,
        priority=event.priority or 0,
        attempts=0,
        body_bytes=event.body_bytes,
        body_crc=event.body_crc,
    )


def _leased(told: Told, event: Event) -> Told:
    assert not told.lock_consumer, f"{told.id} is leased although it is held"
    assert event.ts == told.ts, f"{told.id} is leased as due at {event.ts} and stands at {told.ts}"
    assert event.expires is not None
    attempts = 1 if event.attempts is None else event.attempts
    assert attempts == told.attempts + 1, f"{told.id} is leased for the {attempts}. time after {told.attempts}"
    return replace(told, ts=event.expires, due=told.ts, lock_consumer=event.actor, lease=event.lease, attempts=attempts)


def _held(told: Told, event: Event) -> Told:
    assert (event.actor, event.lease) == (told.lock_consumer, told.lease), (
        f"{event.kind} by who does not hold {told.id}"
    )
    return told


def _extended(told: Told, event: Event) -> Told:
    assert event.expires is not None
    return replace(_held(told, event), ts=event.expires)


def _released(told: Told, event: Event) -> Told:
    assert event.ts is not None
    return replace(_held(told, event), ts=event.ts, lock_consumer="", lease=0)


def _expired(told: Told, event: Event) -> Told:
    assert event.expires == told.ts, f"{told.id} ends at {told.ts} and not at {event.expires}"
    return replace(_held(told, event), ts=event.ts or told.ts, lock_consumer="", lease=0)


def _dead_lettered(told: Told, event: Event) -> None:
    _held(told, event)


def _recalled(told: Told, event: Event) -> Told:
    return replace(_held(told, event), ts=told.due, lock_consumer="", lease=0, attempts=told.attempts - 1)


def _deleted(told: Told, event: Event) -> None:
    _held(told, event)


def _changed(told: Told, event: Event) -> Told:
    assert event.actor == told.owner, f"{told.id} is {event.kind} by {event.actor}"
    assert not told.lock_consumer, f"{told.id} is {event.kind} while it is held"
    assert event.ts is not None
    return replace(
        told,
        ts=event.ts,
        priority=told.priority if event.priority is None else event.priority,
        body_bytes=told.body_bytes if event.body_bytes is None else event.body_bytes,
        body_crc=told.body_crc if event.body_crc is None else event.body_crc,
    )


def _cancelled(told: Told, event: Event) -> None:
    assert event.actor == told.owner, f"{told.id} is cancelled by {event.actor}"
    assert not told.lock_consumer, f"{told.id} is cancelled while it is held"


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
