"""Runs of a scan, as the broker stores them, as Arrow record batches: a column of all runs is made at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from dejaq.domain.ids import ProducerSession
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records
from pyspark_dejaq.columns import ARROW_SCHEMA, arrow_headers, generated_ids, numbers, opened_bodies, repeated, statuses


def run_batch(scan: carrier.ScanColumns, topic: str, at: int) -> pa.RecordBatch:
    """The runs of one portion of a snapshot taken at `at`."""
    runs = [records.Run.FromString(run) for run in scan.runs]
    counts = np.array([len(run.ts) for run in runs], dtype=np.int64)
    count = int(counts.sum())
    ts = np.array(list(chain.from_iterable(run.ts[:] for run in runs)), dtype=np.int64)
    columns = [
        _ids(runs, scan.run_buckets),
        pa.repeat(pa.scalar(topic), count),
        pa.array(np.repeat(np.array(scan.run_buckets, dtype=np.int32), counts)),
        pa.array(ts),
        pa.array(ts * 1_000).view(pa.timestamp("us", tz="UTC")),
        statuses(ts, np.zeros(count, dtype=bool), at),
        numbers(_column(runs, "priorities", 0), count),
        numbers(_column(runs, "attempts", 0), count),
        repeated([run.owner for run in runs], counts),
        arrow_headers(_column(runs, "headers", b""), count),
        opened_bodies(_column(runs, "bodies", b""), count),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
    return batch.filter(_counting(scan.run_rows, counts)) if any(scan.run_rows) else batch


def _ids(runs: Sequence[records.Run], buckets: Sequence[int]) -> pa.Array:
    if not any(run.session for run in runs):
        return pa.array(list(chain.from_iterable(run.ids[:] for run in runs)), pa.string())
    parts = [
        generated_ids(ProducerSession.unpack(run.session).prefix(bucket), run.first, len(run.ts))
        if run.session
        else pa.array(run.ids[:], pa.string())
        for run, bucket in zip(runs, buckets, strict=True)
    ]
    return pa.concat_arrays(parts)


def _column(runs: Sequence[records.Run], name: str, default: object) -> list[Any]:
    """A column of all runs; nothing where no run has it."""
    columns = [getattr(run, name) for run in runs]
    if not any(columns):
        return []
    return list(
        chain.from_iterable(
            column[:] if column else [default] * len(run.ts) for run, column in zip(runs, columns, strict=True)
        )
    )


def _counting(masks: Sequence[bytes], counts: np.ndarray) -> pa.Array:
    """Which rows count, of all runs in a row."""
    parts = [
        np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=int(count), bitorder="little").astype(bool)
        if mask
        else np.ones(count, dtype=bool)
        for mask, count in zip(masks, counts, strict=True)
    ]
    return pa.array(np.concatenate(parts))
