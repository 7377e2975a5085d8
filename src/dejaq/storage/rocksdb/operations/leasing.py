"""Lease: due rows leave their runs as slices of columns."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import itemgetter
from typing import TypeVar

import numpy as np

from dejaq import limits
from dejaq.domain.batch import IdSpan, LeaseRequest, LeaseSet
from dejaq.domain.bodies.body_block import BodySlices
from dejaq.domain.id_column import IdColumn
from dejaq.domain.transitions import Standing, decide_lease, decide_lease_terms
from dejaq.errors import Code, error_of
from dejaq.storage.rocksdb.bodies.large import LARGE
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.operations.dead_letters import DeadRow, move_exhausted, split
from dejaq.storage.rocksdb.timeline import masks, prioritising
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.levels.cells import Cells, columns_of
from dejaq.storage.rocksdb.timeline.levels.row_buckets import RowBuckets
from dejaq.storage.rocksdb.timeline.memory.due_rows import DueRows
from dejaq.storage.rocksdb.timeline.memory.near_rows import FirstRows
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.run import Key, Run, ranks_of
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.rocksdb.timeline.window import ExpiredRows, ReadingAllowance, Window

Value = TypeVar("Value")
# As far behind the first row of any bucket the first one of a consumer is searched.
_NEAR_MS = 10_000
# So many runs over several buckets are divided by bucket in one go.
_SHARED_RUNS = 16
# The time and the number of a row.
_PLACE = itemgetter(0, 1)


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
        state.want_merge(parts)
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
    simple = _take_simple(state, request, until, now, whole=whole)
    if simple is not None:
        return simple, []
    own = None if whole else _own_rows(state, request.buckets, until)
    places = [*request.buckets, keys.SPREAD] if own is None else list(request.buckets)
    heads = _heads(state, places, until)
    if own is not None and (head := own.head()) is not None and head[0] <= until:
        heapq.heappush(heads, (head, keys.SPREAD))
    parts: list[LeasePart] = []
    expired: dict[int, LeaseState] = {}
    allowance = ReadingAllowance(request.rows_max, request.bytes_max, state.sizes)
    while heads and not allowance.spent:
        first, bucket = heapq.heappop(heads)
        _check(first[0], request, now)
        if bucket == keys.SPREAD and not whole and own is None:
            _share_out(state, until)
            heads = _heads(state, places, until)
            continue
        mine = bucket == keys.SPREAD and own is not None
        window = own if mine and own is not None else state.window(bucket)
        if (head := window.head()) != first:
            # Rows that were put back may be offered over several buckets and in their own bucket, and left from the
            # other.
            if head is not None and head[0] <= until:
                heapq.heappush(heads, (head, bucket))
            continue
        if parts and window.expired_first and state.read_before(bucket, first[0]):
            if (head := window.head()) is not None:
                heapq.heappush(heads, (head, bucket))
            continue
        source, taken = window.take(heads[0][0] if heads else None, until, now, allowance)
        if not taken:
            break
        parts += taken
        if isinstance(source, ExpiredRows):
            expired[source.lease.id] = source.lease
        head = window.head() if mine else state.load_due(bucket, until, begun=True).head()
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


def _take_simple(
    state: TopicState, request: LeaseRequest, until: int, now: int, *, whole: bool
) -> list[LeasePart] | None:
    """Take due rows where all of them are in memory and free, and may leave in the order of their times; or None."""
    if not state.has_read(request.buckets, until):
        return None
    spread, windows = state.window(keys.SPREAD), [state.window(bucket) for bucket in request.buckets]
    if whole or not state.demand.shared_by_many:
        windows.append(spread)
    elif (head := spread.head()) is not None and head[0] <= until:
        return None
    due = DueRows(windows, None if whole else spread, _mask_of(state, request.buckets), until)
    if any(window.crowded for window in windows) or not due.find(request.rows_max, request.bytes_max):
        return None
    near = [window.near for window in windows]
    found, times = due.first(), [first for one in near if (first := one.first()) is not None and first <= until]
    if (first := min(times, default=found)) is None:
        return []
    _check(first if found is None else min(found, first), request, now)
    rows = FirstRows(near, until, request.rows_max)
    if found is None and rows.bytes <= request.bytes_max:
        return rows.parts()
    rows.free()
    due.add(rows.rows)
    parts = due.take(ReadingAllowance(request.rows_max, request.bytes_max, state.sizes))
    rows.put_back()
    return _joined(parts)


def _own_rows(state: TopicState, buckets: Sequence[int], until: int) -> Window | None:
    """The rows of a consumer that are in runs over several buckets, where it has many of these buckets.

    Then its rows of a run leave together; otherwise, and while rows wait on disk, `share_out` divides the runs.
    """
    if state.demand.shared_by_many:
        return None
    spread = state.window(keys.SPREAD)
    return spread.only(until, _mask_of(state, buckets)) if spread.reaches(until) else None


def _share_out(state: TopicState, until: int) -> None:
    """Offer the next rows up to `until` that lie over several buckets in the bucket of each."""
    window = state.window(keys.SPREAD)
    for _ in range(_SHARED_RUNS):
        head = window.head()
        if head is None or head[0] > until:
            return
        source = window.pop()
        for bucket, rows in state.by_bucket(source.run).items():
            state.window(bucket).offer(source.only(rows))
        state.load_due(keys.SPREAD, until)


def _mask_of(state: TopicState, buckets: Sequence[int]) -> Callable[[Run], int]:
    """Finds the rows of these buckets in a run over several buckets."""
    chosen = tuple(buckets)

    def mask_of(run: Run) -> int:
        if run.row_buckets is None:
            run.row_buckets = RowBuckets(state.index.buckets_of(run.ids))
        return run.row_buckets.mask_of(chosen)

    return mask_of


def _heads(state: TopicState, buckets: Sequence[int], until: int) -> list[tuple[Key, int]]:
    """The first row of each bucket that has one up to `until`, as a heap."""
    heads = [
        (head, bucket)
        for bucket in buckets
        if not state.window(bucket).has_nothing(until) and (head := state.load_due(bucket, until).head()) is not None
    ]
    due = [(head, bucket) for head, bucket in heads if head[0] <= until]
    heapq.heapify(due)
    return due


def _joined(parts: list[LeasePart]) -> list[LeasePart]:
    """The rows of a run as one part, although rows of other runs lie between them in time."""
    if len(parts) == len({part.run.key for part in parts}):
        return parts
    joined: list[LeasePart] = []
    together: dict[bytes, int] = {}
    latest: dict[bytes, LeasePart] = {}
    for part in parts:
        key = part.run.key
        if _is_plain(part):
            if key not in together:
                joined.append(part)
            together[key] = together.get(key, 0) | part.mask()
            continue
        before = latest.get(key)
        if before is not None and not part.due and before.start + before.count == part.start:
            before.count += part.count
            before.attempts = before.attempts and part.attempts and before.attempts + part.attempts
            before.firsts = before.firsts and part.firsts and before.firsts + part.firsts
            continue
        if not part.due:
            latest[key] = part
        joined.append(part)
    return [LeasePart.of_mask(part.run, together[part.run.key]) if _is_plain(part) else part for part in joined]


def _is_plain(part: LeasePart) -> bool:
    """Whether its rows were never leased before, and have listed ids."""
    return not (part.due or part.attempts or part.firsts or part.run.generated)


def _free_later_rows(state: TopicState, parts: list[LeasePart], first_left: Key) -> None:
    """Rows leave in slices that may overlap in time: rows later than the first remaining row are put back."""
    for part in parts:
        # Rows of expired leases have the same ts, and no earlier row remained.
        later = 0 if part.due else part.until(max(part.run.rows_until(first_left), part.start))
        if later:
            state.free_rows(part.run, later)
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
    if len(held.parts) > 1 and not state.topic.by_priority and _fill_from_small(result, held, rows):
        return result
    pieces = [piece for part in held.parts if (mask := part.in_run(rows)) for piece in _pieces(part, mask)]
    if state.topic.by_priority and len(pieces) > 1 and _joined_cells(result, pieces):
        return result
    for piece in pieces:
        part, record = piece.part, piece.part.run.record
        result.spans += part.id_spans(piece.mask())
        result.ts.extend([part.due] * len(piece) if part.due else piece.of(record.ts))
        if record.apart:
            result.large = result.large or max(piece.of(record.apart)) >= LARGE
    result.bodies = _bodies(state, pieces)
    _add_rare_columns(result, pieces)
    whole = len(result) == held.count
    result.rows = None if whole else _numbers(pieces)
    # Sorting sorted rows costs a tenth of computing their order, and most rows are sorted already.
    if len(pieces) > 1 and (result.priorities or result.ts != sorted(result.ts)):
        _sort(result, _numbers(pieces), by_priority=state.topic.by_priority)
    return result


def _fill_from_small(result: LeaseSet, held: LeaseState, rows: int) -> bool:
    """Fill a lease set with rows of small runs, which lie between each other in time; False where there are others."""
    found: list[tuple[int, int, Run, int]] = []
    for part in held.parts:
        run = part.run
        if part.due or part.attempts or run.held < run.count or not run.is_small or run.record.headers:
            return False
        ts = run.record.ts
        found += [(ts[row], part.lease_row(row), run, row) for row in masks.rows(part.in_run(rows))]
    found.sort(key=_PLACE)
    result.spans = [IdSpan(count=len(found), ids=IdColumn([run.ids[row] for _, _, run, row in found]))]
    result.ts = [at for at, _, _, _ in found]
    result.bodies = [run.bodies[row] for _, _, run, row in found]
    numbers = [number for _, number, _, _ in found]
    result.rows = None if numbers == list(range(held.count)) else numbers
    return True


def _joined_cells(result: LeaseSet, pieces: list[_Piece]) -> bool:
    """Fill a lease set with rows in the order of priority, copied as bytes; False where that is impossible."""
    cells, priorities, times = Cells(), [], []
    for one in pieces:
        columns = columns_of(one.part.run)
        if columns is None or one.part.due or one.part.attempts:
            return False
        rows = slice(one.start, one.end) if one.rows is None else list(one.rows)
        if not cells.add(columns.cells, rows):
            return False
        priorities.append(columns.priorities[rows])
        times.append(columns.times[rows])
    cells.join()
    ranked, ts = np.concatenate(priorities), np.concatenate(times)
    order = np.lexsort((ts, ranked))
    result.spans = [IdSpan(count=len(order), ids=cells.ids_of(order))]
    result.bodies = BodySlices([(cells.bodies_of(order), 0, len(order))])
    result.ts = ts[order].tolist()
    result.priorities = ranked[order].tolist() if ranked.any() else None
    numbers = np.array(_numbers(pieces))[order].tolist()
    result.rows = None if numbers == list(range(len(numbers))) else numbers
    return True


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows start to end-1 of the run of a part, or those that `rows` lists, ascending."""

    part: LeasePart
    start: int
    end: int
    rows: Sequence[int] | None = None

    def __len__(self) -> int:
        return self.end - self.start if self.rows is None else len(self.rows)

    def mask(self) -> int:
        """Its rows as a mask of the run."""
        return masks.span(self.start, self.end) if self.rows is None else masks.of_rows(self.rows)

    def of(self, column: Sequence[Value]) -> Sequence[Value]:
        """The values of its rows in a column of the run."""
        return column[self.start : self.end] if self.rows is None else [column[row] for row in self.rows]


