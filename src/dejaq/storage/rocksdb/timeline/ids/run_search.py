"""One search of all sorted runs of a topic: slab by slab, instead of run by run."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.ids.columns import Prints, Rows, positions
from dejaq.storage.rocksdb.timeline.ids.print_slab import SlabSearch
from dejaq.storage.rocksdb.timeline.ids.sorted_run import SortedRun

# So few prints are looked for in those runs whose filters have one of them.
_FEW_PRINTS = 8
_BEGIN = np.ones(1, dtype=np.bool_)
_NUMBERS = Struct(">QQ")


class FoundPrints(NamedTuple):
    """The keys of pieces of entries; and of each entry that was found the row of its print, its piece and its place."""

    keys: list[bytes]
    rows: Rows
    pieces: Rows
    places: Rows


class RunSearch:
    """A search of some runs."""

    def __init__(self, runs: Sequence[SortedRun]) -> None:
        slabs: dict[int, list[SortedRun]] = {}
        for run in runs:
            slabs.setdefault(id(run.listed.slab), []).append(run)
        # In the order of the searches.
        self._runs = [run for some in slabs.values() for run in some]
        self._searches = [SlabSearch([run.listed for run in some]) for some in slabs.values()]
        sizes = [len(some) for some in slabs.values()]
        self._firsts = [sum(sizes[:number]) for number in range(len(sizes))]
        self._numbers = np.array([run.number for run in self._runs], dtype=np.int64)
        self._piece_entries = np.array([run.piece_entries for run in self._runs], dtype=np.int64)
        self._prefix = keys.of_topic(keys.ID_PIECE, runs[0].topic)

    def find(self, prints: Prints) -> FoundPrints:
        """The entries with prints, which are in order; they may be of other hashes."""
        if len(prints) <= _FEW_PRINTS:
            rows, of_runs, places = self._find_few(prints)
        else:
            parts = []
            for search, first in zip(self._searches, self._firsts, strict=True):
                at, numbers, within = search.find(prints)
                parts.append((at, numbers + first, within))
            rows, of_runs, places = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        pieces, places = np.divmod(places, self._piece_entries[of_runs])
        # The positions in a run are nearly in order, and a piece that is read twice is read from memory.
        begins = np.concatenate((_BEGIN, (pieces[1:] != pieces[:-1]) | (of_runs[1:] != of_runs[:-1])))[: len(pieces)]
        names = np.stack((self._numbers[of_runs[begins]], pieces[begins]), axis=1).astype(">u8").tobytes()
        prefix, size = self._prefix, _NUMBERS.size
        named = [prefix + names[start : start + size] for start in range(0, len(names), size)]
        return FoundPrints(named, rows, np.cumsum(begins) - 1, places)

    def _find_few(self, prints: Prints) -> tuple[Rows, Rows, Rows]:
        """Of each print which one it is, the number of its run, and its position there."""
        few: list[int] = prints.tolist()
        found: list[tuple[int, int, int]] = []
        for number, run in enumerate(self._runs):
            if any(map(run.listed.may_have, few)):
                at, places = positions(run.prints, prints)
                found += zip(at.tolist(), [number] * len(at), places.tolist(), strict=True)
        columns = np.array(found, dtype=np.int64).reshape(-1, 3)
        return columns[:, 0], columns[:, 1], columns[:, 2]
