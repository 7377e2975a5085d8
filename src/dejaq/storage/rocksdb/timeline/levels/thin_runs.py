"""The runs of a priority topic that are worth merging, and which of them are merged next.

A batch with many priorities becomes runs of a few rows, each within a *block*: an aligned range of priorities. So the
runs of many batches in one block have all rows of these priorities, and a merge takes whole runs and writes each row
once. It waits until there are many runs in a block, unless a lease had to take single rows from many runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dejaq.storage.rocksdb.timeline.levels.planning import MergePlan
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.levels.wide_runs import Ids, Shelf, WideRun
from dejaq.storage.rocksdb.timeline.run import BLOCK_BITS, Run

# A run with so many rows is not thin.
THIN_ROWS = 256
# A run with fewer rows counts for the largest block.
_FEW_ROWS = 16
_GENERATED = (Ids.GENERATED, Ids.GENERATED_ELSEWHERE)
# So many runs are remembered; a lease that finds others adds them, once these are merged.
_RUNS_MAX = 1 << 16


class Block(NamedTuple):
    """An aligned range of priorities, for runs of one producer group that were merged equally often.

    `bucket` is that of the merged rows: SPREAD, unless many consumers share the buckets.
    """

    bucket: int
    first: int
    bits: int
    owner: int
    level: int
    generated: bool


class ThinRuns:
    """The thin runs of one topic by block."""

    def __init__(self, settings: LevelSettings) -> None:
        self._settings = settings
        # The number of rows of each run, and its bytes.
        self._blocks: dict[Block, dict[bytes, tuple[int, int]]] = {}
        self._block_of: dict[bytes, Block] = {}
        # Blocks that have many runs, in the order in which they had them.
        self._full: dict[Block, None] = {}
        # Whether leases take single rows of many runs.
        self.wanted = False

    def __contains__(self, key: bytes) -> bool:
        return key in self._block_of

    @property
    def waiting(self) -> bool:
        """Whether there may be something to merge."""
        return bool(self._full or self.wanted)

    def add(self, run: Run, known: WideRun | None, bucket: int) -> None:
        """Remember a run if it is thin, and its rows were never leased; merged, they lie in this bucket.

        `known` is the extent of the run, if it has one.
        """
        if not _is_thin(run) or run.key in self._block_of or len(self._block_of) >= _RUNS_MAX:
            return
        block = _block_of(run, known, bucket)
        if block.level >= self._settings.levels:
            return
        runs = self._blocks.setdefault(block, {})
        runs[run.key] = run.count, run.size
        self._block_of[run.key] = block
        if len(runs) >= self._settings.merge_runs:
            self._full[block] = None

    def discard(self, key: bytes) -> None:
        """Forget a run that has gone, if it is remembered."""
        block = self._block_of.pop(key, None)
        if block is None:
            return
        runs = self._blocks[block]
        del runs[key]
        if len(runs) < self._settings.merge_runs:
            self._full.pop(block, None)
        if not runs:
            del self._blocks[block]

    def set_aside(self, run_keys: Iterable[bytes]) -> None:
        """Merge these no more, as far as they are there: what could be moved was moved."""
        for key in run_keys:
            self.discard(key)

    def want(self) -> None:
        """Merge the next runs soon, also where there are few."""
        self.wanted = True

    def next_merge(self, is_young: Callable[[bytes], bool]) -> MergePlan | None:
        """The runs to merge next: those of the most urgent block if leases want it, or of a block with many."""
        block = self._most_urgent() or next(iter(self._full), None)
        if block is None:
            return None
        chosen: list[bytes] = []
        rows = size = 0
        for key, (count, run_bytes) in self._blocks[block].items():
            rows, size = rows + count, size + run_bytes
            if chosen and (rows > self._settings.ready_rows_max or size > self._settings.ready_bytes_max):
                rows, size = rows - count, size - run_bytes
                break
            chosen.append(key)
            if len(chosen) >= self._settings.merge_runs_max:
                break
        young = not block.generated and is_young(chosen[0])
        shelf = Shelf(block.bucket, block.owner, block.level, block.generated, young, by_priority=True)
        return MergePlan(shelf, chosen, near=True, waiting=0, row_bytes=size // rows + 1)

    def _most_urgent(self) -> Block | None:
        """The first block that has several runs, while leases want it."""
        if not self.wanted:
            return None
        several = self._several()
        self.wanted = bool(several)
        return min(several, key=_first_of, default=None)

    def is_behind(self, priority: int) -> bool:
        """Whether the rows of this priority, or of lower ones, are to be merged."""
        return any(block.first <= priority for block in self._several())

    def _several(self) -> list[Block]:
        least = self._settings.near_runs
        return [block for block, runs in self._blocks.items() if len(runs) >= least]


def _is_thin(run: Run) -> bool:
    """Whether a run has few rows of several priorities, or very few, none of which was leased or has a body apart."""
    record = run.record
    return (
        (run.mixed or run.count < _FEW_ROWS)
        and run.count < THIN_ROWS
        and not (record.attempts or record.firsts or record.lasts or record.apart)
    )


def _first_of(block: Block) -> int:
    return block.first


def _block_of(run: Run, known: WideRun | None, bucket: int) -> Block:
    """The smallest block that has all rows of a run; of a run with very few rows, a large one."""
    priorities = run.record.priorities
    first, last = (priorities[0], priorities[-1]) if priorities else (0, 0)
    bits = BLOCK_BITS if run.count < _FEW_ROWS else min((first ^ last).bit_length(), BLOCK_BITS)
    level, generated = (0, run.generated) if known is None else (known.level, known.ids in _GENERATED)
    return Block(bucket, first >> bits << bits, bits, run.owner, level, generated)
