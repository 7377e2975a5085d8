"""Which rows of a batch are stored together as wide runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings


def is_scattered(settings: LevelSettings, ts: Sequence[int], buckets: int) -> bool:
    """Whether the rows, whose times are given in any order, would fill many pairs of bucket and slice with few rows."""
    rows = len(ts)
    if rows < settings.wide_rows_min:
        return False
    slices = max(ts) // keys.SLICE_MS - min(ts) // keys.SLICE_MS + 1
    if slices * settings.cell_rows > rows:
        # Only now is it worth while to count them.
        slices = len({at // keys.SLICE_MS for at in ts})
    if slices == 1:
        # Consumers that share the buckets lease such rows faster if they lie by bucket.
        return buckets > 1 and rows < buckets * settings.bucket_rows
    return rows < slices * buckets * settings.cell_rows


def near_and_far(
    settings: LevelSettings, ts: Sequence[int], start: int, end: int, now: int
) -> Iterator[tuple[int, int]]:
    """Rows start to end-1, sorted by time, as the ranges that become runs: what is due soon, and the rest."""
    far = bisect_left(ts, now + settings.near_ms, start, end)
    if far > start:
        yield start, far
    if end > far:
        yield far, end
