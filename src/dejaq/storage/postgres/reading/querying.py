"""Get, count, histogram and browse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import asyncpg

from dejaq import limits
from dejaq.domain.headers import decode_headers, encode_headers
from dejaq.domain.message import NONE_UNLEASED, Message, Status, UnleasedMessages
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter, Page
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.keys import MARK, candidates, id_of
from dejaq.storage.postgres.operations.change import bucket_at, places_of
from dejaq.storage.postgres.operations.counting import MINUTE_MS

# A message with at most as many bytes becomes a part of columns; so many others are read at once.
SMALL_BYTES, OTHER_ROWS = 4_096, 64
_TS_BYTES = 8
_PRIORITY_BYTES = 4


def message_of(topic: Topic, record: asyncpg.Record) -> Message:
    """A row as its owner sees it; the queries select these columns in this order."""
    key, place, ts, priority, body, owner, consumer, version, attempts, headers = record
    return Message(
        id=id_of(key),
        topic=topic.name,
        bucket=bucket_at(place),
        ts=ts,
        priority=priority,
        body=body,
        producer_group=owner,
        lock_consumer=consumer,
        version=version,
        attempts=attempts,
        headers=decode_headers(headers) if headers else {},
    )


def bounds(where: Filter, now: int) -> tuple[int, int, bool | None]:
    """The time range of a filter, and whether messages must have a consumer, must not, or may."""
    start, end = max(where.start, 0), min(where.end, limits.TS_MS_MAX + 1)
    if where.status is Status.AVAILABLE:
        return start, min(end, now + 1), None
    if where.status is None:
        return start, end, None
    return max(start, now + 1), end, where.status is Status.PROCESSING


Matching = tuple[bool | None, str | None, str | None, int, int, list[bytes]]


def matching(where: Filter, held: bool | None) -> Matching:
    """The last part of every query for single messages: the conditions on their fields."""
    low, high = where.priorities or (limits.PRIORITY_MIN, limits.PRIORITY_MAX)
    low, high = max(low, limits.PRIORITY_MIN), min(high, limits.PRIORITY_MAX)
    return held, where.owner, where.consumer, low, high, [encode_headers({name: text}) for name, text in where.headers]


async def get(link: PostgresLink, topic: Topic, ids: Sequence[str]) -> list[Message | None]:
    """The messages, in the order of `ids`."""
    records = await link.fetch("get", topic.number, candidates(dict.fromkeys(ids)))
    found = {record["id"]: message_of(topic, record) for record in records}
    return [found.get(one) or found.get(one + MARK) for one in ids]


async def get_columns(
    link: PostgresLink, topic: Topic, ids: Sequence[str]
) -> tuple[UnleasedMessages, list[tuple[int, Message]]]:
    """Messages of few bytes that had no consumer as columns, and the others, each with the position of its id."""
    items = {message_id: item for item, message_id in enumerate(ids)}
    keys = candidates(items)
    (found,) = await link.fetch("get_columns", topic.number, keys, SMALL_BYTES)
    names: Sequence[str] = found["ids"] or ()
    if len(keys) > len(items):
        names = list(map(id_of, names))
    if len(items) < len(ids) or len(set(names)) < len(names):
        # An id that is named twice, or that is a natural one, which comes first, and a generated one.
        return NONE_UNLEASED, await _others(link, topic, ids, range(len(ids)), found["bytes"] or 0)
    bodies: Sequence[bytes | None] = found["bodies"] or ()
    small = [body is not None for body in bodies]

    def column(name: str) -> list[Any]:
        return list(compress(found[name] or (), small))

    priorities, headers = column("priorities"), column("headers")
    unleased = UnleasedMessages(
        items=[items[name] for name in compress(names, small)],
        buckets=list(map(bucket_at, column("places"))),
        ts=column("ts"),
        versions=column("versions"),
        groups=column("owners"),
        bodies=[body for body in bodies if body is not None],
        priorities=[priority or 0 for priority in priorities] if any(priorities) else (),
        headers=[one or b"" for one in headers] if any(headers) else (),
    )
    others = [items[name] for name, is_small in zip(names, small, strict=True) if not is_small]
    if not others:
        return unleased, []
    return unleased, await _others(link, topic, ids, others, found["bytes"] - unleased.size)


async def _others(
    link: PostgresLink, topic: Topic, ids: Sequence[str], items: Sequence[int], size: int
) -> list[tuple[int, Message]]:
    """The messages with the ids at some positions, which have about so many bytes."""
    if size > limits.BATCH_BYTES_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"the messages have {size} bytes; ask for fewer")
    found: list[tuple[int, Message]] = []
    for start in range(0, len(items), OTHER_ROWS):
        part = items[start : start + OTHER_ROWS]
        messages = await get(link, topic, [ids[item] for item in part])
        found += [(item, message) for item, message in zip(part, messages, strict=True) if message is not None]
    return found


async def histogram(link: PostgresLink, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
    """Counts by step: from the counters for whole minutes in one step, otherwise from the rows."""
    start, end, held = bounds(where, now)
    if start >= end:
        return []
    # Beyond the last possible time the length of a step does not matter, and the server's numbers have 64 bits.
    step = min(step, limits.TS_MS_MAX + 1)
    origin = where.start
    places = places_of(topic)
    if where.headers:
        found = await link.fetch("rows_with_headers", places, start, end, *matching(where, held))
        times = [ts for ts, priority, headers in found if where.fits(priority, headers)]
        return _summed((origin + (ts - origin) // step * step, 1) for ts in times)
    if where.needs_row_scan or where.consumer == "":
        records = await link.fetch("rows_by_step", places, origin, step, start, end, *matching(where, held))
        return _summed((record["start"], record["rows"]) for record in records)
    counts: list[tuple[int, int]] = []
    cut: set[int] = set()
    counted = (topic.number, start // MINUTE_MS, (end - 1) // MINUTE_MS, where.owner)
    if where.consumer is not None:
        # Only the rows show their owner, but the counters show in which minutes there are rows.
        found = await link.fetch("minutes", *counted)
        cut = {minute for minute, with_consumer, _ in found if with_consumer and held is not False}
    else:
        # The server adds up the minutes, of which a month has more than the event loop can look at in one step.
        for minute, begin, with_consumer, rows in await link.fetch(
            "counts_by_step", *counted, origin, step, start, end
        ):
            if minute is not None:
                cut.add(minute)
            elif held in (None, with_consumer):
                counts.append((begin, rows))
    if cut:
        starts, ends = _stretches(cut, start, end)
        asked = (places, origin, step, starts, ends, held, where.owner, where.consumer)
        counts += [(record["start"], record["rows"]) for record in await link.fetch("rows_between", *asked)]
    return _summed(counts)


def _stretches(minutes: Iterable[int], start: int, end: int) -> tuple[list[int], list[int]]:
    """The beginnings and ends of minutes within [start, end), with consecutive ones joined."""
    starts: list[int] = []
    ends: list[int] = []
    for minute in sorted(minutes):
        first, upto = max(minute * MINUTE_MS, start), min((minute + 1) * MINUTE_MS, end)
        if ends and ends[-1] == first:
            ends[-1] = upto
        else:
            starts.append(first)
            ends.append(upto)
    return starts, ends


def _summed(counts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    sums: Counter[int] = Counter()
    for start, rows in counts:
        sums[start] += rows
    return sorted((start, rows) for start, rows in sums.items() if rows)


async def browse(link: PostgresLink, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
    """One page, in order of (ts, id), or of (priority, ts, id)."""
    return page_of(topic, where, await rows_behind(link, topic, where, cursor, limit, now), limit)


async def rows_behind(
    link: PostgresLink, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int
) -> list[asyncpg.Record]:
    """The rows of a page, and one more row when there are more."""
    start, end, held = bounds(where, now)
    behind_priority, behind_ts, behind_key = limits.PRIORITY_MIN, -1, ""
    if cursor is not None:
        if topic.by_priority:
            behind_priority = int.from_bytes(cursor[:_PRIORITY_BYTES], "big") + limits.PRIORITY_MIN
            cursor = cursor[_PRIORITY_BYTES:]
        behind_ts, behind_key = _place(cursor)
        start = start if topic.by_priority else max(start, behind_ts)
    if start >= end:
        return []
    return await link.fetch(
        "browse_by_priority" if topic.by_priority else "browse",
        places_of(topic),
        start,
        end,
        *matching(where, held),
        behind_ts,
        behind_key,
        limit + 1,
        *((behind_priority,) if topic.by_priority else ()),
    )


def page_of(topic: Topic, where: Filter, records: Sequence[asyncpg.Record], limit: int) -> Page:
    """A page of rows that are in order."""
    page = records[:limit]
    following = None
    if len(records) > limit and page:
        following = page[-1]["ts"].to_bytes(_TS_BYTES, "big") + page[-1]["id"].encode()
        if topic.by_priority:
            following = (page[-1]["priority"] - limits.PRIORITY_MIN).to_bytes(_PRIORITY_BYTES, "big") + following
    if where.headers:
        page = [record for record in page if where.fits(record["priority"], record["headers"])]
    return Page([message_of(topic, record) for record in page], following)


def _place(cursor: bytes) -> tuple[int, str]:
    ts = int.from_bytes(cursor[:_TS_BYTES], "big")
    try:
        key = cursor[_TS_BYTES:].decode("ascii")
    except UnicodeDecodeError:
        key = ""
    if not key or "\x00" in key or ts > limits.TS_MS_MAX:
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that browse returned")
    return ts, key
