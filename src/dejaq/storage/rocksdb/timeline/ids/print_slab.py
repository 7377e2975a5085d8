"""The prints of several sorted runs in one column, so that one search serves all of these runs.

A search of numpy costs about the same for one run as for eight, as long as few prints are looked for. The runs of one
level that will be merged together share a slab, and its memory is released with the last of them.

Each run has a filter, of which one bit stands for a range of prints, and *fences*: of each so many such ranges, the
position of the first print. A print whose bit is set is compared with all prints between two fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dejaq.storage.rocksdb.timeline.ids.columns import Prints, Rows, positions

# A run has a bit for each value of so many more bits than its length needs: most prints that it lacks are seen there.
_FILTER_BITS = 3
# So many ranges of the filter are between two fences.
_FENCE_BITS = 7
_PRINT_BITS = 32
# A slab has at most so many prints, unless a single run has more.
SLAB_ENTRIES_MAX = 16 * 1024 * 1024
# Between two fences are mostly about ten prints. Where prints are so unevenly distributed that there are more than
# these, the run is searched by itself.
WINDOW_MAX = 64

_PRINT_BYTES = 4
_WINDOW = np.arange(WINDOW_MAX)


class _Sizes(NamedTuple):
    """What a run with so many entries has: the bits of a range's number, the bytes of its filter, and its fences."""

    bits: int
    filter_bytes: int
    fences: int


def _sizes_of(entries_max: int) -> _Sizes:
    bits = min(_PRINT_BITS, max(_FENCE_BITS + 1, entries_max.bit_length() + _FILTER_BITS))
    return _Sizes(bits, 1 << bits - 3, (1 << bits - _FENCE_BITS) + 1)


class RunPrints:
    """The prints of one run, which are added in order, in its part of a slab."""

    def __init__(self, slab: PrintSlab, start: int, filter_start: int, fence_start: int, entries_max: int) -> None:
        sizes = _sizes_of(entries_max)
        self.slab, self.start, self.filter_start, self.fence_start = slab, start, filter_start, fence_start
        self.shift = _PRINT_BITS - sizes.bits
        self._column = slab.prints[start : start + entries_max]
        self._bits = slab.bits[filter_start : filter_start + sizes.filter_bytes]
        self._bytes = memoryview(self._bits)  # type: ignore[arg-type]
        self._fences = slab.fences[fence_start : fence_start + sizes.fences]
        self.count = self._next_fence = 0

    def __len__(self) -> int:
        return self.count

    @property
    def room(self) -> int:
        """How many prints there may be."""
        return len(self._column)

    @property
    def prints(self) -> Prints:
        """The prints in order."""
        return self._column[: self.count]

    @property
    def memory_bytes(self) -> int:
        """The memory of what was added; the rest is not used yet."""
        done = self.count / max(1, len(self._column))
        return _PRINT_BYTES * self.count + int(done * (self._bits.nbytes + self._fences.nbytes))

    def add(self, prints: Prints) -> None:
        """Add prints, none of which is smaller than one that was added."""
        if not len(prints):
            return
        start, end = self.count, self.count + len(prints)
        self._column[start:end] = prints
        ranges = prints >> np.uint32(self.shift)
        np.bitwise_or.at(self._bits, ranges >> np.uint32(3), bit_of(ranges))
        following = (int(ranges[-1]) >> _FENCE_BITS) + 1
        if following > self._next_fence:
            firsts = np.arange(self._next_fence, following, dtype=np.uint32) << np.uint32(_FENCE_BITS)
            self._fences[self._next_fence : following] = ranges.searchsorted(firsts) + (self.start + start)
            self._next_fence = following
        self.count = end

    def finish(self) -> None:
        """All prints were added."""
        self._fences[self._next_fence :] = self.start + self.count

    def may_have(self, one: int) -> bool:
        """Whether the run may have a print."""
        place = one >> self.shift
        return bool(self._bytes[place >> 3] >> (place & 7) & 1)


