"""Rows that will be written into new runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.run import Run


@dataclass(slots=True)
class DraftRow:
    """One row that will be written into a new run."""

    id: str
    ts: int
    body: bytes
    priority: int
    attempts: int
    headers: bytes
    apart: int
    # When it was first and last leased; 0: never, or unknown.
    first: int = 0
    last: int = 0


@dataclass(slots=True)
class Draft:
    """Rows by (bucket, slice, owner); each group becomes one run."""

    rows: dict[tuple[int, int, int], list[DraftRow]] = field(default_factory=dict)

    def add(self, bucket: int, owner: int, row: DraftRow) -> None:
        """Add a row at its ts."""
        self.rows.setdefault((bucket, row.ts // keys.SLICE_MS, owner), []).append(row)


def record_of(owner: str, rows: list[DraftRow]) -> records.Run:
    """A run of listed ids; its rows are sorted first."""
    rows.sort(key=lambda row: (row.ts, row.priority))
    record = records.Run(
        owner=owner,
        ids=[row.id for row in rows],
        ts=[row.ts for row in rows],
        bodies=[row.body for row in rows],
    )
    if any(row.priority for row in rows):
        record.priorities.extend([row.priority for row in rows])
    if any(row.attempts for row in rows):
        record.attempts.extend([row.attempts for row in rows])
    if any(row.headers for row in rows):
        record.headers.extend([row.headers for row in rows])
    if any(row.apart for row in rows):
        record.apart.extend([row.apart for row in rows])
    if any(row.first or row.last for row in rows):
        record.firsts.extend([row.first for row in rows])
        record.lasts.extend([row.last for row in rows])
    return record


def draft_of(run: Run, row: int, *, ts: int, attempts: int) -> DraftRow:
    """A row of a run as a draft for another run, at `ts`."""
    record = run.record
    return DraftRow(
        id=run.id_at(row),
        ts=ts,
        body=run.bodies[row],
        priority=record.priorities[row] if record.priorities else 0,
        attempts=attempts,
        headers=record.headers[row] if record.headers else b"",
        apart=record.apart[row] if record.apart else 0,
        first=run.first_at(row),
        last=run.last_at(row),
    )
