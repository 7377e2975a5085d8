"""One search of all sorted runs of a topic: slab by slab, instead of run by run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.timeline.ids.columns import (
    ENTRY_BYTES,
    NO_ENTRIES,
    Entries,
    Prints,
    Rows,
    entries_at,
    positions,
)
from dejaq.storage.rocksdb.timeline.ids.pieces import WantedPieces, read_pieces
from dejaq.storage.rocksdb.timeline.ids.print_slab import SlabSearch
from dejaq.storage.rocksdb.timeline.ids.sorted_run import SortedRun

# So few prints are looked for in those runs whose filters have one of them.
_FEW_PRINTS = 8
_BEGIN = np.ones(1, dtype=np.bool_)


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
        self._piece_entries = np.array([run.piece_entries for run in self._runs], dtype=np.int64)
        self._counts = np.array([len(run) for run in self._runs], dtype=np.int64)
        self._pieces = [run.pieces for run in self._runs]
        pieces = np.array([len(one.origins) for one in self._pieces], dtype=np.int64)
        self._first_pieces = np.cumsum(pieces) - pieces
        self._origins = np.concatenate([one.origins for one in self._pieces])
        self._checks = np.concatenate([one.checks for one in self._pieces])

    def find(self, database: RocksDatabase, prints: Prints) -> tuple[Rows, Entries]:
        """The entries with prints, which are in order, and of each the position of its print; hashes may differ."""
        if len(prints) <= _FEW_PRINTS:
            rows, of_runs, places = self._find_few(prints)
        else:
            parts = []
            for search, first in zip(self._searches, self._firsts, strict=True):
                at, numbers, within = search.find(prints)
                parts.append((at, numbers + first, within))
            rows, of_runs, places = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        if not len(rows):
            return rows, NO_ENTRIES
        pieces, places = np.divmod(places, self._piece_entries[of_runs])
        # The positions in a run are nearly in order, and a piece that is read twice is read from memory.
        begins = np.concatenate((_BEGIN, (pieces[1:] != pieces[:-1]) | (of_runs[1:] != of_runs[:-1])))
        which = np.cumsum(begins) - 1
        of_runs, pieces = of_runs[begins], pieces[begins]
        entries = self._piece_entries[of_runs]
        entries = np.minimum(self._counts[of_runs] - pieces * entries, entries)
        at = self._first_pieces[of_runs] + pieces
        wanted = WantedPieces(of_runs, pieces, entries * ENTRY_BYTES, self._origins[at], self._checks[at])
        read = read_pieces(database, self._pieces, wanted)
        return rows, entries_at(read.words, read.begins[which] + places, entries[which])

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
