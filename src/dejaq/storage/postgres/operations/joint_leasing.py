"""Lease for several consumers of a topic in one change, and find the next times of several sets of buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

import asyncpg

from dejaq.domain.batch import LeaseRequest, LeaseSet
from dejaq.domain.topic import Topic
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.joint_calls import NotTogether
from dejaq.storage.postgres.keys import LeaseKeys
from dejaq.storage.postgres.operations import dead_letters, leasing
from dejaq.storage.postgres.operations.change import TopicTransaction, places_of

# All consumers together get at most so many rows, in equal parts.
ROWS_MAX = 4_000


async def lease_each(
    change: TopicTransaction, requests: Sequence[LeaseRequest]
) -> list[tuple[LeaseSet, LeaseKeys] | None]:
    """Lease for each of these requests, which have no bucket in common; None where nothing is due.

    Raises `NotTogether` when a message must go to the dead-letter topic first.
    """
    limit = await dead_letters.limit_of(change, requests[0])
    await leasing.expire_leases(change)
    rows_max = max(1, ROWS_MAX // len(requests))
    requests = [replace(request, rows_max=min(request.rows_max, rows_max)) for request in requests]
    places = [places_of(change.topic, request.buckets) for request in requests]
    try:
        records = await change.link.fetch(
            "lease_each",
            change.topic.number,
            [max(request.until, change.now) for request in requests],
            [request.expires for request in requests],
            [request.consumer for request in requests],
            [request.rows_max for request in requests],
            [request.bytes_max for request in requests],
            [place for own in places for place in own],
            [number for number, own in enumerate(places, start=1) for _ in own],
            change.now,
            limit or None,
        )
    except asyncpg.InvalidTextRepresentationError:
        raise NotTogether from None
    # A record has the number of its request first, then its sort keys and the id.
    records.sort()
    granted: list[tuple[LeaseSet, LeaseKeys] | None] = [None] * len(requests)
    for number, group in groupby(records, key=itemgetter("number")):
        granted[number - 1] = leasing.granted_of(change, requests[number - 1], list(group))
    return granted


async def next_each(link: PostgresLink, asked: Sequence[tuple[Topic, Sequence[int]]]) -> list[int | None]:
    """The earliest position of any message in each set of buckets."""
    places = [places_of(topic, buckets) for topic, buckets in asked]
    found = await link.fetch(
        "next_each",
        [place for own in places for place in own],
        [number for number, own in enumerate(places) for _ in own],
    )
    times: list[int | None] = [None] * len(asked)
    for number, ts in found:
        times[number] = ts
    return times
