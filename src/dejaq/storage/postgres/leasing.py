"""Lease: what is due changes hands in one conditional statement."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import asyncpg

from dejaq.domain.batch import LeaseRequest, LeaseSet
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import Standing, decide_lease
from dejaq.errors import Code
from dejaq.storage.outbox import EXPIRED
from dejaq.storage.postgres.change import Change, places_of
from dejaq.storage.postgres.database import Link
from dejaq.storage.postgres.keys import spans_of

# How many rows are looked at over all buckets before each bucket's share is bounded.
_LOOK_MAX = 4_000
_SHARE_MIN = 32


def allowed(request: LeaseRequest, now: int) -> bool:
    """Whether anything may be leased under these terms."""
    free = Standing(ts=now, owner="", lock_consumer="", version=0)
    code = decide_lease(free, until=request.until, expires=request.expires, now=now)
    return bool(request.buckets) and code is Code.OK


async def lapse(change: Change) -> None:
    """Tell of each lease that has ended unsettled, once, and forget what nobody can settle any more."""
    topic, now = change.topic.number, change.now
    for lease in await change.link.fetch("ended_leases", topic, now):
        keys: list[str] = lease["ids"]
        rows = await change.link.fetch("rows_of_lease", topic, keys, lease["id"])
        ended = sorted((ts, row) for row, ts in rows if ts <= now)
        if change.outbox is not None:
            for expires, group in groupby(ended, key=itemgetter(0)):
                change.outbox.settled(
                    EXPIRED,
                    change.topic.name,
                    consumer=lease["consumer"],
                    lease_id=lease["id"],
                    spans=spans_of([keys[row] for _, row in group]),
                    expires=expires,
                )
        live = {row: ts for row, ts in rows if ts > now}
        if live:
            left = [key if row in live else "" for row, key in enumerate(keys)]
            await change.link.execute("put_lease", topic, lease["id"], left, len(live), min(live.values()))
        else:
            await change.link.execute("drop_lease", topic, lease["id"])


async def lease(change: Change, request: LeaseRequest) -> tuple[LeaseSet, list[str]] | None:
    """Lease the next due rows of the buckets, with their keys by row number; None when nothing is due."""
    await lapse(change)
    records = await _take(change, request)
    if not records:
        await change.finish()
        return None
    keys = [record["id"] for record in records]
    lease_id = records[0]["version"]
    granted = _lease_set(lease_id, request.consumer, request.expires, records)
    change.left([record["due_ts"] for record in records if record["before"]], held=False)
    change.left([record["due_ts"] for record in records if not record["before"]], held=True)
    change.arrived([request.expires] * len(records), held=True)
    change.entered(lease_id, request.expires, request.consumer, keys)
    if change.outbox is not None:
        change.outbox.leased(change.topic.name, granted)
    await change.finish()
    return granted, keys


async def _take(change: Change, request: LeaseRequest) -> list[asyncpg.Record]:
    """Take rows until there are enough or no more, looking at more of each bucket where one has many."""
    buckets = places_of(change.topic, request.buckets)
    share = request.rows_max
    if share * len(buckets) > _LOOK_MAX:
        share = min(share, max(_SHARE_MIN, 2 * request.rows_max // len(buckets)))
    taken: list[asyncpg.Record] = []
    size, version = 0, None
    while len(taken) < request.rows_max and size < request.bytes_max:
        records = await change.link.fetch(
            "lease",
            change.topic.number,
            buckets,
            max(request.until, change.now),
            change.now,
            share,
            request.rows_max - len(taken),
            request.bytes_max - size,
            request.expires,
            version,
            request.consumer,
        )
        if not records:
            break
        records.sort(key=itemgetter("due_ts", "priority", "id"))
        taken += records
        size += sum([record["size"] for record in records])
        version = records[0]["version"]
        if not records[0]["cut"] or len(records) < records[0]["near"]:
            break
        share = min(4 * share, request.rows_max)
    return taken


def _lease_set(
    lease_id: int, consumer: str, expires: int, records: Sequence[asyncpg.Record], rows: list[int] | None = None
) -> LeaseSet:
    attempts = [record["attempts"] for record in records]
    priorities = [record["priority"] for record in records]
    headers = [record["headers"] for record in records]
    return LeaseSet(
        lease_id=lease_id,
        consumer=consumer,
        expires=expires,
        spans=spans_of([record["id"] for record in records]),
        ts=[record["due_ts"] for record in records],
        bodies=[record["body"] for record in records],
        attempts=attempts if any(count != 1 for count in attempts) else None,
        priorities=priorities if any(priorities) else None,
        headers=headers if any(headers) else None,
        rows=rows,
    )


async def leases_of(link: Link, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
    """What is left of a consumer's live leases, one set for each end that rows of a lease have."""
    records = await link.fetch("leases_of", topic.number, consumer, now)
    sets: list[LeaseSet] = []
    for (lease_id, expires), group in groupby(records, key=itemgetter("lease", "ts")):
        rows = list(group)
        sets.append(_lease_set(lease_id, consumer, expires, rows, [record["row"] for record in rows]))
    return sets


async def next_ts(link: Link, topic: Topic, buckets: Sequence[int]) -> int | None:
    """The earliest place of any message in the buckets."""
    first: int | None = await link.value("next_ts", places_of(topic, buckets))
    return first
