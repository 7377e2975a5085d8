"""Queries: exact counts from the counts per minute, and messages in the order of time."""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice

from dejaq import limits
from dejaq.domain.headers import decode_headers
from dejaq.domain.message import Message, Status
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter, Page
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.far.finder import FarRow, find_far
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

_CURSOR = struct.Struct(">q")
_PRIORITY_CURSOR = struct.Struct(">iq")
_TS_END = 2**62
# A page looks at the runs of so many rows at once.
_STRETCH_ROWS = 256
# A count divides the first and the last minute of its range. What divides more is read in steps.
_CUTS_READ_AT_ONCE = 2


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


@dataclass(slots=True)
class Tally:
    """Counts by step of time: what the maintained counts know, and the ranges of time whose rows have to be read."""

    start: int
    step: int
    counts: dict[int, int] = field(default_factory=dict)
    unread: list[tuple[int, int]] = field(default_factory=list)
    # Only the rows of this producer group are counted.
    owner: int | None = None

    def add(self, ts: int, count: int) -> None:
        """Count messages at a time."""
        index = (ts - self.start) // self.step
        self.counts[index] = self.counts.get(index, 0) + count

    def steps(self) -> list[tuple[int, int]]:
        """(start of step, count) of each step that has messages."""
        return [(self.start + index * self.step, count) for index, count in sorted(self.counts.items()) if count]


def histogram(state: TopicState, where: Filter, step: int, now: int) -> Tally:
    """Counts by step. Few rows are read here; `unread` says which have to be read from a snapshot of this moment."""
    start, end = max(where.start, 0), min(where.end, _TS_END)
    tally = Tally(start, step)
    if start >= end:
        return tally
    owner = state.owners.known(where.owner) if where.owner is not None else None
    if where.owner is not None and owner is None:
        return tally
    low, high = _free_range(where, start, end, now)
    if low < high:
        # If the topic has one producer group, the counts per minute are the counts of that group.
        tally.owner = owner if len(state.owners) > 1 else None
        _tally_free(state, low, high, tally)
        if isinstance(state, PriorityTopicState):
            _tally_ready(state, low, high, now, tally)
    for ts, run, rows in _leased(state, where, start, end, now):
        if owner is None or run.owner == owner:
            tally.add(ts, rows.bit_count())
    return tally


def _free_range(where: Filter, start: int, end: int, now: int) -> tuple[int, int]:
    """The time ranges in which rows without a lease match the filter."""
    if where.consumer is not None or where.status is Status.PROCESSING:
        return 0, 0
    if where.status is Status.AVAILABLE:
        return start, min(end, now + 1)
    if where.status is Status.WAITING:
        return max(start, now + 1), end
    return start, end


def _tally_free(state: TopicState, low: int, high: int, tally: Tally) -> None:
    """Count rows by their own ts, without leased rows: whole days, hours and minutes, and the others row by row.

    If the rows of one producer group are asked for and others have rows too, every run has to be read.
    """
    start, step, owner = tally.start, tally.step, tally.owner
    cut: list[tuple[int, int]] = [(low, high)] if owner is not None else []
    for first, behind, count in state.minute_counts.steps(low, high, start, step) if owner is None else ():
        if low <= first and behind <= high and (first - start) // step == (behind - 1 - start) // step:
            tally.add(first, count)
        elif cut and cut[-1][1] == first:
            cut[-1] = (cut[-1][0], min(behind, high))
        else:
            cut.append((max(first, low), min(behind, high)))
    if owner is None and len(cut) <= _CUTS_READ_AT_ONCE:
        for bottom, top in cut:
            for run in state.runs_between(bottom, top, owner):
                _tally_rows(run, run.live & run.rows_between(bottom, top), tally, 1)
    else:
        tally.unread = cut
    for lease in state.leases:
        for part in lease.parts:
            run = part.run
            rows = part.in_run(lease.rows)
            if rows and (owner is None or run.owner == owner):
                _tally_rows(run, rows & run.rows_between(low, high), tally, -1)


def _tally_ready(state: PriorityTopicState, low: int, high: int, now: int, tally: Tally) -> None:
    """Count the messages in the order of priority. All of them are due, so the present time divides no minute.

    If a limit divides a minute, all messages of that minute are read.
    """
    start, step, owner = tally.start, tally.step, tally.owner
    whole: list[tuple[int, int]] = []
    cut: list[tuple[int, int]] = []
    for first, behind, count in state.ready_minute_counts.between(low, high):
        last = min(behind, now + 1) - 1
        if owner is None and low <= first and last < high and (first - start) // step == (last - start) // step:
            whole.append((first, count))
        else:
            cut.append((max(first, low), min(behind, high)))
    for first, count in whole:
        tally.add(first, count)
    for run in state.ready_runs(range(state.topic.settings.buckets)) if cut else ():
        if owner is None or run.owner == owner:
            for bottom, top in cut:
                _tally_rows(run, run.live & run.rows_between(bottom, top), tally, 1)


def _tally_rows(run: Run, rows: int, tally: Tally, sign: int) -> None:
    ts, start, step = run.record.ts, tally.start, tally.step
    for first, end in masks.ranges(rows):
        if not run.by_priority and (ts[first] - start) // step == (ts[end - 1] - start) // step:
            tally.add(ts[first], sign * (end - first))
        else:
            for value in ts[first:end]:
                tally.add(value, sign)


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


def browse(state: TopicState, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
    """One page in order of (ts, id), beginning after the cursor; in a priority topic, in order of
    (priority, ts, id).
    """
    if isinstance(state, PriorityTopicState):
        return _browse_by_priority(state, where, cursor, limit, now)
    after = _unpack(cursor)
    start = max(where.start, 0, after[0])
    end = min(where.end, _TS_END)
    owner = state.owners.known(where.owner) if where.owner is not None else None
    if start >= end or (where.owner is not None and owner is None):
        return Page([], None)
    low, high = _free_range(where, start, end, now)
    free = _free_rows(state, low, high, owner, after) if low < high else iter(())
    leased = sorted(
        (ts, run.id_at(row), run.key, row, run)
        for ts, run, rows in _leased(state, where, start, end, now)
        if owner is None or run.owner == owner
        for row in masks.rows(rows)
    )
    found: list[tuple[int, str, bytes, int, Run]] = []
    for entry in heapq.merge(free, (e for e in leased if (e[0], e[1]) > after)):
        found.append(entry)
        if len(found) > limit:
            break
    messages = [message(state, run, row) for _, _, _, row, run in found[:limit]]
    more = len(found) > limit
    return Page(messages, _pack(messages[-1]) if more else None)


def _browse_by_priority(state: PriorityTopicState, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
    """One page in order of (priority, ts, id): due rows in their order on disk, the others sorted for each page."""
    after = _unpack_priority(cursor)
    start, end = max(where.start, 0), min(where.end, _TS_END)
    owner = state.owners.known(where.owner) if where.owner is not None else None
    if start >= end or (where.owner is not None and owner is None):
        return Page([], None)
    low, high = _free_range(where, start, end, now)
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
    return _pack_priority(last) if by_priority else _pack(last)


def _pack(last: Message) -> bytes:
    return _CURSOR.pack(last.ts) + last.id.encode()


def _unpack(cursor: bytes | None) -> tuple[int, str]:
    if cursor is None:
        return -1, ""
    try:
        return _CURSOR.unpack_from(cursor)[0], cursor[8:].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that browse returned") from None
