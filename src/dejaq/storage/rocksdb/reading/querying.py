"""Messages by id, and pages of a priority topic."""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from dejaq import limits
from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message, Status
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter, Page
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.reading.browsing import pack_cursor
from dejaq.storage.rocksdb.reading.histograms import TS_END, free_range
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.far.finder import FarRow, find_far
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

_PRIORITY_CURSOR = struct.Struct(">iq")
# A page looks at the runs of so many rows at once.
_STRETCH_ROWS = 256


def get(state: TopicState, ids: Sequence[str]) -> list[Message | None]:
    """The message of each id."""
    far = find_far(state, ids)
    others = [item for item in range(len(ids)) if item not in far]
    messages: list[Message | None] = [None] * len(ids)
    for item, row in far.items():
        messages[item] = _far_message(state, ids[item], row)
    for item, at in zip(others, state.locate([ids[item] for item in others]) if others else (), strict=True):
        messages[item] = message(state, *at) if at is not None else None
    return messages


def _far_message(state: TopicState, message_id: str, row: FarRow) -> Message:
    return Message(
        id=message_id,
        topic=state.topic.name,
        bucket=row.bucket(state.topic.settings.buckets),
        ts=row.ts,
        priority=row.priority,
        body=row.body,
        producer_group=row.run.owner,
        lock_consumer="",
        version=row.version,
        attempts=0,
        headers=decode_headers(row.headers) if row.headers else {},
    )


def message(state: TopicState, run: Run, row: int) -> Message:
    """A row as its owner sees it."""
    standing, holding = state.standing(run, row)
    record, message_id = run.record, run.id_at(row)
    return Message(
        id=message_id,
        topic=state.topic.name,
        bucket=state.bucket_of(run, message_id),
        ts=standing.ts,
        priority=run.sort_key(row)[1],
        body=state.body(run, row),
        producer_group=record.owner,
        lock_consumer=standing.lock_consumer,
        version=standing.version,
        attempts=holding[1].attempts_at(row) if holding else run.attempts_at(row),
        headers=decode_headers(record.headers[row]) if record.headers else {},
    )


def _leased(state: TopicState, where: Filter, start: int, end: int, now: int) -> Iterator[tuple[int, Run, int]]:
    """(ts, run, rows) of the leased rows that match the filter, except for the owner."""
    if where.status is Status.WAITING:
        return
    leases = state.leases if where.consumer is None else state.leases.of_consumer(where.consumer)
    for lease in leases:
        for expires, standing in lease.terms.items():
            status = Status.AVAILABLE if expires <= now else Status.PROCESSING
            if start <= expires < end and where.status in (None, status):
                for part in lease.parts:
                    rows = part.in_run(standing)
                    if rows:
                        yield expires, part.run, rows


