"""Changes by an owner to messages of the far future, as columns: each run is marked once for all of its rows.

These messages are in runs that are only on disk and have no lease (`timeline.far`), so all rows of a run have the same
answer, and what leaves and what is written again are columns. `owning` changes all other messages row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from dejaq.storage.rocksdb.timeline.far.far_rows import Column, FarRows, picked_bodies
from dejaq.storage.rocksdb.timeline.far.stored_run import StoredRun
from dejaq.storage.rocksdb.timeline.ids.hashing import Numbers, bucket_column
from dejaq.storage.rocksdb.timeline.levels.scatter import is_scattered, near_and_far
from dejaq.storage.rocksdb.timeline.topic_state import TopicState


def decide_far(
    state: TopicState, rows: FarRows, owner: str, now: int, versions: Sequence[int | None] | None
) -> tuple[FarRows, dict[int, Code]]:
    """The rows that may be changed or cancelled, and the codes of the others by the positions of their ids."""
    owners: list[int] = rows.owners().tolist()
    # Without versions the answer depends on the owner only: such a row has no lease.
    names = {number: state.owners.name(number) for number in set(owners)}
    of_owner = {number: _decide(name, owner, now) for number, name in names.items()}
    if versions is None and all(code is Code.OK for code in of_owner.values()):
        return rows, {}
    refused: dict[int, Code] = {}
    allowed: list[int] = []
    columns = zip(rows.items.tolist(), owners, rows.times.tolist(), rows.versions.tolist(), strict=True)
    for at, (item, number, ts, present) in enumerate(columns):
        version = versions[item] if versions is not None else None
        code = of_owner[number]
        if version is not None:
            standing = Standing(ts, names[number], "", present)
            code = decide_by_owner(standing, owner=owner, now=now, version=version)
        if code is Code.OK:
            allowed.append(at)
        else:
            refused[item] = code
    return rows.picked(np.array(allowed, dtype=np.int64)) if refused else rows, refused


def _decide(run_owner: str, owner: str, now: int) -> Code:
    return decide_by_owner(Standing(0, run_owner, "", 0), owner=owner, now=now)


def remove_far(state: TopicState, batch: Batch, rows: FarRows) -> None:
    """Remove rows from their runs; a run without rows is removed too."""
    # A run that was found in several steps is there several times.
    leaving: dict[StoredRun, int] = {}
    of_runs = [rows.runs[number] for number in rows.of_runs.tolist()]
    for run, row in zip(of_runs, rows.rows.tolist(), strict=True):
        leaving[run] = leaving.get(run, 0) | 1 << row
    emptied: set[StoredRun] = set()
    for run, mask in leaving.items():
        if run.live == mask:
            emptied.add(run)
            state.remove_rows(batch, state.runs.at(keys.place(run.key)), mask, keep_bodies=True)
        else:
            run.live &= ~mask
            batch.put(keys.gone(run.key), masks.pack(masks.full(run.count) & ~run.live))
    if emptied:
        rows = rows.picked(np.array([at for at, run in enumerate(of_runs) if run not in emptied], dtype=np.int64))
    state.minute_counts.add_times(rows.times, -1)
    if state.owner_counts is not None:
        state.owner_counts.remove(list(zip(rows.owners().tolist(), rows.times.tolist(), strict=True)))
    state.index.remove_entries(rows.hashes, rows.versions, rows.times)


@dataclass(slots=True)
class FarColumns:
    """Messages of one owner that are written again, each in the bucket that it has.

    Priorities and headers are empty if no message has one.
    """

    ids: Sequence[str]
    hashes: Numbers
    ts: Column
    bodies: Sequence[bytes]
    priorities: Sequence[int]
    headers: Sequence[bytes]
    buckets: Column

    def draft_row(self, row: int) -> DraftRow:
        """One message for a run that is written row by row."""
        return DraftRow(
            id=self.ids[row],
            ts=int(self.ts[row]),
            body=self.bodies[row],
            priority=self.priorities[row] if self.priorities else 0,
            attempts=0,
            headers=self.headers[row] if self.headers else b"",
            apart=0,
        )


def write_far(state: TopicState, batch: Batch, owner: str, columns: FarColumns) -> None:
    """Write messages as one run where their times are scattered, and as one per bucket and slice otherwise."""
    number, ts, buckets = state.owners.number(owner, batch), columns.ts, state.topic.settings.buckets
    rest = np.arange(len(ts))
    # A generated id, which is listed once its message was changed, stays in the bucket that it names.
    natural = bucket_column(columns.hashes, buckets).astype(np.int64) == columns.buckets
    wide = np.flatnonzero(natural)
    if is_scattered(state.levels, ts[wide], buckets):
        priorities = np.array(columns.priorities)[wide] if columns.priorities else np.zeros(len(wide))
        wide = wide[np.lexsort((priorities, ts[wide]))]
        for start, end in near_and_far(state.levels, ts[wide], state.now):
            _write_wide(state, batch, owner, number, columns, wide[start:end])
        rest = np.flatnonzero(~natural)
    draft = Draft()
    for row in rest.tolist():
        draft.add(int(columns.buckets[row]), number, columns.draft_row(row))
    state.add_rows(batch, draft)


def _write_wide(state: TopicState, batch: Batch, owner: str, number: int, columns: FarColumns, at: Column) -> None:
    rows: list[int] = at.tolist()
    record = records.Run(owner=owner, ts=columns.ts[at].tolist())
    if columns.priorities and any(priorities := [columns.priorities[row] for row in rows]):
        record.priorities.extend(priorities)
    if columns.headers and any(headers := [columns.headers[row] for row in rows]):
        record.headers.extend(headers)
    ids = IdColumn([columns.ids[row] for row in rows])
    ids.hashes = columns.hashes[at]
    bodies = picked_bodies(columns.bodies, at)
    block = bodies if isinstance(bodies, BodyBlock) else BodyBlock(bodies)
    bucket = keys.SPREAD if state.topic.settings.buckets > 1 else 0
    state.add_run(batch, bucket, record.ts[0] // keys.SLICE_MS, number, record, ids=ids, block=block)
