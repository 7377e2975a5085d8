"""Converts the runs of a scan, as the broker stores them, to Arrow record batches: one column for all runs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from dejaq.domain.ids import ProducerSession, bucket_hash, bucket_in
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records
from pyspark_dejaq import wire
from pyspark_dejaq.columns import (
    ARROW_SCHEMA,
    CODED,
    arrow_headers,
    coded,
    coded_statuses,
    generated_ids,
    numbers,
    opened_bodies,
    repeated,
    statuses,
)

# The bucket of a run whose rows are each in the bucket of their id.
SPREAD = 0xFFFF


@dataclass
class _Runs:
    """The columns of some runs. `rest` are the runs that have optional columns; it may be empty. `bodies` says whether
    one of them may be packed.
    """

    counts: np.ndarray
    owners: list[str]
    ids: pa.Array
    # Whether the listed ids of each run are generated ids.
    counted: list[bool]
    ts: np.ndarray
    rest: Sequence[records.Run]
    bodies: tuple[pa.Array, bool] | None


@dataclass(frozen=True)
class WantedBatches:
    """What the rows of a snapshot of a topic taken at `at` become: record batches with the columns of the schema."""

    topic: str
    # The number of its buckets.
    buckets: int
    at: int
    schema: pa.Schema = ARROW_SCHEMA


def run_batch(scan: carrier.ScanColumns, wanted: WantedBatches) -> pa.RecordBatch:
    """The runs of one portion of a snapshot."""
    batch, counts = _batch(scan.runs, scan.run_buckets, wanted)
    return batch.filter(_counting(scan.run_rows, counts)) if any(scan.run_rows) else batch


def frame_batch(runs: Sequence[bytes], scan: carrier.ScanColumns, wanted: WantedBatches) -> pa.RecordBatch:
    """The same of the runs that were read from the places of the portion."""
    batch, counts = _batch(runs, scan.frame_buckets, wanted)
    absent = scan.frame_rows_without
    return batch.filter(_counting(absent, counts, listed=False)) if any(absent) else batch


def _batch(stored: Sequence[bytes], buckets: Sequence[int], wanted: WantedBatches) -> tuple[pa.RecordBatch, np.ndarray]:
    """All rows of runs, and the number of rows of each run."""
    topic, at, schema = wanted.topic, wanted.at, wanted.schema
    runs = _quickly(stored, buckets) or _carefully(stored, buckets)
    ts, counts, count = runs.ts, runs.counts, int(runs.counts.sum())
    made: dict[str, Callable[[], pa.Array]] = {
        "id": lambda: runs.ids,
        "topic": lambda: repeated([topic], np.array([count])),
        "bucket": lambda: _bucket_column(runs, buckets, wanted.buckets),
        "ts": lambda: pa.array(ts),
        "due": lambda: pa.array(ts * 1_000).view(pa.timestamp("us", tz="UTC")),
        "status": lambda: statuses(ts, np.zeros(count, dtype=bool), at),
        "priority": lambda: numbers(_column(runs, "priorities", 0), count),
        "attempts": lambda: numbers(_column(runs, "attempts", 0), count),
        "owner": lambda: repeated(runs.owners, counts),
        "headers": lambda: arrow_headers(_column(runs, "headers", b""), count),
        "body": lambda: _bodies(runs, count),
    }
    as_numbers: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: coded([topic], np.array([count])),
        "status": lambda: coded_statuses(ts, at),
        "owner": lambda: coded(runs.owners, counts),
    }
    columns = [(as_numbers if field.type == CODED else made)[field.name]() for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema), counts


def _bodies(runs: _Runs, count: int) -> pa.Array:
    if runs.bodies is None:
        return opened_bodies(_column(runs, "bodies", b""), count)
    bodies, may_be_packed = runs.bodies
    return opened_bodies(bodies, count) if may_be_packed else bodies


def _quickly(stored: Sequence[bytes], buckets: Sequence[int]) -> _Runs | None:
    """Parse the runs with vectors; None when any run has an unexpected form."""
    whole = wire.cut_all(stored)
    ids = _ids(whole, buckets) if whole else None
    if ids is None:
        whole = [one for one in map(wire.cut, stored) if one is not None]
        ids = _ids(whole, buckets) if stored and len(whole) == len(stored) else None
    if not whole or ids is None:
        return None
    bodies = wire.bodies_of(whole)
    return _Runs(
        counts=np.array([one.rows for one in whole], dtype=np.int64),
        owners=[one.owner for one in whole],
        ids=ids,
        counted=[one.counted for one in whole],
        ts=np.frombuffer(b"".join([one.ts for one in whole]), dtype="<i8"),
        rest=[] if bodies is not None else [records.Run.FromString(one.rest) for one in whole],
        bodies=bodies,
    )


def _ids(cuts: Sequence[wire.Cut], buckets: Sequence[int]) -> pa.Array | None:
    return _generated(cuts, buckets) if all(one.session for one in cuts) else wire.ids_of(cuts)


def _carefully(stored: Sequence[bytes], buckets: Sequence[int]) -> _Runs:
    """Parse the runs with the protocol's own parser, with one object per row."""
    runs = [records.Run.FromString(run) for run in stored]
    ids = [
        generated_ids(ProducerSession.unpack(run.session).prefix(bucket), run.first, len(run.ts))
        if run.session
        else pa.array(run.ids[:], pa.string())
        for run, bucket in zip(runs, buckets, strict=True)
    ]
    return _Runs(
        counts=np.array([len(run.ts) for run in runs], dtype=np.int64),
        owners=[run.owner for run in runs],
        ids=pa.concat_arrays(ids) if ids else pa.array([], pa.string()),
        counted=[run.counted for run in runs],
        ts=np.array(list(chain.from_iterable(run.ts[:] for run in runs)), dtype=np.int64),
        rest=runs,
        bodies=None,
    )


