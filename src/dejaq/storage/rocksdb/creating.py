"""Create: a batch of columns becomes runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from dejaq import limits
from dejaq.domain.batch import CreateBatch, Outcomes, RowRange
from dejaq.domain.ids import bucket_of, parse_generated
from dejaq.domain.transitions import decide_create
from dejaq.errors import Code
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.database import Batch
from dejaq.storage.rocksdb.image import Draft, Image, Row
from dejaq.storage.rocksdb.run import Run


def decide(image: Image, incoming: CreateBatch) -> Outcomes:
    """What becomes of each row; nothing is done yet."""
    count = len(incoming)
    outcomes = Outcomes(count, dict(incoming.refused))
    for row in image.seen.rows(incoming.session, incoming.sequence, count):
        outcomes.codes.setdefault(row, Code.ALREADY_EXISTS)
    if incoming.ids is not None:
        _check_ids(image, incoming, outcomes)
    return outcomes


def create(image: Image, incoming: CreateBatch, now: int, batch: Batch) -> Outcomes:
    """Put the admitted rows of `incoming` into `batch`, and say what becomes of each row."""
    outcomes = decide(image, incoming)
    count = len(incoming)
    # A row that was refused may yet be created by a later try; only what stands counts as done.
    used = _stretches(count, {row: code for row, code in outcomes.codes.items() if not code.succeeded})
    if used:
        image.seen.add(incoming.session, incoming.sequence, used, now, batch)
    fresh = _stretches(count, outcomes.codes)
    if fresh:
        owner = image.owner_number(incoming.owner, batch)
        if incoming.ids is None:
            _add_generated(image, incoming, fresh, owner, batch)
        else:
            _add_listed(image, incoming, fresh, owner, batch)
        if image.outbox is not None:
            image.outbox.created(image.topic.name, incoming, fresh)
    return outcomes


def _stretches(count: int, without: dict[int, Code]) -> list[RowRange]:
    """The rows that are not in `without`, as ranges."""
    if not without:
        return [(0, count)]
    stretches: list[RowRange] = []
    start = 0
    for row in [*sorted(without), count]:
        if row > start:
            stretches.append((start, row))
        start = row + 1
    return stretches


def _add_generated(image: Image, incoming: CreateBatch, stretches: list[RowRange], owner: int, batch: Batch) -> None:
    ts = incoming.ts
    for start, end in stretches:
        while start < end:
            time_slice = ts[start] // keys.SLICE_MS
            cut = bisect_left(ts, (time_slice + 1) * keys.SLICE_MS, start, end)
            record = records.Run(owner=incoming.owner, session=incoming.session.pack(), first=incoming.sequence + start)
            _fill(image, record, incoming, range(start, cut), batch)
            image.add_run(batch, incoming.bucket, time_slice, owner, record)
            start = cut


def _fill(image: Image, record: records.Run, incoming: CreateBatch, rows: range, batch: Batch) -> None:
    """Copy consecutive rows into a record, column by column."""
    start, end = rows.start, rows.stop
    bodies = incoming.bodies[start:end]
    record.ts.extend(incoming.ts[start:end])
    if incoming.priorities is not None and any(incoming.priorities[start:end]):
        record.priorities.extend(incoming.priorities[start:end])
    if incoming.headers is not None and any(incoming.headers[start:end]):
        record.headers.extend(incoming.headers[start:end])
    if max(map(len, bodies)) > limits.INLINE_BODY_BYTES_MAX:
        pairs = [image.put_apart(batch, body) for body in bodies]
        record.bodies.extend([inline for inline, _ in pairs])
        record.apart.extend([number for _, number in pairs])
    else:
        record.bodies.extend(bodies)


def _add_listed(image: Image, incoming: CreateBatch, stretches: list[RowRange], owner: int, batch: Batch) -> None:
    assert incoming.ids is not None
    buckets = image.topic.settings.buckets
    draft = Draft()
    for start, end in stretches:
        for row in range(start, end):
            body, apart = image.put_apart(batch, incoming.bodies[row])
            draft.add(
                bucket_of(incoming.ids[row], buckets),
                owner,
                Row(
                    id=incoming.ids[row],
                    ts=incoming.ts[row],
                    body=body,
                    priority=incoming.priorities[row] if incoming.priorities is not None else 0,
                    attempts=0,
                    headers=incoming.headers[row] if incoming.headers is not None else b"",
                    apart=apart,
                ),
            )
    image.add_rows(batch, draft)


def _check_ids(image: Image, incoming: CreateBatch, outcomes: Outcomes) -> None:
    """Find the rows whose ids are taken."""
    assert incoming.ids is not None
    asked = [row for row in range(len(incoming)) if row not in outcomes.codes]
    for row, at in zip(asked, _taken(image, [incoming.ids[row] for row in asked]), strict=True):
        if at is not None:
            outcomes.codes[row] = decide_create(exists=True, same_content=_same_content(image, incoming, row, *at))


def _taken(image: Image, ids: Sequence[str]) -> list[tuple[Run, int] | None]:
    """Where each id stands, if it does: one look at the index for all, more only for what it finds."""
    topic, buckets = image.topic.number, image.topic.settings.buckets
    entries = image.database.get_many([keys.index(topic, bucket_of(i, buckets), i) for i in ids])
    suspects = [
        row
        for row, value in enumerate(entries)
        if value is not None or (len(ids[row]) == 32 and parse_generated(ids[row]) is not None)
    ]
    found: list[tuple[Run, int] | None] = [None] * len(ids)
    for row, at in zip(suspects, image.locate([ids[row] for row in suspects]), strict=True):
        found[row] = at
    return found


def _same_content(image: Image, incoming: CreateBatch, row: int, run: Run, run_row: int) -> bool:
    record = run.record
    priority = incoming.priorities[row] if incoming.priorities is not None else 0
    headers = incoming.headers[row] if incoming.headers is not None else b""
    return (
        record.owner == incoming.owner
        and run.sort_key(run_row) == (incoming.ts[row], priority)
        and (record.headers[run_row] if record.headers else b"") == headers
        and image.body(run, run_row) == incoming.bodies[row]
    )