def bit_of(ranges: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """The bit of each range in its byte of a filter."""
    return np.left_shift(np.uint8(1), (ranges & np.uint32(7)).astype(np.uint8))


class PrintSlab:
    """Room for the prints of several runs."""

    def __init__(self, entries: int, runs: int = 1) -> None:
        """Room for so many runs with so many entries each; fewer, where that would be very many entries."""
        runs = max(1, min(runs, SLAB_ENTRIES_MAX // max(1, entries)))
        sizes = _sizes_of(entries)
        # Memory that is never written to is not used.
        self.prints: Prints = np.empty(runs * entries, dtype=np.uint32)
        self.bits: npt.NDArray[np.uint8] = np.zeros(runs * sizes.filter_bytes, dtype=np.uint8)
        self.fences: npt.NDArray[np.uint32] = np.empty(runs * sizes.fences, dtype=np.uint32)
        self._entries = self._filter_bytes = self._fences = 0

    def take(self, entries_max: int) -> RunPrints | None:
        """Room for a run with at most so many entries; None if there is not enough left."""
        sizes = _sizes_of(entries_max)
        part = self._entries, self._filter_bytes, self._fences
        ends = part[0] + entries_max, part[1] + sizes.filter_bytes, part[2] + sizes.fences
        room = len(self.prints), len(self.bits), len(self.fences)
        if any(end > size for end, size in zip(ends, room, strict=True)):
            return None
        self._entries, self._filter_bytes, self._fences = ends
        return RunPrints(self, *part, entries_max)


def prints_for(entries_max: int, slab: PrintSlab | None = None, runs: int = 1) -> RunPrints:
    """Room for a run in a slab, or in a new one for so many of its kind if that has not enough left."""
    taken = slab.take(entries_max) if slab is not None else None
    if taken is None:
        taken = PrintSlab(entries_max, runs).take(entries_max)
        assert taken is not None
    return taken


class SlabSearch:
    """A search of some complete runs of one slab."""

    def __init__(self, runs: Sequence[RunPrints]) -> None:
        self._runs, self._slab = runs, runs[0].slab
        self._starts = np.array([run.start for run in runs], dtype=np.int64)
        # In columns, so that there is a row for each run.
        self._filters = np.array([[run.filter_start] for run in runs], dtype=np.int64)
        self._fences = np.array([run.fence_start for run in runs], dtype=np.int64)
        self._shifts = np.array([[run.shift] for run in runs], dtype=np.uint32)

    def find(self, wanted: Prints) -> tuple[Rows, Rows, Rows]:
        """Which of the prints, in order, the runs have: a position in `wanted`, which run, and the position in it."""
        slab, ranges = self._slab, wanted >> self._shifts
        bits = slab.bits.take((ranges >> np.uint32(3)) + self._filters)
        of_runs, rows = np.nonzero(bits & bit_of(ranges))
        fences = self._fences[of_runs] + (ranges[of_runs, rows] >> np.uint32(_FENCE_BITS))
        low = slab.fences.take(fences).astype(np.int64)
        widths = slab.fences.take(fences + 1) - low
        most = int(widths.max(initial=0))
        if most > WINDOW_MAX:
            return self._find_uneven(wanted, of_runs, rows)
        window = _WINDOW[:most]
        same = slab.prints.take(low[:, None] + window, mode="clip") == wanted[rows][:, None]
        found, behind = np.nonzero(same & (window < widths[:, None]))
        of_runs = of_runs[found]
        return rows[found], of_runs, low[found] + behind - self._starts[of_runs]

    def _find_uneven(self, wanted: Prints, of_runs: Rows, rows: Rows) -> tuple[Rows, Rows, Rows]:
        """The same, run by run."""
        parts: list[tuple[Rows, Rows, Rows]] = []
        for number, run in enumerate(self._runs):
            some = rows[of_runs == number]
            found, places = positions(run.prints, wanted[some])
            parts.append((some[found], np.full(len(found), number), places))
        at, numbers, places = map(np.concatenate, zip(*parts, strict=True))
        return at, numbers, places
