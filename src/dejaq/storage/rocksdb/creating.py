"""Create: a batch of columns becomes runs."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from dejaq.domain.batch import CreateBatch, Outcomes, RowRange
from dejaq.domain.body_block import BodyBlock
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import GENERATED_LENGTH
from dejaq.domain.large import content_of
from dejaq.domain.transitions import decide_create
from dejaq.errors import Code
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage import ranges
from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.image import Image
from dejaq.storage.rocksdb.index import YOUNG_MS
from dejaq.storage.rocksdb.prioritising import PriorityImage, cuts
from dejaq.storage.rocksdb.run import Run

T = TypeVar("T")


def decide(image: Image, incoming: CreateBatch) -> Outcomes:
    """What becomes of each row; nothing is done yet."""
    count = len(incoming)
    outcomes = Outcomes(count, dict(incoming.refused))
    for row in image.seen.rows(incoming.session, incoming.sequence, count):
        outcomes.codes.setdefault(row, Code.ALREADY_EXISTS)
    if incoming.ids is not None:
        _check_ids(image, incoming, outcomes)
    if incoming.large:
        for row, body in enumerate(incoming.bodies):
            if row not in outcomes.codes and image.apart.missing(body):
                outcomes.codes[row] = Code.BODY_MISSING
    return outcomes


def create(image: Image, incoming: CreateBatch, now: int, batch: Batch, decided: Outcomes | None = None) -> Outcomes:
    """Put the admitted rows of `incoming` into `batch`, and say what becomes of each row, unless it is `decided`."""
    outcomes = decided if decided is not None else decide(image, incoming)
    count = len(incoming)
    # A row that was refused may yet be created by a later try; only what stands counts as done.
    used = ranges.without(count, outcomes.failed)
    if used:
        image.seen.add(incoming.session, incoming.sequence, used, now, batch)
    fresh = ranges.without(count, outcomes.codes)
    if fresh:
        owner = image.owner_number(incoming.owner, batch)
        if isinstance(image, PriorityImage):
            _add_by_priority(image, incoming, fresh, owner, batch)
        elif incoming.ids is None:
            _add_generated(image, incoming, fresh, owner, now, batch)
        else:
            _add_listed(image, incoming, fresh, owner, now, batch)
        if image.outbox is not None:
            image.outbox.created(image.topic.name, incoming, fresh)
    return outcomes


def _add_generated(
    image: Image, incoming: CreateBatch, stretches: list[RowRange], owner: int, now: int, batch: Batch
) -> None:
    ts = incoming.ts
    for start, end in stretches:
        while start < end:
            time_slice = ts[start] // keys.SLICE_MS
            cut = bisect_left(ts, (time_slice + 1) * keys.SLICE_MS, start, end)
            record = records.Run(owner=incoming.owner, session=incoming.session.pack(), first=incoming.sequence + start)
            block = _fill(image, record, incoming, range(start, cut), batch)
            image.add_run(batch, incoming.bucket, time_slice, owner, record, due=ts[start] <= now, block=block)
            start = cut


def _fill(
    image: Image, record: records.Run, incoming: CreateBatch, rows: Sequence[int], batch: Batch
) -> BodyBlock | None:
    """Copy rows into a record, column by column.

    Gives the bodies as a block where none is stored apart; to write them into the record took three times as long.
    """
    bodies = _pick(incoming.bodies, rows)
    record.ts.extend(_pick(incoming.ts, rows))
    if incoming.priorities is not None and any(priorities := _pick(incoming.priorities, rows)):
        record.priorities.extend(priorities)
    if incoming.headers is not None and any(headers := _pick(incoming.headers, rows)):
        record.headers.extend(headers)
    if incoming.large or max(map(len, bodies)) > image.apart.inline_bytes_max:
        pairs = [image.apart.put(batch, body) for body in bodies]
        record.bodies.extend([inline for inline, _ in pairs])
        record.apart.extend([number for _, number in pairs])
        return None
    return BodyBlock(bodies)


def _add_listed(
    image: Image, incoming: CreateBatch, stretches: list[RowRange], owner: int, now: int, batch: Batch
) -> None:
    """Cut the rows by bucket, unless they may lie together, and by slice; each cut is a run."""
    assert incoming.ids is not None
    ts, priorities = incoming.ts, incoming.priorities
    # Rows are taken in their order, so what comes in the order of time stays in it.
    in_order = priorities is None and ts == sorted(ts)
    for bucket, rows in _by_bucket(image, incoming, stretches, now):
        if priorities is not None:
            rows = sorted(rows, key=lambda row: (ts[row], priorities[row]))
        elif not in_order:
            rows = sorted(rows, key=ts.__getitem__)
        while rows:
            time_slice = ts[rows[0]] // keys.SLICE_MS
            end = bisect_left(rows, (time_slice + 1) * keys.SLICE_MS, key=ts.__getitem__)
            listed = IdColumn(_pick(incoming.ids, rows[:end]))
            record = records.Run(owner=incoming.owner)
            block = _fill(image, record, incoming, rows[:end], batch)
            due = ts[rows[0]] <= now
            image.add_run(batch, bucket, time_slice, owner, record, ids=listed, due=due, block=block)
            rows = rows[end:]


def _by_bucket(
    image: Image, incoming: CreateBatch, stretches: list[RowRange], now: int
) -> Iterable[tuple[int, Sequence[int]]]:
    """The rows of each bucket, or all of them together where that is better for who will lease them.

    One consumer for all buckets is best served by a run as it came. Several get slices of it only where the rows of a
    bucket follow each other, which they can when all are due at one time.
    """
    assert incoming.ids is not None
    ts = incoming.ts
    soon = image.topic.settings.buckets > 1 and max(ts) <= now + YOUNG_MS
    if soon and image.demand.met(image.total, now):
        return [(keys.SPREAD, range(*stretches[0]) if len(stretches) == 1 else list(_rows(stretches)))]
    buckets = image.index.buckets_of(incoming.ids)
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row in _rows(stretches):
        rows[buckets[row]].append(row)
    if soon and not image.demand.shared and min(ts) == max(ts):
        return [(keys.SPREAD, list(chain.from_iterable(rows.values())))]
    return rows.items()


def _rows(stretches: list[RowRange]) -> Iterable[int]:
    return chain.from_iterable(range(start, end) for start, end in stretches)


def _pick(column: Sequence[T], rows: Sequence[int]) -> Sequence[T]:
    """Some rows of a column; consecutive ones as a slice, which is three times as fast."""
    if isinstance(rows, range):
        return column[rows.start : rows.stop]
    return itemgetter(*rows)(column) if len(rows) > 1 else [column[rows[0]]]


def _add_by_priority(
    image: PriorityImage, incoming: CreateBatch, stretches: list[RowRange], owner: int, batch: Batch
) -> None:
    """Each priority is a run of its own."""
    buckets = image.index.buckets_of(incoming.ids or ())
    for (bucket, time_slice), rows in cuts(image, incoming, buckets, stretches):
        record = records.Run(owner=incoming.owner)
        listed: IdColumn | None = None
        if incoming.ids is None:
            record.session, record.first = incoming.session.pack(), incoming.sequence + rows[0]
        else:
            listed = IdColumn(_pick(incoming.ids, rows))
        block = _fill(image, record, incoming, rows, batch)
        image.add_run(batch, bucket, time_slice, owner, record, ids=listed, block=block)


def _check_ids(image: Image, incoming: CreateBatch, outcomes: Outcomes) -> None:
    """Find the rows whose ids are taken: one look at the index for all, more only for what it finds."""
    assert incoming.ids is not None
    ids = incoming.ids
    alike = GENERATED_LENGTH in set(map(len, ids))
    if not alike and not image.index.has_any(ids):
        return
    suspects = [row for row in range(len(ids)) if row not in outcomes.codes]
    for row, at in zip(suspects, image.locate([ids[row] for row in suspects]), strict=True):
        if at is not None:
            outcomes.codes[row] = decide_create(exists=True, same_content=_same_content(image, incoming, row, *at))


def _same_content(image: Image, incoming: CreateBatch, row: int, run: Run, run_row: int) -> bool:
    record = run.record
    priority = incoming.priorities[row] if incoming.priorities is not None else 0
    headers = incoming.headers[row] if incoming.headers is not None else b""
    return (
        record.owner == incoming.owner
        and run.sort_key(run_row) == (incoming.ts[row], priority)
        and (record.headers[run_row] if record.headers else b"") == headers
        and content_of(image.body(run, run_row)) == content_of(incoming.bodies[row])
    )
