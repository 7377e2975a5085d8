"""Lease: due rows leave their runs as slices of columns."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from operator import itemgetter

from dejaq.domain.batch import IdSpan, LeaseRequest, LeaseSet
from dejaq.domain.bodies.body_block import BodySlices
from dejaq.domain.transitions import Standing, decide_lease, decide_lease_terms
from dejaq.errors import Code, error_of
from dejaq.storage.rocksdb.bodies.large import LARGE
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.operations.dead_letters import DeadRow, move_exhausted, split
from dejaq.storage.rocksdb.timeline import masks, prioritising
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.merging import merge_thin
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.run import Key, ranks_of
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.rocksdb.timeline.window import ExpiredRows, ReadingAllowance


def lease(
    state: TopicState, request: LeaseRequest, now: int, batch: Batch, target: TopicState | None = None
) -> LeaseSet | None:
    """Lease the next due rows of the buckets into `batch`; None when nothing is due.

    Rows that have had all their attempts move to the dead-letter topic `target`, if there is one.
    """
    if state.topic.by_priority:
        request = replace(request, until=now)
    if decide_lease_terms(until=request.until, expires=request.expires, now=now) is not Code.OK:
        return None
    if isinstance(state, PriorityTopicState):
        parts, expired = prioritising.take(state, request, now, batch)
    else:
        parts, expired = _take_due(state, request, now, batch)
    if not parts:
        return None
    dead: list[DeadRow] = []
    if target is not None and state.topic.settings.max_attempts:
        parts, dead = split(state, parts, now)
        if dead:
            move_exhausted(state, target, dead, now, batch)
    result = (
        _grant(state, parts, request, now, batch)
        if parts
        else LeaseSet(0, request.consumer, request.expires, spans=[], ts=[], bodies=[])
    )
    result.dead_lettered = len(dead)
    # Only now: until the new lease exists, the expired lease prevents that its rows are read as free rows.
    for earlier in expired:
        _close_expired(state, earlier, batch)
    if isinstance(state, PriorityTopicState):
        merge_thin(state, parts, batch)
    return result


def _grant(state: TopicState, parts: list[LeasePart], request: LeaseRequest, now: int, batch: Batch) -> LeaseSet:
    offset = 0
    for part in parts:
        part.offset = offset
        offset += part.count
        part.expired_lease = None
    terms = {request.expires: masks.full(offset)}
    granted = LeaseState(state.next_number(), request.consumer, parts, terms, granted=now)
    state.leases.add(granted)
    key = keys.numbered(keys.LEASE, state.topic.number, granted.id)
    batch.put(key, granted.record().SerializeToString())
    result = lease_set(state, granted, request.expires, granted.rows)
    for part in parts:
        state.runs.recount(part.run)
    if state.outbox is not None:
        state.outbox.leased(state.topic.name, result)
    return result


def _take_due(
    state: TopicState, request: LeaseRequest, now: int, batch: Batch
) -> tuple[list[LeasePart], list[LeaseState]]:
    """Take due rows out of the windows, earliest first over all buckets; returns them and the expired leases of some
    rows.
    """
    state.expire_leases(now, batch)
    until = max(request.until, now)
    whole = state.demand.note(request.buckets, now)
    places = [*request.buckets, keys.SPREAD]
    heads = _heads(state, places, until)
    parts: list[LeasePart] = []
    expired: dict[int, LeaseState] = {}
    allowance = ReadingAllowance(request.rows_max, request.bytes_max, state.sizes)
    while heads and not allowance.spent:
        (ts, _), bucket = heapq.heappop(heads)
        _check(ts, request, now)
        if bucket == keys.SPREAD and not whole:
            state.share_out(until)
            heads = _heads(state, places, until)
            continue
        source, taken = state.window(bucket).take(heads[0][0] if heads else None, until, now, allowance)
        if not taken:
            break
        parts += taken
        if isinstance(source, ExpiredRows):
            expired[source.lease.id] = source.lease
        head = state.load_due(bucket, until, begun=True).head()
        if head is not None and head[0] <= until:
            heapq.heappush(heads, (head, bucket))
    parts = _joined(parts)
    if parts and heads:
        (ts, priority), bucket = heads[0]
        _free_later_rows(state, parts, (ts + state.window(bucket).order_slack(ts, now), priority))
        if not parts:
            # The rows that were read meanwhile are earlier than the selected rows; now they are in memory.
            return _take_due(state, request, now, batch)
    return parts, list(expired.values())


def _heads(state: TopicState, buckets: Sequence[int], until: int) -> list[tuple[Key, int]]:
    """The first row of each bucket that has one up to `until`, as a heap."""
    heads = [(head, bucket) for bucket in buckets if (head := state.load_due(bucket, until).head()) is not None]
    due = [(head, bucket) for head, bucket in heads if head[0] <= until]
    heapq.heapify(due)
    return due


def _joined(parts: list[LeasePart]) -> list[LeasePart]:
    """Rows that follow each other in a run as one part, although rows of other runs lie between them in time."""
    joined: list[LeasePart] = []
    latest: dict[bytes, LeasePart] = {}
    for part in parts:
        if not part.due:
            before = latest.get(part.run.key)
            if before is not None and before.start + before.count == part.start:
                before.count += part.count
                before.attempts = before.attempts and part.attempts and before.attempts + part.attempts
                before.firsts = before.firsts and part.firsts and before.firsts + part.firsts
                continue
            latest[part.run.key] = part
        joined.append(part)
    return joined


def _free_later_rows(state: TopicState, parts: list[LeasePart], first_left: Key) -> None:
    """Rows leave in slices that may overlap in time: rows later than the first remaining row are put back."""
    for part in parts:
        # Rows of expired leases have the same ts, and no earlier row remained.
        end = part.start + part.count
        keep = end if part.due else max(part.run.rows_until(first_left), part.start)
        if keep < end:
            state.free_rows(part.run, masks.span(keep, end))
            part.count = keep - part.start
            part.attempts = part.attempts and part.attempts[: part.count]
            part.firsts = part.firsts and part.firsts[: part.count]
    parts[:] = [part for part in parts if part.count]


def _check(ts: int, request: LeaseRequest, now: int) -> None:
    """Ask for the decision once: no live lease holds the rows that a window offers, so one answer is valid for all."""
    code = decide_lease(Standing(ts, "", "", 0), until=request.until, expires=request.expires, now=now)
    if code is not Code.OK:
        raise error_of(code, f"a lease until {request.expires} for what is due by {request.until}, at {now}")


def _close_expired(state: TopicState, expired: LeaseState, batch: Batch) -> None:
    if expired.terms:
        state.write_terms(batch, expired)
    else:
        state.end_lease(batch, expired)


def lease_set(state: TopicState, held: LeaseState, expires: int, rows: int) -> LeaseSet:
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
    result.bodies = _bodies(state, pieces)
    _add_rare_columns(result, pieces)
    whole = len(result) == held.count
    result.rows = None if whole else _numbers(pieces)
    # Sorting sorted rows costs a tenth of computing their order, and most rows are sorted already.
    if len(pieces) > 1 and (result.priorities or result.ts != sorted(result.ts)):
        _sort(result, _numbers(pieces), by_priority=state.topic.by_priority)
    return result


def _bodies(state: TopicState, pieces: list[tuple[LeasePart, int, int]]) -> Sequence[bytes]:
    """The bodies of the pieces, in the form of the protocol when every run has them in this form."""
    slices = [(part.run.block, start, end) for part, start, end in pieces if part.run.block is not None]
    if len(slices) == len(pieces):
        return BodySlices(slices)
    bodies: list[bytes] = []
    for part, start, end in pieces:
        if part.run.record.apart:
            bodies.extend(state.body(part.run, row) for row in range(start, end))
        else:
            bodies.extend(part.run.bodies[start:end])
    return bodies


def _add_rare_columns(result: LeaseSet, pieces: list[tuple[LeasePart, int, int]]) -> None:
    """Add attempts, priorities and headers when any row has values other than 1, 0 and none."""
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


def _numbers(pieces: list[tuple[LeasePart, int, int]]) -> list[int]:
    """The row number in the lease for each row of the pieces."""
    return [
        row
        for part, start, end in pieces
        for row in range(part.offset + start - part.start, part.offset + end - part.start)
    ]


def _sort(result: LeaseSet, numbers: list[int], *, by_priority: bool) -> None:
    """Sort the rows of several runs; a single run is sorted already."""
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


def leases_of(state: TopicState, consumer: str, now: int) -> list[LeaseSet]:
    """The remaining rows of a consumer's live leases, one set for each end."""
    return [
        lease_set(state, held, expires, rows)
        for held in state.leases.of_consumer(consumer)
        for expires, rows in sorted(held.terms.items())
        if expires > now
    ]


def next_ts(state: TopicState, buckets: Sequence[int]) -> int | None:
    """The earliest time at which something may become due in the buckets."""
    if isinstance(state, PriorityTopicState):
        return state.next_due(buckets)
    times = [] if (end := state.leases.next_end()) is None else [end]
    for bucket in (*buckets, keys.SPREAD):
        window = state.window(bucket)
        head = window.head()
        if head is not None:
            times.append(head[0])
        unloaded = window.next_unloaded(state.database.first_key)
        if unloaded is not None:
            times.append(unloaded)
    return min(times, default=None)
