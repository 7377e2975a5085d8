"""Changes by an owner to messages of the far future, as columns: each run is read once and marked once.

These messages are in runs that are only on disk and have no lease (`timeline.far`), so all rows of a run have the same
answer, and what leaves and what is written again are columns. `owning` changes all other messages row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.id_column import IdColumn
from dejaq.domain.transitions import Standing, decide_by_owner
from dejaq.errors import Code
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.draft import Draft, DraftRow
from dejaq.storage.rocksdb.timeline.far.finder import FarRow
from dejaq.storage.rocksdb.timeline.far.stored_run import StoredRun
from dejaq.storage.rocksdb.timeline.levels.scatter import is_scattered, near_and_far
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

FarRows = dict[int, FarRow]


def decide_far(
    rows: FarRows, owner: str, now: int, versions: Sequence[int | None] | None
) -> tuple[FarRows, dict[int, Code]]:
    """The rows that may be changed or cancelled, and the codes of the others."""
    allowed: FarRows = {}
    refused: dict[int, Code] = {}
    # Without versions the answer depends on the owner only: such a row has no lease.
    of_owner = {name: _decide(name, owner, now) for name in {row.owner for row in rows.values()}}
    for item, row in rows.items():
        version = versions[item] if versions is not None else None
        code = of_owner[row.owner]
        if version is not None:
            standing = Standing(row.ts, row.owner, "", row.version)
            code = decide_by_owner(standing, owner=owner, now=now, version=version)
        if code is Code.OK:
            allowed[item] = row
        else:
            refused[item] = code
    return allowed, refused


def _decide(run_owner: str, owner: str, now: int) -> Code:
    return decide_by_owner(Standing(0, run_owner, "", 0), owner=owner, now=now)


def remove_far(state: TopicState, batch: Batch, rows: FarRows) -> None:
    """Remove rows from their runs; a run without rows is removed too."""
    runs: dict[bytes, tuple[StoredRun, int]] = {}
    for row in rows.values():
        run, mask = row.run, 1 << row.row
        before = runs.get(run.key)
        runs[run.key] = (run, mask if before is None else before[1] | mask)
    emptied = {run.key for run, mask in runs.values() if run.live == mask}
    for run, mask in runs.values():
        if run.key in emptied:
            state.remove_rows(batch, state.runs.at(keys.place(run.key)), mask, keep_bodies=True)
        else:
            run.live &= ~mask
            batch.put(keys.gone(run.key), masks.pack(masks.full(run.count) & ~run.live))
    left = [row for row in rows.values() if row.run.key not in emptied] if emptied else list(rows.values())
    times = [row.ts for row in left]
    state.minute_counts.add_times(times, -1)
    if state.owner_counts is not None:
        state.owner_counts.remove([(keys.owner_of(row.run.key), row.ts) for row in left])
    state.index.remove_entries([row.hashed for row in left], [row.version for row in left], times)


@dataclass(slots=True)
class FarColumns:
    """Messages of one owner that are written again, each in the bucket that it has."""

    ids: list[str] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)

    def add(self, message_id: str, ts: int, body: bytes, priority: int, headers: bytes, bucket: int) -> None:
        """Add one message."""
        self.ids.append(message_id)
        self.ts.append(ts)
        self.bodies.append(body)
        self.priorities.append(priority)
        self.headers.append(headers)
        self.buckets.append(bucket)

    def draft_row(self, row: int) -> DraftRow:
        """One message for a run that is written row by row."""
        return DraftRow(
            id=self.ids[row],
            ts=self.ts[row],
            body=self.bodies[row],
            priority=self.priorities[row],
            attempts=0,
            headers=self.headers[row],
            apart=0,
        )


def write_far(state: TopicState, batch: Batch, owner: str, columns: FarColumns) -> None:
    """Write messages as one run where their times are scattered, and as one per bucket and slice otherwise."""
    if not columns.ids:
        return
    number, ts = state.owners.number(owner, batch), columns.ts
    rows: Sequence[int] = range(len(ts))
    # A generated id, which is listed once its message was changed, stays in the bucket that it names.
    natural = state.index.buckets_of(columns.ids)
    wide = [row for row in rows if natural[row] == columns.buckets[row]]
    times = np.array([ts[row] for row in wide], dtype=np.int64)
    if is_scattered(state.levels, times, state.topic.settings.buckets):
        wide.sort(key=lambda row: (ts[row], columns.priorities[row]))
        for start, end in near_and_far(state.levels, np.sort(times), state.now):
            _write_wide(state, batch, owner, number, columns, wide[start:end])
        rows = [row for row in rows if natural[row] != columns.buckets[row]]
    draft = Draft()
    for row in rows:
        draft.add(columns.buckets[row], number, columns.draft_row(row))
    state.add_rows(batch, draft)


def _write_wide(
    state: TopicState, batch: Batch, owner: str, number: int, columns: FarColumns, rows: Sequence[int]
) -> None:
    record = records.Run(owner=owner, ts=[columns.ts[row] for row in rows])
    if any(priorities := [columns.priorities[row] for row in rows]):
        record.priorities.extend(priorities)
    if any(headers := [columns.headers[row] for row in rows]):
        record.headers.extend(headers)
    ids, block = IdColumn([columns.ids[row] for row in rows]), BodyBlock([columns.bodies[row] for row in rows])
    bucket = keys.SPREAD if state.topic.settings.buckets > 1 else 0
    state.add_run(batch, bucket, record.ts[0] // keys.SLICE_MS, number, record, ids=ids, block=block)
