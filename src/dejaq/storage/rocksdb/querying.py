"""Queries: exact counts from the cells, and messages in order of time."""

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
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.image import Image
from dejaq.storage.rocksdb.prioritising import PriorityImage
from dejaq.storage.rocksdb.run import Run

_CURSOR = struct.Struct(">q")
_PRIORITY_CURSOR = struct.Struct(">iq")
_TS_END = 2**62


def get(image: Image, ids: Sequence[str]) -> list[Message | None]:
    """The message of each id."""
    return [message(image, *at) if at is not None else None for at in image.locate(ids)]


def message(image: Image, run: Run, row: int) -> Message:
    """A row as its owner sees it."""
    standing, holding = image.standing(run, row)
    record, message_id = run.record, run.id_at(row)
    return Message(
        id=message_id,
        topic=image.topic.name,
        bucket=image.bucket_of(run, message_id),
        ts=standing.ts,
        priority=run.sort_key(row)[1],
        body=image.body(run, row),
        producer_group=record.owner,
        lock_consumer=standing.lock_consumer,
        version=standing.version,
        attempts=holding[1].attempts_at(row) if holding else run.attempts_at(row),
        headers=decode_headers(record.headers[row]) if record.headers else {},
    )


def histogram(image: Image, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
    """(start of step, count) of each step that has messages."""
    start, end = max(where.start, 0), min(where.end, _TS_END)
    if start >= end:
        return []
    tally: dict[int, int] = {}
    owner = image.known_owner(where.owner) if where.owner is not None else None
    if where.owner is not None and owner is None:
        return []
    low, high = _free_range(where, start, end, now)
    if low < high:
        # With one producer group in the topic, the cells count for it.
        told_by_runs = owner if image.owner_count > 1 else None
        _tally_free(image, low, high, start, step, told_by_runs, tally)
        if isinstance(image, PriorityImage):
            _tally_ready(image, low, high, start, step, told_by_runs, now, tally)
    for ts, run, rows in _leased(image, where, start, end, now):
        if owner is None or run.owner == owner:
            _add(tally, start, step, ts, rows.bit_count())
    return [(start + index * step, count) for index, count in sorted(tally.items()) if count]


def _free_range(where: Filter, start: int, end: int, now: int) -> tuple[int, int]:
    """The times at which rows in no lease match the filter."""
    if where.consumer is not None or where.status is Status.PROCESSING:
        return 0, 0
    if where.status is Status.AVAILABLE:
        return start, min(end, now + 1)
    if where.status is Status.WAITING:
        return max(start, now + 1), end
    return start, end


def _tally_free(
    image: Image, low: int, high: int, start: int, step: int, owner: int | None, tally: dict[int, int]
) -> None:
    """Count rows by their own ts: whole cells from the counters, cut ones row by row; then take off the leased."""
    for first, behind, count in image.cells.between(low, high):
        inside = low <= first and behind <= high and (first - start) // step == (behind - 1 - start) // step
        if inside and owner is None:
            _add(tally, start, step, first, count)
            continue
        for run in image.runs_between(max(first, low), min(behind, high), owner):
            _tally_rows(run, run.live & run.rows_between(max(first, low), min(behind, high)), start, step, tally, 1)
    for lease in image.leases:
        for part in lease.parts:
            run = part.run
            rows = part.in_run(lease.rows)
            if rows and (owner is None or run.owner == owner):
                _tally_rows(run, rows & run.rows_between(low, high), start, step, tally, -1)


def _tally_ready(
    image: PriorityImage,
    low: int,
    high: int,
    start: int,
    step: int,
    owner: int | None,
    now: int,
    tally: dict[int, int],
) -> None:
    """Count what is in the order of priority: nothing of it is ahead of its time, so that now cuts no cell.

    A cell that is cut elsewhere needs a look at all of it.
    """
    whole: list[tuple[int, int]] = []
    cut: list[tuple[int, int]] = []
    for first, behind, count in image.ready_cells.between(low, high):
        last = min(behind, now + 1) - 1
        if owner is None and low <= first and last < high and (first - start) // step == (last - start) // step:
            whole.append((first, count))
        else:
            cut.append((max(first, low), min(behind, high)))
    for first, count in whole:
        _add(tally, start, step, first, count)
    for run in image.ready_runs(range(image.topic.settings.buckets)) if cut else ():
        if owner is None or run.owner == owner:
            for bottom, top in cut:
                _tally_rows(run, run.live & run.rows_between(bottom, top), start, step, tally, 1)


def _tally_rows(run: Run, rows: int, start: int, step: int, tally: dict[int, int], sign: int) -> None:
    ts = run.record.ts
    for first, end in masks.ranges(rows):
        if not run.merged and (ts[first] - start) // step == (ts[end - 1] - start) // step:
            _add(tally, start, step, ts[first], sign * (end - first))
        else:
            for value in ts[first:end]:
                _add(tally, start, step, value, sign)


def _add(tally: dict[int, int], start: int, step: int, ts: int, count: int) -> None:
    index = (ts - start) // step
    tally[index] = tally.get(index, 0) + count


def _leased(image: Image, where: Filter, start: int, end: int, now: int) -> Iterator[tuple[int, Run, int]]:
    """(ts, run, rows) of the leased rows that match all but the owner."""
    if where.status is Status.WAITING:
        return
    leases = image.leases if where.consumer is None else image.leases.of_consumer(where.consumer)
    for lease in leases:
        for expires, standing in lease.terms.items():
            status = Status.AVAILABLE if expires <= now else Status.PROCESSING
            if start <= expires < end and where.status in (None, status):
                for part in lease.parts:
                    rows = part.in_run(standing)
                    if rows:
                        yield expires, part.run, rows


def browse(image: Image, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
    """One page in order of (ts, id), beginning behind the cursor; of a topic by priority, in that order."""
    if isinstance(image, PriorityImage):
        return _browse_by_priority(image, where, cursor, limit, now)
    after = _unpack(cursor)
    start = max(where.start, 0, after[0])
    end = min(where.end, _TS_END)
    owner = image.known_owner(where.owner) if where.owner is not None else None
    if start >= end or (where.owner is not None and owner is None):
        return Page([], None)
    low, high = _free_range(where, start, end, now)
    free = _free_rows(image, low, high, owner, after) if low < high else iter(())
    leased = sorted(
        (ts, run.id_at(row), run.key, row, run)
        for ts, run, rows in _leased(image, where, start, end, now)
        if owner is None or run.owner == owner
        for row in masks.rows(rows)
    )
    found: list[tuple[int, str, bytes, int, Run]] = []
    for entry in heapq.merge(free, (e for e in leased if (e[0], e[1]) > after)):
        found.append(entry)
        if len(found) > limit:
            break
    messages = [message(image, run, row) for _, _, _, row, run in found[:limit]]
    more = len(found) > limit
    return Page(messages, _pack(messages[-1]) if more else None)


def _browse_by_priority(image: PriorityImage, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
    """One page in order of (priority, ts, id): what is ready as it lies on disk, the rest sorted for each page."""
    after = _unpack_priority(cursor)
    start, end = max(where.start, 0), min(where.end, _TS_END)
    owner = image.known_owner(where.owner) if where.owner is not None else None
    if start >= end or (where.owner is not None and owner is None):
        return Page([], None)
    low, high = _free_range(where, start, end, now)
    rest = [
        (run.sort_key(row)[1], ts, message_id, key, row, run)
        for ts, message_id, key, row, run in (_free_rows(image, low, high, owner, (-1, "")) if low < high else ())
    ]
    rest += [
        (run.sort_key(row)[1], ts, run.id_at(row), run.key, row, run)
        for ts, run, rows in _leased(image, where, start, end, now)
        if owner is None or run.owner == owner
        for row in masks.rows(rows)
    ]
    page = heapq.nsmallest(limit + 1, (entry for entry in rest if entry[:3] > after), key=lambda entry: entry[:5])
    ready = (_ready_rows(image, bucket, low, high, owner, after) for bucket in range(image.topic.settings.buckets))
    found = list(islice(heapq.merge(page, *(ready if low < high else ())), limit + 1))
    messages = [message(image, run, row) for *_, row, run in found[:limit]]
    return Page(messages, _pack_priority(messages[-1]) if len(found) > limit else None)


def _ready_rows(
    image: PriorityImage, bucket: int, low: int, high: int, owner: int | None, after: tuple[int, int, str]
) -> Iterator[tuple[int, int, str, bytes, int, Run]]:
    """The rows of a bucket that are in the order of priority, each priority sorted by (ts, id)."""
    waiting: list[tuple[int, int, str, bytes, int, Run]] = []
    for run in image.ready_runs((bucket,), max(after[0], limits.PRIORITY_MIN)):
        if owner is not None and run.owner != owner:
            continue
        # No run that follows has a priority below this one's first.
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
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that a page gave") from None


def _free_rows(
    image: Image, low: int, high: int, owner: int | None, after: tuple[int, str]
) -> Iterator[tuple[int, str, bytes, int, Run]]:
    """Rows in no lease, slice by slice, each slice in order; of a run no more rows are looked at than are taken."""
    for first, behind, _ in image.cells.between(low, high):
        for begin in range(max(first, low // keys.SLICE_MS * keys.SLICE_MS), min(behind, high), keys.SLICE_MS):
            bottom, top = max(begin, low), min(begin + keys.SLICE_MS, high)
            runs = (
                _in_order(run, rows, after)
                for run in image.runs_between(bottom, top, owner)
                if (rows := run.free & run.rows_between(bottom, top))
            )
            yield from heapq.merge(*runs)


def _in_order(run: Run, rows: int, after: tuple[int, str]) -> Iterator[tuple[int, str, bytes, int, Run]]:
    """Rows of one run behind a place in the order of (ts, id)."""
    ts, key = run.record.ts, run.key
    if run.generated:
        # Their order is that of their counters.
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
    """Where the page begins that follows a message."""
    return _pack_priority(last) if by_priority else _pack(last)


def _pack(last: Message) -> bytes:
    return _CURSOR.pack(last.ts) + last.id.encode()


def _unpack(cursor: bytes | None) -> tuple[int, str]:
    if cursor is None:
        return -1, ""
    try:
        return _CURSOR.unpack_from(cursor)[0], cursor[8:].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise error_of(Code.INVALID_ARGUMENT, "the cursor is not one that a page gave") from None
