"""Converts the runs of a scan, as the broker stores them, to Arrow record batches: one column for all runs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from dejaq.domain.ids import ProducerSession
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


@dataclass
class _Runs:
    """The columns of some runs. `rest` are the runs that have optional columns; it may be empty. `bodies` says whether
    one of them may be packed.
    """

    counts: np.ndarray
    owners: list[str]
    ids: pa.Array
    ts: np.ndarray
    rest: Sequence[records.Run]
    bodies: tuple[pa.Array, bool] | None


def run_batch(scan: carrier.ScanColumns, topic: str, at: int, schema: pa.Schema = ARROW_SCHEMA) -> pa.RecordBatch:
    """The runs of one portion of a snapshot taken at `at`, with the columns of the schema."""
    runs = _quickly(scan) or _carefully(scan)
    ts, counts, count = runs.ts, runs.counts, int(runs.counts.sum())
    made: dict[str, Callable[[], pa.Array]] = {
        "id": lambda: runs.ids,
        "topic": lambda: repeated([topic], np.array([count])),
        "bucket": lambda: pa.array(np.repeat(np.array(scan.run_buckets, dtype=np.int32), counts)),
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
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return batch.filter(_counting(scan.run_rows, counts)) if any(scan.run_rows) else batch


def _bodies(runs: _Runs, count: int) -> pa.Array:
    if runs.bodies is None:
        return opened_bodies(_column(runs, "bodies", b""), count)
    bodies, may_be_packed = runs.bodies
    return opened_bodies(bodies, count) if may_be_packed else bodies


def _quickly(scan: carrier.ScanColumns) -> _Runs | None:
    """Parse the runs with vectors; None when any run has an unexpected form."""
    whole = wire.cut_all(scan.runs)
    if not whole:
        return None
    ids = _generated(whole, scan.run_buckets) if all(one.session for one in whole) else wire.ids_of(whole)
    if ids is None:
        return None
    bodies = wire.bodies_of(whole)
    return _Runs(
        counts=np.array([one.rows for one in whole], dtype=np.int64),
        owners=[one.owner for one in whole],
        ids=ids,
        ts=np.frombuffer(b"".join([one.ts for one in whole]), dtype="<i8"),
        rest=[] if bodies is not None else [records.Run.FromString(one.rest) for one in whole],
        bodies=bodies,
    )


def _carefully(scan: carrier.ScanColumns) -> _Runs:
    """Parse the runs with the protocol's own parser, with one object per row."""
    runs = [records.Run.FromString(run) for run in scan.runs]
    ids = [
        generated_ids(ProducerSession.unpack(run.session).prefix(bucket), run.first, len(run.ts))
        if run.session
        else pa.array(run.ids[:], pa.string())
        for run, bucket in zip(runs, scan.run_buckets, strict=True)
    ]
    return _Runs(
        counts=np.array([len(run.ts) for run in runs], dtype=np.int64),
        owners=[run.owner for run in runs],
        ids=pa.concat_arrays(ids) if ids else pa.array([], pa.string()),
        ts=np.array(list(chain.from_iterable(run.ts[:] for run in runs)), dtype=np.int64),
        rest=runs,
        bodies=None,
    )


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


def _counting(masks: Sequence[bytes], counts: np.ndarray) -> pa.Array:
    """Which rows of the concatenated runs belong to the result."""
    parts = [
        np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=int(count), bitorder="little").astype(bool)
        if mask
        else np.ones(count, dtype=bool)
        for mask, count in zip(masks, counts, strict=True)
    ]
    return pa.array(np.concatenate(parts))