def _pieces(part: LeasePart, mask: int) -> list[_Piece]:
    if part.rows is None:
        return [_Piece(part, start, end) for start, end in masks.ranges(mask)]
    rows = part.rows if mask.bit_count() == part.count else list(masks.rows(mask))
    return [_Piece(part, rows[0], rows[-1] + 1, rows)]


def _bodies(state: TopicState, pieces: list[_Piece]) -> Sequence[bytes]:
    """The bodies of the pieces, in the form of the protocol when every run has them in this form."""
    slices = [
        (one.part.run.block, one.start, one.end)
        for one in pieces
        if one.part.run.block is not None and one.rows is None
    ]
    if len(slices) == len(pieces):
        return BodySlices(slices)
    bodies: list[bytes] = []
    for one in pieces:
        run = one.part.run
        if run.record.apart:
            bodies.extend(state.body(run, row) for row in one.rows or range(one.start, one.end))
        else:
            bodies.extend(one.of(run.bodies))
    return bodies


def _add_rare_columns(result: LeaseSet, pieces: list[_Piece]) -> None:
    """Add attempts, priorities and headers when any row has values other than 1, 0 and none."""
    if any(one.part.attempts for one in pieces):
        attempts = [n for one in pieces for n in _attempts(one)]
        result.attempts = attempts if attempts.count(1) < len(attempts) else None
    if any(one.part.run.record.priorities for one in pieces):
        columns = ((one, one.part.run.record.priorities) for one in pieces)
        priorities = [n for one, column in columns for n in (one.of(column) if column else repeat(0, len(one)))]
        result.priorities = priorities if any(priorities) else None
    if any(one.part.run.record.headers for one in pieces):
        texts = ((one, one.part.run.record.headers) for one in pieces)
        headers = [n for one, column in texts for n in (one.of(column) if column else repeat(b"", len(one)))]
        result.headers = headers if any(headers) else None


