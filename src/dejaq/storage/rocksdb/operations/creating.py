"""Create: a batch of columns becomes runs."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from dejaq.domain.batch import CreateBatch, Outcomes, RowRange
from dejaq.domain.bodies.body_block import BodyBlock, varint
from dejaq.domain.bodies.large import content_of
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import GENERATED_LENGTH
from dejaq.domain.transitions import decide_create
from dejaq.errors import Code
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage import ranges
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.created_ids import RocksCreatedIds
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.timeline.ids.columns import order_of
from dejaq.storage.rocksdb.timeline.index import YOUNG_MS
from dejaq.storage.rocksdb.timeline.levels.picking import Rows, pick, pick_bodies, pick_ids
from dejaq.storage.rocksdb.timeline.levels.scatter import Times, is_scattered, near_and_far
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.priority_cuts import cuts
from dejaq.storage.rocksdb.timeline.run import SMALL_RUN_ROWS, TIMES_TAG, Run, are_few
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


def decide(state: TopicState, incoming: CreateBatch, *, ids_free: bool = False) -> Outcomes:
    """The outcome of each row; nothing is changed yet. With `ids_free` no message is known to have one of the ids."""
    count = len(incoming)
    outcomes = Outcomes(count, dict(incoming.refused))
    for row in state.sequences.rows(incoming, count):
        outcomes.codes.setdefault(row, Code.ALREADY_EXISTS)
    if incoming.ids is not None:
        if not ids_free:
            _check_ids(state, incoming, outcomes)
        if state.created is not None:
            _check_created(state, state.created, incoming.ids, outcomes)
    if incoming.large:
        for row, body in enumerate(incoming.bodies):
            if row not in outcomes.codes and state.body_store.missing(body):
                outcomes.codes[row] = Code.BODY_MISSING
    if incoming.ids is not None and state.created is not None:
        room = state.created.room(state.topic.settings.max_dedup_ids, state.now)
        for row in [row for row in range(count) if row not in outcomes.codes][room:]:
            outcomes.codes[row] = Code.LIMIT_EXCEEDED
    if len(outcomes.codes) < count:
        state.sequences.check_room(incoming.session)
        state.owners.check(incoming.owner, state.total)
    return outcomes


def create(
    state: TopicState, incoming: CreateBatch, now: int, batch: Batch, decided: Outcomes | None = None
) -> Outcomes:
    """Put the admitted rows of `incoming` into `batch`, and return the outcome of each row, unless it is `decided`."""
    outcomes = decided if decided is not None else decide(state, incoming)
    fresh = note(state, incoming, outcomes, now, batch)
    if fresh:
        store(state, incoming, fresh, now, batch)
    return outcomes


def note(state: TopicState, incoming: CreateBatch, outcomes: Outcomes, now: int, batch: Batch) -> list[RowRange]:
    """Remember the name of the batch, and the ids of its admitted rows in a topic that remembers ids; returns these
    rows.
    """
    count = len(incoming)
    # A row that was refused may yet be created by a later try; only rows that succeeded count as done.
    used = ranges.without(count, outcomes.failed)
    if used:
        state.sequences.add(incoming, used, now, batch)
    fresh = ranges.without(count, outcomes.codes)
    if fresh and state.created is not None and incoming.ids is not None:
        state.created.add([incoming.ids[row] for row in _rows(fresh)], now, batch)
    return fresh


def store(
    state: TopicState,
    incoming: CreateBatch,
    fresh: list[RowRange],
    now: int,
    batch: Batch,
    buckets: Sequence[int] | None = None,
) -> None:
    """Put admitted rows into `batch` as runs. `buckets` has the bucket of each row if its listed id does not say it."""
    state.owners.forget(state.total, batch)
    owner = state.owners.number(incoming.owner, batch)
    if isinstance(state, PriorityTopicState):
        _add_by_priority(state, incoming, fresh, owner, batch, buckets)
    elif incoming.ids is None:
        _add_generated(state, incoming, fresh, owner, now, batch)
    else:
        _add_listed(state, incoming, fresh, owner, now, batch, buckets)
    if state.outbox is not None:
        state.outbox.created(state.topic.name, incoming, fresh, state.database.values.mask(state.topic.number))


def _add_generated(
    state: TopicState, incoming: CreateBatch, stretches: list[RowRange], owner: int, now: int, batch: Batch
) -> None:
    ts = incoming.ts
    for stretch in stretches:
        times = np.array(ts[slice(*stretch)], dtype=np.int64)
        parts: Iterable[RowRange] = _by_slice(ts, *stretch)
        if is_scattered(state.levels, times, 1):
            parts = [(stretch[0] + a, stretch[0] + b) for a, b in near_and_far(state.levels, times, now)]
        for start, end in parts:
            record = records.Run(owner=incoming.owner, session=incoming.session.pack(), first=incoming.sequence + start)
            record.ts.extend(ts[start:end])
            block = _fill(state, record, incoming, range(start, end), batch)
            time_slice = ts[start] // keys.SLICE_MS
            column = times[start - stretch[0] : end - stretch[0]]
            due = ts[start] <= now
            state.add_run(batch, incoming.bucket, time_slice, owner, record, due=due, block=block, times=column)


def _by_slice(ts: Sequence[int], start: int, end: int) -> Iterator[RowRange]:
    """Rows start to end-1 as one range per slice."""
    while start < end:
        cut = bisect_left(ts, (ts[start] // keys.SLICE_MS + 1) * keys.SLICE_MS, start, end)
        yield start, cut
        start = cut


def _fill(state: TopicState, record: records.Run, incoming: CreateBatch, rows: Rows, batch: Batch) -> BodyBlock | None:
    """Copy rows into a record that has their times, column by column.

    Returns the bodies as a block when none is stored separately; writing them into the record took three times as long.
    """
    if incoming.priorities is not None and any(priorities := pick(incoming.priorities, rows)):
        record.priorities.extend(priorities)
    if incoming.headers is not None and any(headers := pick(incoming.headers, rows)):
        record.headers.extend(headers)
    block = pick_bodies(incoming.bodies, rows)
    if incoming.large or max(block.sizes) > state.body_store.inline_bytes_max:
        pairs = [state.body_store.put(batch, body) for body in block]
        record.bodies.extend([inline for inline, _ in pairs])
        record.apart.extend([number for _, number in pairs])
        return None
    return block


def _add_listed(
    state: TopicState,
    incoming: CreateBatch,
    stretches: list[RowRange],
    owner: int,
    now: int,
    batch: Batch,
    buckets: Sequence[int] | None = None,
) -> None:
    """Divide the rows by bucket, unless they may be in one run, and by slice; scattered rows are one wide run."""
    if buckets is None and _wait_singly(incoming, now):
        # Their rows wait one by one, each in its bucket, whichever consumers lease them.
        place = keys.SPREAD if state.topic.settings.buckets > 1 else 0
        _add_few(state, incoming, [(place, list(_rows(stretches)))], owner, now, batch)
        return
    if buckets is None and len(incoming) < state.levels.wide_rows_min:
        _add_few(state, incoming, _by_bucket(state, incoming, stretches, now), owner, now, batch)
        return
    count = state.topic.settings.buckets
    times = _times(incoming.ts)
    divided: Iterable[tuple[int, Sequence[int]]]
    if buckets is not None:
        # Only a run of one bucket says which bucket its ids have, so these rows are wide runs even if they are few.
        scattered, divided = True, _divided(_rows(stretches), buckets)
    elif scattered := is_scattered(state.levels, times, count) or _is_mixed_soon(state, times, now):
        divided = [(keys.SPREAD if count > 1 else 0, _together(stretches))]
    else:
        divided = _by_bucket(state, incoming, stretches, now)
    for bucket, unsorted in divided:
        rows = _in_order(unsorted, times, incoming.priorities)
        column = _rows_of(times, rows)
        parts = near_and_far(state.levels, column, now) if scattered else _by_slice(column.tolist(), 0, len(rows))
        for start, end in parts:
            part = range(rows[start], rows[end - 1] + 1) if isinstance(rows, range) else rows[start:end]
            _add_sorted(state, incoming, bucket, part, column[start:end], owner, now, batch)


def _wait_singly(incoming: CreateBatch, now: int) -> bool:
    """Whether the rows of a small batch, all of which are due soon, wait one by one."""
    if len(incoming) > SMALL_RUN_ROWS or incoming.large or incoming.priorities:
        return False
    last = max(incoming.ts)
    return last <= now + YOUNG_MS and are_few(len(incoming), min(incoming.ts), last)


def _add_few(
    state: TopicState,
    incoming: CreateBatch,
    divided: Iterable[tuple[int, Sequence[int]]],
    owner: int,
    now: int,
    batch: Batch,
) -> None:
    """Divide few rows by slice, so that no run is a wide one: without arrays, which cost more than the rows."""
    ts, priorities = incoming.ts, incoming.priorities
    for bucket, some in divided:
        rows = some
        if len(some) > 1:
            order = [(ts[row], priorities[row] if priorities else 0, row) for row in some]
            order.sort()
            rows = [row for _, _, row in order]
        times = [ts[row] for row in rows]
        for start, end in _by_slice(times, 0, len(times)):
            part = _times(times[start:end])
            _add_sorted(state, incoming, bucket, rows[start:end], part, owner, now, batch)


def _is_mixed_soon(state: TopicState, times: Times, now: int) -> bool:
    """Whether rows that are due soon, at several times, stay together for a few consumers, and so can be merged.

    Divided by bucket, such batches whose times lie between each other leave a row or two of each run to each lease.
    """
    if state.topic.settings.buckets == 1 or state.demand.shared_by_many or len(times) < state.levels.wide_rows_min:
        return False
    first, last = int(times.min()), int(times.max())
    return first < last <= now + YOUNG_MS


def _times(ts: Sequence[int]) -> Times:
    return np.array(ts, dtype=np.int64)


def _rows_of(column: Times, rows: Rows) -> Times:
    return column[rows.start : rows.stop] if isinstance(rows, range) else column[rows]


def _in_order(rows: Sequence[int], times: Times, priorities: Sequence[int] | None) -> Rows:
    """Rows in the order of time and priority; equal ones keep their order."""
    if len(rows) == 1:
        return rows
    column = _rows_of(times, rows)
    if priorities is not None:
        order = np.lexsort((_rows_of(_times(priorities), rows), column))
    elif bool((column[1:] >= column[:-1]).all()):
        return rows
    else:
        order = order_of(column.astype(np.uint64))
    return order + rows.start if isinstance(rows, range) else np.array(rows)[order]


def _add_sorted(
    state: TopicState,
    incoming: CreateBatch,
    bucket: int,
    rows: Rows,
    times: Times,
    owner: int,
    now: int,
    batch: Batch,
) -> None:
    """Store rows in the order of their times as one run."""
    assert incoming.ids is not None
    record = records.Run(owner=incoming.owner)
    record.MergeFromString(TIMES_TAG + varint(8 * len(times)) + times.astype("<i8", copy=False).tobytes())
    listed = pick_ids(incoming.ids, rows)
    block = _fill(state, record, incoming, rows, batch)
    first = int(times[0])
    time_slice, due = first // keys.SLICE_MS, first <= now
    state.add_run(batch, bucket, time_slice, owner, record, ids=listed, due=due, block=block, times=times)


def _by_bucket(
    state: TopicState, incoming: CreateBatch, stretches: list[RowRange], now: int
) -> Iterable[tuple[int, Sequence[int]]]:
    """The rows of each bucket, or all rows together when that is better for the consumers that will lease them.

    One consumer of all buckets is fastest with one run for the whole batch. Several consumers get slices of the run
    only when the rows of a bucket are consecutive, which is possible when all rows are due at one time.
    """
    assert incoming.ids is not None
    ts = incoming.ts
    soon = state.topic.settings.buckets > 1 and max(ts) <= now + YOUNG_MS
    if soon and state.demand.met(state.total, now):
        return [(keys.SPREAD, _together(stretches))]
    divided = _divided(_rows(stretches), state.index.buckets_of(incoming.ids))
    if soon and not state.demand.shared and min(ts) == max(ts):
        return [(keys.SPREAD, list(chain.from_iterable(rows for _, rows in divided)))]
    return divided


def _divided(rows: Iterable[int], buckets: Sequence[int]) -> Collection[tuple[int, list[int]]]:
    """The rows of each bucket."""
    divided: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        divided[buckets[row]].append(row)
    return divided.items()


def _together(stretches: list[RowRange]) -> Sequence[int]:
    return range(*stretches[0]) if len(stretches) == 1 else list(_rows(stretches))


def _rows(stretches: list[RowRange]) -> Iterable[int]:
    return chain.from_iterable(range(start, end) for start, end in stretches)


def _add_by_priority(
    state: PriorityTopicState,
    incoming: CreateBatch,
    stretches: list[RowRange],
    owner: int,
    batch: Batch,
    buckets: Sequence[int] | None = None,
) -> None:
    """Create runs of one priority, or of a block of priorities."""
    spread = buckets is None and state.spreads and len(incoming) >= state.levels.wide_rows_min
    if buckets is None:
        together = spread and max(incoming.ts) <= state.now
        buckets = () if together else state.index.buckets_of(incoming.ids or ())
    for (bucket, time_slice), rows in cuts(incoming, buckets, stretches, state.now, spread=spread):
        record = records.Run(owner=incoming.owner)
        listed: IdColumn | None = None
        if incoming.ids is None:
            record.session, record.first = incoming.session.pack(), incoming.sequence + rows[0]
        else:
            listed = IdColumn(pick(incoming.ids, rows))
        record.ts.extend(pick(incoming.ts, rows))
        block = _fill(state, record, incoming, rows, batch)
        state.add_run(batch, bucket, time_slice, owner, record, ids=listed, block=block)


def _check_ids(state: TopicState, incoming: CreateBatch, outcomes: Outcomes) -> None:
    """Find the rows whose ids are taken: one search of the index for all rows, and further reads only for the ids it
    finds.
    """
    assert incoming.ids is not None
    ids = incoming.ids
    alike = GENERATED_LENGTH in (ids.lengths if isinstance(ids, IdColumn) else set(map(len, ids)))
    if not alike and not state.index.may_have_any(ids):
        return
    suspects = [row for row in range(len(ids)) if row not in outcomes.codes]
    for row, at in zip(suspects, state.locate([ids[row] for row in suspects]), strict=True):
        if at is not None:
            outcomes.codes[row] = decide_create(exists=True, same_content=_same_content(state, incoming, row, *at))


def _check_created(state: TopicState, created: RocksCreatedIds, ids: Sequence[str], outcomes: Outcomes) -> None:
    """Find the rows whose ids were created within the window and have no message any more."""
    rows = [row for row in range(len(ids)) if row not in outcomes.codes]
    for row in created.rows(ids, rows, state.now):
        outcomes.codes[row] = decide_create(exists=False, same_content=False, created=True)


def _same_content(state: TopicState, incoming: CreateBatch, row: int, run: Run, run_row: int) -> bool:
    record = run.record
    priority = incoming.priorities[row] if incoming.priorities is not None else 0
    headers = incoming.headers[row] if incoming.headers is not None else b""
    run_ts, run_priority = run.sort_key(run_row)
    return (
        record.owner == incoming.owner
        and incoming.accepts_time(row, run_ts)
        and run_priority == priority
        and (record.headers[run_row] if record.headers else b"") == headers
        and content_of(state.body(run, run_row)) == content_of(incoming.bodies[row])
    )
