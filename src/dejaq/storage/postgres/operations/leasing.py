"""Lease: one conditional statement gives the due rows to a consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import asyncpg

from dejaq.domain.batch import IdSpan, LeaseRequest, LeaseSet
from dejaq.domain.bodies.large import any_reference
from dejaq.domain.dead_letter import EXHAUSTION, exhausted, expiry_delay_ms
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import decide_lease_terms
from dejaq.errors import Code
from dejaq.storage.outbox import DEAD_LETTERED, EXPIRED
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.keys import LeaseKeys, id_of, spans_of
from dejaq.storage.postgres.operations import dead_letters
from dejaq.storage.postgres.operations.change import TopicTransaction, places_of
from dejaq.storage.postgres.queries import SQL

# The columns that a lease returns: first the sort keys, in a priority topic and in another.
_RETURNED = {False: ("due_ts", "priority"), True: ("priority", "due_ts")}


def allowed(request: LeaseRequest, now: int) -> bool:
    """Whether the request may lease any message."""
    code = decide_lease_terms(until=request.until, expires=request.expires, now=now)
    return bool(request.buckets) and code is Code.OK


async def expire_leases(change: TopicTransaction) -> None:
    """Record once in the journal each lease that expired, and remove leases that no consumer can settle any more.

    If the topic has a back-off, the rows become due that long after the end of their lease.
    """
    topic, now = change.topic.number, change.now
    for lease in await change.link.fetch("ended_leases", topic, now):
        keys = LeaseKeys.unpack(lease["keys"]).listed()
        taken = await change.link.fetch("take_ended", topic, keys, lease["id"], now)
        ended = sorted((ts, row, attempts) for row, ts, attempts, _ in taken)
        owners = {keys[row]: owner for row, _, _, owner in taken}
        # Read before the leases end, because their end may give the rows another version.
        rows = await change.link.fetch("rows_of_lease", topic, keys, lease["id"])
        for expires, group in groupby(ended, key=itemgetter(0)):
            await _end(change, lease, expires, {keys[row]: attempts for _, row, attempts in group}, owners)
        over = {row for _, row, _ in ended}
        # A lease that another change settles or extends at this moment is examined again.
        live = {row: max(ts, now + 1) for row, ts in rows if row not in over}
        if live:
            left = LeaseKeys(spans_of([key if row in live else "" for row, key in enumerate(keys)]))
            await change.link.execute("put_lease", topic, lease["id"], left.pack(), len(live), min(live.values()))
        else:
            await change.link.execute("drop_lease", topic, lease["id"])
        change.gathered.noted = True


async def _end(
    change: TopicTransaction, lease: asyncpg.Record, expires: int, attempts: dict[str, int], owners: Mapping[str, str]
) -> None:
    """Rows of a lease ended together; each waits as the back-off says, unless it may not be leased again."""
    settings = change.topic.settings
    waits = {
        key: 0 if exhausted(count, settings.max_attempts) else expiry_delay_ms(settings, id_of(key), count)
        for key, count in attempts.items()
    }
    if change.outbox is not None:
        change.outbox.settled(
            EXPIRED,
            change.topic.name,
            consumer=lease["consumer"],
            lease_id=lease["id"],
            spans=spans_of(list(attempts)),
            expires=expires,
            ts=[expires + wait for wait in waits.values()] if any(waits.values()) else [],
        )
    waiting = {key: expires + wait for key, wait in waits.items() if wait}
    if waiting:
        times = list(waiting.values())
        await change.link.execute("retry_later", change.topic.number, list(waiting), times, lease["id"])
        theirs = [owners[key] for key in waiting]
        change.left([expires] * len(waiting), theirs, held=True)
        change.arrived(times, theirs, held=False)


@dataclass(frozen=True, slots=True)
class Joined:
    """A lease over several shards: its id after a shard has created it, the number of the first row here, and of all
    rows.
    """

    lease_id: int | None
    first: int
    total: int

    def spread(self, spans: Sequence[IdSpan], count: int) -> LeaseKeys:
        """The keys by row number; rows of other shards have none."""
        before, behind = self.first, self.total - self.first - count
        around = [[IdSpan(rows, ids=[""] * rows)] if rows else [] for rows in (before, behind)]
        return LeaseKeys([*around[0], *spans, *around[1]])


async def lease(
    change: TopicTransaction, request: LeaseRequest, joined: Joined | None = None
) -> tuple[LeaseSet, LeaseKeys] | None:
    """Lease the next due rows of the buckets, with their keys by row number; None when nothing is due."""
    limit = await dead_letters.limit_of(change, request)
    await expire_leases(change)
    dead = await _move_exhausted(change, request, limit) if limit else 0
    records = await _take(change, request, limit, request.rows_max - dead, joined)
    if not records:
        return (
            (
                LeaseSet(0, request.consumer, request.expires, spans=[], ts=[], bodies=[], dead_lettered=dead),
                LeaseKeys([]),
            )
            if dead
            else None
        )
    granted, keys = granted_of(change, request, records, joined)
    granted.dead_lettered = dead
    granted.complete = granted.complete and not dead
    return granted, keys


def granted_of(
    change: TopicTransaction, request: LeaseRequest, records: Sequence[asyncpg.Record], joined: Joined | None = None
) -> tuple[LeaseSet, LeaseKeys]:
    """The lease of some rows, which is counted and recorded, and its keys by row number."""
    columns = dict(zip(records[0].keys(), zip(*records, strict=True), strict=True))
    lease_id = columns["version"][0]
    granted = _lease_set(lease_id, request.consumer, request.expires, columns)
    granted.complete = len(records) == columns["found"][0] < request.rows_max
    owners, before = columns["owner"], columns["before"]
    if all(before):
        change.left(granted.ts, owners, held=False)
    else:
        for lost in (True, False):
            rows = [row for row, version in enumerate(before) if (version == 0) is lost]
            change.left([granted.ts[row] for row in rows], [owners[row] for row in rows], held=lost)
    change.arrived([request.expires] * len(records), owners, held=True)
    if joined is None:
        keys = LeaseKeys(granted.spans)
    else:
        granted.rows = list(range(joined.first, joined.first + len(granted)))
        keys = joined.spread(granted.spans, len(granted))
    change.entered(lease_id, request.expires, request.consumer, keys)
    if change.outbox is not None:
        change.outbox.leased(change.topic.name, granted)
    return granted, keys


@lru_cache(maxsize=256)
def over(name: str, buckets: int, by_priority: bool) -> str:
    """A query for the due rows of so many buckets, in the order of the topic."""
    # The places of priority topics are negative; repeating this condition lets the server use their own index.
    order, ranked = ("{0}priority, {0}ts", " AND m.place < 0") if by_priority else ("{0}ts, {0}priority", "")
    arms = [
        f"({SQL['due'].format(number=number, order=order.format('m.'), ranked=ranked)})"
        for number in range(1, buckets + 1)
    ]
    return SQL[name].format(
        due=" UNION ALL ".join(arms),
        order=order.format(""),
        final_order=order.format("m."),
        returned=", ".join(f"m.{column}" for column in _RETURNED[by_priority]),
    )


async def _fetch(
    change: TopicTransaction, name: str, request: LeaseRequest, *arguments: object
) -> list[asyncpg.Record]:
    places = places_of(change.topic, request.buckets)
    until = max(request.until, change.now)
    query = over(name, len(places), change.topic.by_priority)
    records: list[asyncpg.Record] = await change.link.connection.fetch(
        query, change.topic.number, places, until, change.now, *arguments
    )
    return records


async def _move_exhausted(change: TopicTransaction, request: LeaseRequest, limit: int) -> int:
    """Move the next messages that were leased too often to the dead-letter topic; returns their number."""
    assert request.dead_letter is not None
    dead = await _fetch(change, "take_exhausted", request, request.rows_max, limit)
    if dead and change.outbox is not None:
        spans = spans_of([record["id"] for record in dead])
        change.outbox.settled(DEAD_LETTERED, change.topic.name, consumer="", lease_id=0, spans=spans)
    await dead_letters.move(change, request.dead_letter, dead, EXHAUSTION)
    return len(dead)


async def _take(
    change: TopicTransaction, request: LeaseRequest, limit: int, rows_max: int, joined: Joined | None
) -> list[asyncpg.Record]:
    if rows_max <= 0:
        return []
    records = await _fetch(
        change,
        "lease",
        request,
        rows_max,
        request.bytes_max,
        request.expires,
        request.consumer,
        limit or None,
        None if joined is None else joined.lease_id,
    )
    # A record has its sort keys first, then the id.
    records.sort()
    return records


def _lease_set(lease_id: int, consumer: str, expires: int, columns: Mapping[str, Sequence[Any]]) -> LeaseSet:
    attempts, priorities, headers = columns["attempts"], columns["priority"], columns["headers"]
    return LeaseSet(
        lease_id=lease_id,
        consumer=consumer,
        expires=expires,
        spans=spans_of(columns["id"]),
        ts=list(columns["due_ts"]),
        bodies=list(columns["body"]),
        attempts=list(attempts) if attempts.count(1) < len(attempts) else None,
        priorities=list(priorities) if any(priorities) else None,
        headers=list(headers) if any(headers) else None,
        rows=list(columns["row"]) if "row" in columns else None,
        large=any_reference(columns["body"]),
    )


async def leases_of(
    link: PostgresLink, topic: Topic, consumer: str, now: int, found: Callable[[int, LeaseKeys], None]
) -> list[LeaseSet]:
    """The remaining rows of a consumer's live leases, one set for each end that rows of a lease have.

    `found` is called with the id and the keys of each lease.
    """
    sets: list[LeaseSet] = []
    for lease_id, text in await link.fetch("leases_of", topic.number, consumer):
        keys = LeaseKeys.unpack(text)
        records = await link.fetch("live_rows", topic.number, keys.listed(), lease_id, now)
        found(lease_id, keys)
        for expires, group in groupby(records, key=itemgetter("ts")):
            rows = list(group)
            columns = dict(zip(rows[0].keys(), zip(*rows, strict=True), strict=True))
            sets.append(_lease_set(lease_id, consumer, expires, columns))
    return sets


async def next_ts(link: PostgresLink, topic: Topic, buckets: Sequence[int]) -> int | None:
    """The earliest position of any message in the buckets."""
    first: int | None = await link.value("next_ts", places_of(topic, buckets))
    return first
