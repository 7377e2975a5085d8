"""Finds messages of the far future by id, as columns: one search of the entries, and one read per group of rows.

A row is found here if its run is neither in memory nor has a lease, which holds for nearly all messages that are not
due soon. `directory.Finder` finds the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.timeline.far.far_rows import NO_ROWS, Column, FarRows, FoundRows, joined_far, joined_rows
from dejaq.storage.rocksdb.timeline.far.group_search import WantedRows, find_rows
from dejaq.storage.rocksdb.timeline.far.stored_run import StoredRun
from dejaq.storage.rocksdb.timeline.ids.hashing import characters_of, hash_column
from dejaq.storage.rocksdb.timeline.ids.id_entries import ArrivalColumns

if TYPE_CHECKING:
    from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# So few rows are found one by one.
_FEW_ROWS = 8


def find_far(state: TopicState, ids: Sequence[str]) -> FarRows:
    """The rows of those ids whose messages are in such runs, in any order."""
    ahead = state.runs.stored.take_ahead()
    if ahead is None or ahead.ids is not ids:
        return _find_now(state, ids)
    rows = _still_there(state, ahead.rows)
    if len(rows) == len(ids):
        return rows
    known = set(rows.items.tolist())
    left = [item for item in range(len(ids)) if item not in known]
    found = _find_now(state, [ids[item] for item in left])
    return joined_far([rows, replace(found, items=np.array(left, dtype=np.int64)[found.items])])


def _still_there(state: TopicState, rows: FarRows) -> FarRows:
    """The rows that were found before and are where they were."""
    runs, stored, on_run = rows.runs, state.runs.stored, state.leases.on_run
    same = [stored.knows(run) and state.runs.kept(run.key) is None and not on_run(run.key) for run in runs]
    pairs = zip(rows.of_runs.tolist(), rows.rows.tolist(), strict=True)
    good = [same[number] and runs[number].live >> row & 1 == 1 for number, row in pairs]
    return rows if all(good) else rows.picked(np.flatnonzero(good))


def _find_now(state: TopicState, ids: Sequence[str]) -> FarRows:
    if state.topic.by_priority or state.runs.is_sharing or not state.index.has_entries:
        return NO_ROWS
    hashes = hash_column(ids)
    arrivals = state.index.arrivals_of(hashes)
    at, run_keys = _runs_of(state, arrivals)
    runs, of_runs = _stored_runs(state, run_keys)
    usable = of_runs >= 0
    at, of_runs = at[usable], of_runs[usable]
    if not len(at):
        return NO_ROWS
    items, times = arrivals.rows[at], arrivals.times[at]
    characters = characters_of(ids) if len(at) > _FEW_ROWS else None
    wanted = WantedRows(of_runs, times, items, ids, characters)
    found = joined_rows(list(_find(state.database, runs, wanted)))
    _, firsts = np.unique(items[found.at], return_index=True)
    rows = FarRows(
        items=items[found.at],
        runs=runs,
        of_runs=of_runs[found.at],
        rows=found.rows,
        times=times[found.at],
        versions=arrivals.numbers[at][found.at],
        hashes=hashes[items[found.at]],
        bodies=found.bodies,
        priorities=found.priorities,
        headers=found.headers,
    )
    # Ids with the same hash have entries that look alike.
    return rows if len(firsts) == len(rows) else rows.picked(firsts)


def _find(database: RocksDatabase, runs: Sequence[StoredRun], wanted: WantedRows) -> Iterator[FoundRows]:
    """Find rows in runs that are bytes of a file together, and rows of the other runs one by one."""
    if len(wanted.runs) <= _FEW_ROWS:
        yield from wanted.one_by_one(database, runs, np.arange(len(wanted.runs)))
        return
    in_file = np.array([run.is_in_file(database) for run in runs], dtype=np.bool_)[wanted.runs]
    together = np.flatnonzero(in_file)
    if len(together):
        some = wanted._replace(runs=wanted.runs[together], times=wanted.times[together], items=wanted.items[together])
        for found in find_rows(database, runs, some):
            yield found._replace(at=together[found.at])
    yield from wanted.one_by_one(database, runs, np.flatnonzero(~in_file))


def _stored_runs(state: TopicState, run_keys: Sequence[bytes]) -> tuple[list[StoredRun], Column]:
    """The runs with these keys that are only on disk, and for each key which of them it is, or -1."""
    numbers = dict.fromkeys(run_keys, -1)
    runs: list[StoredRun] = []
    stored = list(numbers)
    if not (state.runs.has_none(numbers) and state.leases.has_none(numbers)):
        stored = [key for key in stored if state.runs.kept(key) is None and not state.leases.on_run(key)]
    for run in state.runs.stored.read(stored):
        if not run.is_rare:
            numbers[run.key] = len(runs)
            runs.append(run)
    return runs, np.array([numbers[key] for key in run_keys], dtype=np.int64)


def _runs_of(state: TopicState, arrivals: ArrivalColumns) -> tuple[Column, list[bytes]]:
    """The runs that may have a row of each arrival: pairs of a position among them and the key of a run."""
    moved, key_of = state.moved, state.wide.key_of
    numbers: list[int] = arrivals.numbers.tolist()
    found = [key_of(number) for number in numbers]
    at = [row for row, key in enumerate(found) if key is not None]
    run_keys = [key for key in found if key is not None]
    elsewhere = [row for row, number in enumerate(numbers) if number in moved]
    if elsewhere:
        if len(elsewhere) <= _FEW_ROWS:
            pairs = [(row, key) for row in elsewhere for key in moved.runs_of(numbers[row], int(arrivals.times[row]))]
            rows, pieces = [row for row, _ in pairs], [key for _, key in pairs]
        else:
            found_at, pieces = moved.runs_of_rows([numbers[row] for row in elsewhere], arrivals.times[elsewhere])
            rows = [elsewhere[row] for row in found_at]
        at += rows
        run_keys += pieces
    # A run whose rows moved, and that is not among the wide runs, has no row any more.
    unknown = [row for row, key in enumerate(found) if key is None and numbers[row] not in moved]
    for row, place in zip(unknown, state.index.places([numbers[row] for row in unknown]), strict=True):
        if place is not None:
            at.append(row)
            run_keys.append(keys.at_place(keys.RUN, state.topic.number, place))
    return np.array(at, dtype=np.int64), run_keys
