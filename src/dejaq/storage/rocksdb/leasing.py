"""Lease: what is due leaves its runs as slices of columns."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from operator import itemgetter

from dejaq.domain.batch import IdSpan, LeaseRequest, LeaseSet
from dejaq.domain.body_block import BodySlices
from dejaq.domain.transitions import Standing, decide_lease
from dejaq.errors import Code, error_of
from dejaq.storage.rocksdb import keys, masks, prioritising
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.dying import Dead, bury, split
from dejaq.storage.rocksdb.image import Image
from dejaq.storage.rocksdb.large import LARGE
from dejaq.storage.rocksdb.lease import Lease, Part
from dejaq.storage.rocksdb.merging import merge_thin
from dejaq.storage.rocksdb.prioritising import PriorityImage
from dejaq.storage.rocksdb.run import Key, ranks_of
from dejaq.storage.rocksdb.window import Allowance, Lost


def lease(image: Image, request: LeaseRequest, now: int, batch: Batch, graves: Image | None = None) -> LeaseSet | None:
    """Lease the next due rows of the buckets into `batch`; None when nothing is due.

    Rows that have had all their leases go to `graves`, where there are any.
    """
    if isinstance(image, PriorityImage):
        request = replace(request, until=now)
        _check(now, request, now)
        parts, lost = prioritising.take(image, request, now, batch)
    else:
        parts, lost = _take_due(image, request, now, batch)
    if not parts:
        return None
    dead: list[Dead] = []
    if graves is not None and image.topic.settings.max_attempts:
        parts, dead = split(image, parts, now)
        if dead:
            bury(image, graves, dead, now, batch)
    result = (
        _grant(image, parts, request, now, batch)
        if parts
        else LeaseSet(0, request.consumer, request.expires, spans=[], ts=[], bodies=[])
    )
    result.dead = len(dead)
    # Only now: until the new lease stands, the old one is what keeps its rows from being read again as free.
    for earlier in lost:
        _close_lost(image, earlier, batch)
    if isinstance(image, PriorityImage):
        merge_thin(image, parts, batch)
    return result


def _grant(image: Image, parts: list[Part], request: LeaseRequest, now: int, batch: Batch) -> LeaseSet:
    offset = 0
    for part in parts:
        part.offset = offset
        offset += part.count
        part.lost = None
    terms = {request.expires: masks.full(offset)}
    granted = Lease(image.next_number(), request.consumer, parts, terms, granted=now)
    image.leases.add(granted)
    key = keys.numbered(keys.LEASE, image.topic.number, granted.id)
    batch.put(key, granted.record().SerializeToString())
    result = lease_set(image, granted, request.expires, granted.rows)
    if image.outbox is not None:
        image.outbox.leased(image.topic.name, result)
    return result


def _take_due(image: Image, request: LeaseRequest, now: int, batch: Batch) -> tuple[list[Part], list[Lease]]:
    """Take due rows out of the windows, earliest first across the buckets; and the lost leases that gave some."""
    image.lapse(now, batch)
    until = max(request.until, now)
    whole = image.demand.note(request.buckets, now)
    places = [*request.buckets, keys.SPREAD]
    heads = _heads(image, places, until)
    parts: list[Part] = []
    lost: dict[int, Lease] = {}
    allowance = Allowance(request.rows_max, request.bytes_max, image.sizes)
    while heads and not allowance.spent:
        (ts, _), bucket = heapq.heappop(heads)
        _check(ts, request, now)
        if bucket == keys.SPREAD and not whole:
            image.share_out()
            heads = _heads(image, places, until)
            continue
        source, taken = image.window(bucket).take(heads[0][0] if heads else None, until, allowance)
        if not taken:
            break
        parts += taken
        if isinstance(source, Lost):
            lost[source.lease.id] = source.lease
        head = image.load_due(bucket, until).head()
        if head is not None and head[0] <= until:
            heapq.heappush(heads, (head, bucket))
    if parts and heads:
        _give_back_later(image, parts, heads[0][0])
        if not parts:
            # What was read meanwhile is earlier than all of it; now it is in memory.
            return _take_due(image, request, now, batch)
    return parts, list(lost.values())


def _heads(image: Image, buckets: Sequence[int], until: int) -> list[tuple[Key, int]]:
    """The first row of each bucket that has one up to `until`, as a heap."""
    heads = [(head, bucket) for bucket in buckets if (head := image.load_due(bucket, until).head()) is not None]
    due = [(head, bucket) for head, bucket in heads if head[0] <= until]
    heapq.heapify(due)
    return due


def _give_back_later(image: Image, parts: list[Part], first_left: Key) -> None:
    """Rows leave in slices that may overlap in time; what is later than the first row left behind goes back."""
    for part in parts:
        # Lost rows share one ts, and no row before it was left.
        end = part.start + part.count
        keep = end if part.due else max(part.run.rows_until(first_left), part.start)
        if keep < end:
            image.give_back(part.run, masks.span(keep, end))
            part.count = keep - part.start
            part.attempts = part.attempts and part.attempts[: part.count]
            part.firsts = part.firsts and part.firsts[: part.count]
    parts[:] = [part for part in parts if part.count]


def _check(ts: int, request: LeaseRequest, now: int) -> None:
    """Ask the one decision: rows that a window offers are free or lost, so one answer holds for all of them."""
    code = decide_lease(Standing(ts, "", "", 0), until=request.until, expires=request.expires, now=now)
    if code is not Code.OK:
        raise error_of(code, f"a lease until {request.expires} for what is due by {request.until}, at {now}")


def _close_lost(image: Image, lost: Lease, batch: Batch) -> None:
    if lost.terms:
        image.write_terms(batch, lost)
    else:
        image.end_lease(batch, lost)


def lease_set(image: Image, held: Lease, expires: int, rows: int) -> LeaseSet:
    """Rows of a lease as columns sorted by (ts, priority); `rows` numbers them unless they are 0 to n-1."""
    result = LeaseSet(lease_id=held.id, consumer=held.consumer, expires=expires, spans=[], ts=[], bodies=[])
    pieces = [
        (part, start, end) for part in held.parts for start, end in masks.ranges(part.in_run(rows)) if end > start
    ]
    for part, start, end in pieces:
        record = part.run.record
        result.spans.append(part.run.id_span(start, end))
        result.ts.extend([part.due] * (end - start) if part.due else record.ts[start:end])
        if record.apart:
            result.large = result.large or max(record.apart[start:end]) >= LARGE
    result.bodies = _bodies(image, pieces)
    _add_rare_columns(result, pieces)
    whole = len(result) == held.count
    result.rows = None if whole else _numbers(pieces)
    # Sorting what is sorted costs a tenth of finding its order, and most of it is.
    if len(pieces) > 1 and (result.priorities or result.ts != sorted(result.ts)):
        _sort(result, _numbers(pieces), by_priority=image.topic.by_priority)
    return result


def _bodies(image: Image, pieces: list[tuple[Part, int, int]]) -> Sequence[bytes]:
    """The bodies of the pieces, as they are on the wire where every run has them so."""
    slices = [(part.run.block, start, end) for part, start, end in pieces if part.run.block is not None]
    if len(slices) == len(pieces):
        return BodySlices(slices)
    bodies: list[bytes] = []
    for part, start, end in pieces:
        if part.run.record.apart:
            bodies.extend(image.body(part.run, row) for row in range(start, end))
        else:
            bodies.extend(part.run.bodies[start:end])
    return bodies


def _add_rare_columns(result: LeaseSet, pieces: list[tuple[Part, int, int]]) -> None:
    """Attempts, priorities and headers, where any row has other than 1, 0 and none."""
    if any(part.attempts for part, _, _ in pieces):
        attempts = [
            n
            for part, start, end in pieces
            for n in (part.attempts[start - part.start : end - part.start] if part.attempts else repeat(1, end - start))
        ]
        result.attempts = attempts if attempts.count(1) < len(attempts) else None
    if any(part.run.record.priorities for part, _, _ in pieces):
        priorities = [
            n for part, start, end in pieces for n in part.run.record.priorities[start:end] or repeat(0, end - start)
        ]
        result.priorities = priorities if any(priorities) else None
    if any(part.run.record.headers for part, _, _ in pieces):
        headers = [
            n for part, start, end in pieces for n in part.run.record.headers[start:end] or repeat(b"", end - start)
        ]
        result.headers = headers if any(headers) else None


def _numbers(pieces: list[tuple[Part, int, int]]) -> list[int]:
    """The row of the lease of each row of the pieces."""
    return [
        row
        for part, start, end in pieces
        for row in range(part.offset + start - part.start, part.offset + end - part.start)
    ]


def _sort(result: LeaseSet, numbers: list[int], *, by_priority: bool) -> None:
    """Bring rows of several runs into one order; a single run is in order already."""
    if result.priorities is None:
        order = sorted(range(len(result.ts)), key=result.ts.__getitem__)
    else:
        sort_keys = (
            ranks_of(result.priorities, result.ts)
            if by_priority
            else list(zip(result.ts, result.priorities, strict=True))
        )
        order = sorted(range(len(sort_keys)), key=sort_keys.__getitem__)
    if order == list(range(len(order))):
        return
    pick = itemgetter(*order)
    result.spans = [IdSpan(count=len(order), ids=pick(result.ids()))]
    result.ts = list(pick(result.ts))
    result.bodies = list(pick(result.bodies[:]))
    result.rows = list(pick(numbers))
    result.attempts = result.attempts and list(pick(result.attempts))
    result.priorities = result.priorities and list(pick(result.priorities))
    result.headers = result.headers and list(pick(result.headers))


def leases_of(image: Image, consumer: str, now: int) -> list[LeaseSet]:
    """What is left of a consumer's live leases, one set for each end."""
    return [
        lease_set(image, held, expires, rows)
        for held in image.leases.of_consumer(consumer)
        for expires, rows in sorted(held.terms.items())
        if expires > now
    ]


def next_ts(image: Image, buckets: Sequence[int]) -> int | None:
    """The earliest time at which something may become due in the buckets."""
    if isinstance(image, PriorityImage):
        return image.next_due(buckets)
    times = [] if (end := image.leases.next_end()) is None else [end]
    for bucket in (*buckets, keys.SPREAD):
        window = image.window(bucket)
        head = window.head()
        if head is not None:
            times.append(head[0])
        unloaded = window.next_unloaded(image.database.first_key)
        if unloaded is not None:
            times.append(unloaded)
    return min(times, default=None)