def browse_by_priority(state: PriorityTopicState, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
    """One page in order of (priority, ts, id): due rows in their order on disk, the others sorted for each page."""
    after = _unpack_priority(cursor)
    start, end = max(where.start, 0), min(where.end, TS_END)
    owner = state.owners.known(where.owner) if where.owner is not None else None
    if start >= end or (where.owner is not None and owner is None):
        return Page([], None)
    low, high = free_range(where, now)
    rest = [
        (run.sort_key(row)[1], ts, message_id, key, row, run)
        for ts, message_id, key, row, run in (_free_rows(state, low, high, owner, (-1, "")) if low < high else ())
    ]
    rest += [
        (run.sort_key(row)[1], ts, run.id_at(row), run.key, row, run)
        for ts, run, rows in _leased(state, where, start, end, now)
        if owner is None or run.owner == owner
        for row in masks.rows(rows)
    ]
    page = heapq.nsmallest(limit + 1, (entry for entry in rest if entry[:3] > after), key=lambda entry: entry[:5])
    ready = (_ready_rows(state, bucket, low, high, owner, after) for bucket in range(state.topic.settings.buckets))
    found = list(islice(heapq.merge(page, *(ready if low < high else ())), limit + 1))
    messages = [message(state, run, row) for *_, row, run in found[:limit]]
    return Page(messages, _pack_priority(messages[-1]) if len(found) > limit else None)


def _ready_rows(
    state: PriorityTopicState, bucket: int, low: int, high: int, owner: int | None, after: tuple[int, int, str]
) -> Iterator[tuple[int, int, str, bytes, int, Run]]:
    """The rows of a bucket that are in the order of priority, each priority sorted by (ts, id)."""
    waiting: list[tuple[int, int, str, bytes, int, Run]] = []
    for run in state.ready_runs((bucket,), max(after[0], limits.PRIORITY_MIN)):
        if owner is not None and run.owner != owner:
            continue
        # No later run has a priority below the first priority of this run.
        first = run.sort_key(0)[1]
        while waiting and waiting[0][0] < first:
            yield heapq.heappop(waiting)
        for row in masks.rows(run.free & run.rows_between(low, high)):
            entry = (run.sort_key(row)[1], run.record.ts[row], run.id_at(row), run.key, row, run)
            if entry[:3] > after:
                heapq.heappush(waiting, entry)
    while waiting:
        yield heapq.heappop(waiting)


def _pack_priority(last: Message) -> bytes:
    return _PRIORITY_CURSOR.pack(last.priority, last.ts) + last.id.encode()


def _unpack_priority(cursor: bytes | None) -> tuple[int, int, str]:
    if cursor is None:
        return limits.PRIORITY_MIN - 1, -1, ""
    try:
        priority, ts = _PRIORITY_CURSOR.unpack_from(cursor)
        return priority, ts, cursor[_PRIORITY_CURSOR.size :].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that browse returned") from None


def _free_rows(
    state: TopicState, low: int, high: int, owner: int | None, after: tuple[int, str]
) -> Iterator[tuple[int, str, bytes, int, Run]]:
    """Rows without a lease, stretch by stretch, each sorted; of a run only the rows that are needed are read."""
    for bottom, top in _stretches(state, low, high):
        runs = (
            _in_order(run, rows, after)
            for run in state.runs_between(bottom, top, owner)
            if (rows := run.free & run.rows_between(bottom, top))
        )
        yield from heapq.merge(*runs)


def _stretches(state: TopicState, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Stretches of time with about `_STRETCH_ROWS` rows: a slice of a full minute, or many minutes with few rows."""
    start, rows = low, 0
    for first, behind, count in state.minute_counts.between(low, high):
        if count < _STRETCH_ROWS:
            start, rows = (start if rows else max(first, low)), rows + count
            if rows >= _STRETCH_ROWS:
                yield start, min(behind, high)
                rows = 0
            continue
        if rows:
            yield start, first
            rows = 0
        for begin in range(max(first, low // keys.SLICE_MS * keys.SLICE_MS), min(behind, high), keys.SLICE_MS):
            yield max(begin, low), min(begin + keys.SLICE_MS, high)
    if rows:
        yield start, high


def _in_order(run: Run, rows: int, after: tuple[int, str]) -> Iterator[tuple[int, str, bytes, int, Run]]:
    """Rows of one run after a position in the order of (ts, id)."""
    ts, key = run.record.ts, run.key
    if run.generated:
        # Their order is the order of their counters.
        for start, end in masks.ranges(rows):
            first = start
            if ts[start] <= after[0]:
                first += bisect_right(range(start, end), after, key=lambda row: (ts[row], run.id_at(row)))
            yield from ((ts[row], run.id_at(row), key, row, run) for row in range(first, end))
        return
    ids = run.ids
    for at, alike in groupby(masks.rows(rows), key=ts.__getitem__):
        named = [(ids[row], row) for row in alike if (at, ids[row]) > after]
        named.sort()
        yield from ((at, message_id, key, row, run) for message_id, row in named)


def cursor_behind(last: Message, *, by_priority: bool) -> bytes:
    """The cursor of the page after a message."""
    return _pack_priority(last) if by_priority else pack_cursor(last)
