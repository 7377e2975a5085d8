"""Counting rows in many short ranges of time: each run is read once, and its times are compared as a column."""

from __future__ import annotations

import numpy as np

from dejaq.storage.rocksdb.reading.querying import Tally
from dejaq.storage.rocksdb.reading.snapshot import RocksSnapshot
from dejaq.storage.rocksdb.timeline import masks


async def tally_rows(snapshot: RocksSnapshot, tally: Tally) -> None:
    """Add the rows in the unread ranges, leased ones by their own time included; other tasks run meanwhile."""
    bottoms = np.array([bottom for bottom, _ in tally.unread], dtype=np.int64)
    tops = np.array([top for _, top in tally.unread], dtype=np.int64)
    async for run in snapshot.runs_in(tally.unread, tally.owner):
        ts = np.array(run.record.ts, dtype=np.int64)
        if run.live != masks.full(run.count):
            ts = ts[list(masks.rows(run.live))]
        places = np.searchsorted(bottoms, ts, side="right") - 1
        ts = ts[(places >= 0) & (ts < tops[places])]
        # A count has one step, which is longer than any time that numpy knows.
        starts = ts - (ts - tally.start) % tally.step if tally.step < 2**62 else ts[:1].repeat(len(ts))
        for start, count in zip(*np.unique(starts, return_counts=True), strict=True):
            tally.add(int(start), int(count))
