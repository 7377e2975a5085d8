"""When rows are stored in wide runs, and when wide runs are merged."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq.storage.rocksdb.timeline.index import YOUNG_MS


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """The thresholds of wide runs and merges; tests pass small ones, so that a few rows are merged."""

    # A batch of at least `wide_rows_min` rows that would have fewer than `cell_rows` per bucket and slice is one run.
    # If all of it lies in one slice, it is one run if it would have fewer than `bucket_rows` per bucket.
    cell_rows: int = 8
    bucket_rows: int = 2
    wide_rows_min: int = 8
    # Rows of such a batch that are due within this time are a run of their own, so that a run that lies far in the
    # future is not held in memory for them.
    near_ms: int = YOUNG_MS
    # So many wide runs of one level and place that overlap each other are merged, at most `merge_runs_max` at once.
    merge_runs: int = 32
    merge_runs_max: int = 64
    # As far ahead as this, `near_runs` that overlap are enough.
    near_merge_ms: int = 15 * 60_000
    near_runs: int = 8
    # Rows that are due this soon are left where they are.
    ending_ms: int = 2_000
    # How many rows and bytes a merged run has, and how many bytes are merged at once. To write 1,024 rows takes the
    # event loop about a millisecond.
    piece_rows: int = 1_024
    piece_bytes: int = 512 * 1024
    merge_bytes_max: int = 32 * 1024 * 1024
    # So many rows and bytes of a priority topic are merged at once, in one write.
    ready_rows_max: int = 4_096
    ready_bytes_max: int = 1024 * 1024
    # While so many runs that were never merged wait for it, each create waits `behind_s`.
    behind_runs: int = 8_192
    behind_s: float = 0.01
    # A row is rewritten so many times at most.
    levels: int = 3
