"""Which rows of a batch are stored together as wide runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings

Times = npt.NDArray[np.int64]
# Of about so many rows the slices are counted first.
_SAMPLE_ROWS = 64


def is_scattered(settings: LevelSettings, ts: Times, buckets: int) -> bool:
    """Whether the rows, whose times are given in any order, would fill many pairs of bucket and slice with few rows."""
    rows = len(ts)
    if rows < settings.wide_rows_min:
        return False
    slices = int(ts.max()) // keys.SLICE_MS - int(ts.min()) // keys.SLICE_MS + 1
    if slices * settings.cell_rows > rows:
        # Only now is it worth while to count them; mostly a few rows lie in enough slices.
        some = len(set((ts[:: rows // _SAMPLE_ROWS + 1] // keys.SLICE_MS).tolist()))
        if some > 1 and rows < some * buckets * settings.cell_rows:
            return True
        ordered = np.sort(ts // keys.SLICE_MS)
        slices = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
    if slices == 1:
        # Consumers that share the buckets lease such rows faster if they lie by bucket.
        return buckets > 1 and rows < buckets * settings.bucket_rows
    return rows < slices * buckets * settings.cell_rows


def near_and_far(settings: LevelSettings, ts: Times, now: int) -> Iterator[tuple[int, int]]:
    """Rows that are sorted by time as the ranges that become runs: what is due soon, and the rest."""
    far = bisect_left(ts, now + settings.near_ms)
    if far > 0:
        yield 0, far
    if len(ts) > far:
        yield far, len(ts)
