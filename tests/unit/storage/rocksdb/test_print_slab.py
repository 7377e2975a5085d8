"""One search finds the prints of all sorted runs that share a slab."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dejaq.storage.rocksdb.timeline.ids.columns import Entries
from dejaq.storage.rocksdb.timeline.ids.id_entries import FAN_IN
from dejaq.storage.rocksdb.timeline.ids.print_slab import (
    SLAB_ENTRIES_MAX,
    WINDOW_MAX,
    PrintSlab,
    RunPrints,
    SlabSearch,
    prints_for,
)

Prints = npt.NDArray[np.uint32]


def listed(prints: Prints, slab: PrintSlab | None, step: int = 100) -> RunPrints:
    """A complete run, to which some prints are added at a time; it may have had room for more."""
    run = prints_for(len(prints) + len(prints) // 3, slab, FAN_IN)
    for start in range(0, len(prints), step):
        run.add(prints[start : start + step])
    run.finish()
    return run


def expected(runs: list[Prints], wanted: Prints) -> set[tuple[int, int, int]]:
    return {
        (row, number, place)
        for row, one in enumerate(wanted.tolist())
        for number, prints in enumerate(runs)
        for place in np.flatnonzero(prints == one).tolist()
    }


@pytest.mark.parametrize("kind", ["even", "equal", "few", "ends"])
def test_a_search_finds_every_print_of_every_run(kind: str) -> None:
    """G5: also prints that occur often, or lie so close to each other that a run is searched by itself."""
    chance = np.random.default_rng(3)
    columns: list[Prints] = []
    for number in range(6):
        made = chance.integers(0, 1 << 32, 700 + 50 * number, dtype=np.uint32)
        if kind == "equal":
            made[: 3 * WINDOW_MAX] = 5_000_000
        elif kind == "few":
            made = made[: 1 + number]
        elif kind == "ends":
            made[:10], made[10:20] = 0, (1 << 32) - 1
        columns.append(np.sort(made))
    runs: list[RunPrints] = []
    for prints in columns:
        runs.append(listed(prints, runs[-1].slab if runs else None))
    assert len({id(run.slab) for run in runs}) < len(runs)
    slabs: dict[int, list[int]] = {}
    for number, run in enumerate(runs):
        slabs.setdefault(id(run.slab), []).append(number)
    some = np.concatenate([prints[::7] for prints in columns])
    absent = chance.integers(0, 1 << 32, 300, dtype=np.uint32)
    wanted = np.sort(np.concatenate((some, absent, np.array([0, 5_000_000, (1 << 32) - 1], dtype=np.uint32))))
    for numbers in slabs.values():
        rows, of_runs, places = SlabSearch([runs[number] for number in numbers]).find(wanted)
        found = list(zip(rows.tolist(), of_runs.tolist(), places.tolist(), strict=True))
        assert len(set(found)) == len(found)
        assert set(found) == expected([columns[number] for number in numbers], wanted)
        assert all(runs[numbers[0]].may_have(one) for one in columns[numbers[0]].tolist())


def test_a_slab_has_room_for_runs_that_are_merged_together() -> None:
    """A run that is larger than a slab should be has one for itself, and no slab is larger than that."""
    slab = PrintSlab(1_000, FAN_IN)
    parts = [slab.take(1_000) for _ in range(FAN_IN + 1)]
    assert None not in parts[:-1]
    assert parts[-1] is None
    assert len(PrintSlab(SLAB_ENTRIES_MAX // 2, FAN_IN).prints) == SLAB_ENTRIES_MAX
    assert len(prints_for(SLAB_ENTRIES_MAX + 1, None, FAN_IN).slab.prints) == SLAB_ENTRIES_MAX + 1


def test_nothing_is_found_in_no_entries() -> None:
    none = Entries(*(np.zeros(0, dtype=np.uint64) for _ in range(3)))
    run = prints_for(0)
    run.add(none.prints)
    run.finish()
    assert not len(run)
    assert not run.may_have(7)