def _attempts(piece: _Piece) -> Iterable[int]:
    part = piece.part
    if not part.attempts:
        return repeat(1, len(piece))
    return part.attempts[piece.start - part.start : piece.end - part.start]


def _numbers(pieces: list[_Piece]) -> list[int]:
    """The row number in the lease for each row of the pieces."""
    numbers: list[int] = []
    for one in pieces:
        if one.rows is None:
            first = one.part.lease_row(one.start)
            numbers += range(first, first + len(one))
        elif len(one) == one.part.count:
            numbers += range(one.part.offset, one.part.offset + len(one))
        else:
            numbers += map(one.part.lease_row, one.rows)
    return numbers


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
            times.append(head[0] if bucket != keys.SPREAD else _first_own(state, buckets, head[0]))
        unloaded = window.next_unloaded(state.database.first_key)
        if unloaded is not None:
            times.append(unloaded)
    return min(times, default=None)


def _first_own(state: TopicState, buckets: Sequence[int], first: int) -> int:
    """A time before which no row of these buckets is in runs over several buckets, of which the first is at `first`."""
    if state.demand.shared_by_many or len(buckets) == state.topic.settings.buckets:
        return first
    spread = state.window(keys.SPREAD)
    due = DueRows((spread,), spread, _mask_of(state, buckets), first + _NEAR_MS)
    if not due.find(1, limits.BATCH_BYTES_MAX):
        return first
    return first + _NEAR_MS if (own := due.first()) is None else own
