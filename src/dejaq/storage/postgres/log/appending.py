"""Append: the rows of the buckets are locked, the offsets are assigned, and one statement writes everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, Refused, error_of
from dejaq.storage.log.base import NAMES_PER_SESSION, Append, Appended, LogName, check_bucket
from dejaq.storage.log.prepared import NEVER_MS
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.connection.failures import Overtaken
from dejaq.storage.postgres.operations.change import places_of

# The length of a window that a prepared transaction keeps open.
PREPARED_MS = -1


@dataclass(frozen=True, slots=True)
class TimedAppend:
    """A batch to append, and the time of its call. The batch of a prepared transaction has a window without an end."""

    batch: Append
    now: int


@dataclass(slots=True)
class _End:
    """The end of a bucket."""

    next: int
    last_ts: int
    size: int = 0


@dataclass(slots=True)
class _Rows:
    """The columns of the rows to write, and the answers."""

    ends: dict[int, _End]
    batches: list[tuple[int, int, int, int, int, bytes]] = field(default_factory=list)
    windows: list[tuple[int, int, int, int]] = field(default_factory=list)
    names: list[tuple[bytes, int, int, int, int, int]] = field(default_factory=list)
    # (place, base, count, timestamp) by name, of before and of this call.
    known: dict[LogName, tuple[int, int, int, int]] = field(default_factory=dict)
    highest: dict[bytes, int] = field(default_factory=dict)


def missing_log(topic: Topic) -> DejaqError:
    """The error for a log that the store does not have."""
    return error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} does not exist or is being deleted")


async def append(link: PostgresLink, topic: Topic, appends: Sequence[TimedAppend]) -> list[Appended | Refused]:
    """Append batches in a transaction; each is accepted or refused by itself."""
    answers: list[Appended | Refused | None] = [_refusal(topic, one.batch) for one in appends]
    buckets = {one.batch.bucket for one, answer in zip(appends, answers, strict=True) if answer is None}
    places = places_of(topic, sorted(buckets))
    rows = _Rows(await lock_buckets(link, topic, places))
    await _find_names(link, topic, [one.batch.name for one in appends if one.batch.name is not None], rows)
    for place, one in enumerate(appends):
        if answers[place] is None:
            try:
                answers[place] = _append(topic, one, rows)
            except Refused as refusal:
                answers[place] = refusal
    if rows.batches:
        await _write(link, topic, rows, max(one.now for one in appends))
    return [answer for answer in answers if answer is not None]


def _refusal(topic: Topic, batch: Append) -> Refused | None:
    try:
        check_bucket(topic, batch.bucket)
    except Refused as refusal:
        return refusal
    return None


async def lock_buckets(link: PostgresLink, topic: Topic, places: Sequence[int]) -> dict[int, _End]:
    """Lock the rows of buckets, and make those that are missing; raises TOPIC_NOT_FOUND."""
    found = await link.fetch("lock_log_buckets", places, topic.number)
    if len(found) < len(places) or not places:
        if await link.value("lock_log_topic", topic.number) in (None, "deleting"):
            raise missing_log(topic)
        await link.execute("make_log_buckets", places)
        found = await link.fetch("lock_log_buckets", places, topic.number)
    if any(row["state"] in (None, "deleting") for row in found):
        raise missing_log(topic)
    return {row["place"]: _End(row["next"], row["last_ts"]) for row in found}


async def _find_names(link: PostgresLink, topic: Topic, names: Sequence[LogName], rows: _Rows) -> None:
    """Read the batches that have these names. The locks of the buckets order this after an append of the same batch."""
    if not names:
        return
    columns = [one.session for one in names], [one.sequence for one in names]
    for row in await link.fetch("known_log_names", topic.number, *columns):
        name = names[row["asked"] - 1]
        if row["base"] is not None:
            rows.known[name] = row["place"], row["base"], row["count"], row["ts"]
        if row["last"] is not None:
            rows.highest[name.session] = row["last"]


def _append(topic: Topic, one: TimedAppend, rows: _Rows) -> Appended:
    batch, name = one.batch, one.batch.name
    (place,) = places_of(topic, [batch.bucket])
    if name is not None:
        known = rows.known.get(name)
        if known is not None and (known[0], known[2]) == (place, batch.count):
            return Appended(known[1], known[3], repeated=True)
        if known is not None or name.sequence <= rows.highest.get(name.session, 0) - NAMES_PER_SESSION:
            raise error_of(Code.BATCH_NAME_TAKEN)
    if batch.until is not None and one.now > batch.until:
        raise error_of(Code.EXPIRED)
    end = rows.ends[place]
    base, ts, size = end.next, max(end.last_ts, one.now), len(batch.records)
    rows.batches.append((place, base, batch.count, ts, size, batch.records))
    end.next, end.last_ts, end.size = base + batch.count, ts, end.size + size
    if batch.prepared:
        rows.windows.append((place, base, NEVER_MS, PREPARED_MS))
    elif batch.rollback_ms:
        rows.windows.append((place, base, one.now + batch.rollback_ms, batch.rollback_ms))
    if name is not None:
        rows.known[name] = place, base, batch.count, ts
        rows.names.append((name.session, name.sequence, place, base, batch.count, ts))
        rows.highest[name.session] = max(rows.highest.get(name.session, 0), name.sequence)
    return Appended(base, ts)


async def _write(link: PostgresLink, topic: Topic, rows: _Rows, now: int) -> None:
    link.changes += 1
    sessions = {name[0]: rows.highest[name[0]] for name in rows.names}
    changed = {batch[0] for batch in rows.batches}
    ends = [(place, end.next, end.last_ts, end.size) for place, end in rows.ends.items() if place in changed]
    try:
        await link.execute(
            "append_log",
            *_columns(rows.batches, 6),
            *_columns(rows.windows, 4),
            topic.number,
            *_columns(rows.names, 6),
            list(sessions),
            list(sessions.values()),
            now,
            NAMES_PER_SESSION,
            link.writer,
            link.changes,
            *_columns(ends, 4),
        )
    except asyncpg.UniqueViolationError:
        raise Overtaken("a batch of the same name was appended to another bucket meanwhile") from None


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