def _bucket_column(runs: _Runs, buckets: Sequence[int], count: int) -> pa.Array:
    """The bucket of each row: that of its run, or that of its id."""
    column = np.repeat(np.array(buckets, dtype=np.int32), runs.counts)
    if SPREAD in buckets:
        spread = column == SPREAD
        counted = spread & np.repeat(np.array(runs.counted, dtype=bool), runs.counts)
        natural = spread & ~counted
        hashes = map(bucket_hash, _chosen(runs.ids.cast(pa.binary()), natural))
        column[natural] = np.fromiter(hashes, dtype=np.int64) % count
        if counted.any():
            column[counted] = np.fromiter(map(bucket_in, _chosen(runs.ids, counted)), dtype=np.int32)
    return pa.array(column)


def _chosen(column: pa.Array, rows: np.ndarray) -> list[Any]:
    values: list[Any] = (column if rows.all() else column.filter(pa.array(rows))).to_pylist()
    return values


def _generated(cuts: Sequence[wire.Cut], buckets: Sequence[int]) -> pa.Array:
    return pa.concat_arrays(
        [
            generated_ids(ProducerSession.unpack(one.session).prefix(bucket), one.first, one.rows)
            for one, bucket in zip(cuts, buckets, strict=True)
        ]
    )


def _column(runs: _Runs, name: str, default: object) -> list[Any]:
    """An optional column of all runs; an empty list when no run has it."""
    columns = [getattr(run, name) for run in runs.rest]
    if not any(columns):
        return []
    counts = runs.counts.tolist()
    return list(
        chain.from_iterable(
            column[:] if column else [default] * count for column, count in zip(columns, counts, strict=True)
        )
    )


def _counting(masks: Sequence[bytes], counts: np.ndarray, *, listed: bool = True) -> pa.Array:
    """Which rows of the concatenated runs belong to the result: those in the masks, or those that are not in them.

    A mask that is empty is of a run whose rows all do.
    """
    parts = []
    for mask, count in zip(masks, counts, strict=True):
        bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[:count].astype(bool)
        part = np.full(count, not mask or not listed)
        part[: len(bits)] = bits if listed else ~bits
        parts.append(part)
    return pa.array(np.concatenate(parts))
