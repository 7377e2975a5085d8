"""Finds messages of the far future by id: one search of the entries for all ids, and one read per run.

A row is found here if its run is neither in memory nor has a lease, which holds for nearly all messages that are not
due soon. `directory.Finder` finds the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.far.stored_run import StoredRun
from dejaq.storage.rocksdb.timeline.ids.hashing import bucket_of_hash, hash_column
from dejaq.storage.rocksdb.timeline.ids.id_entries import Arrival

if TYPE_CHECKING:
    from dejaq.storage.rocksdb.timeline.topic_state import TopicState


class FarRow(NamedTuple):
    """One row of such a run, which was never leased; `version` is also the number of the run in which it arrived."""

    run: StoredRun
    owner: str
    row: int
    ts: int
    version: int
    hashed: int
    body: bytes
    priority: int
    headers: bytes

    def bucket(self, buckets: int) -> int:
        """The bucket of the row in a topic with so many buckets."""
        run_bucket = keys.bucket_of(self.run.key)
        return bucket_of_hash(self.hashed, buckets) if run_bucket == keys.SPREAD else run_bucket


# The position of an id among those that are looked for, the number of the run in which it arrived, and its time.
_Wanted = tuple[int, int, int]


def find_far(state: TopicState, ids: Sequence[str]) -> dict[int, FarRow]:
    """The rows of the ids whose messages are in such runs, by the position of the id."""
    if state.topic.by_priority or state.runs.is_sharing or not state.index.has_entries:
        return {}
    hashed = hash_column(ids)
    wanted = _runs_of(state, state.index.arrivals_of(hashed))
    hashes: list[int] = hashed.tolist()
    stored = [key for key in wanted if state.runs.kept(key) is None and not state.leases.on_run(key)]
    found: dict[int, FarRow] = {}
    database = state.database
    for run in state.runs.stored.read(stored):
        if run.is_rare:
            continue
        owner = state.owners.name(keys.owner_of(run.key))
        for item, number, ts in wanted[run.key]:
            at = run.find(database, ts, ids[item])
            if at is not None:
                found[item] = FarRow(run, owner, at[0], ts, number, hashes[item], *at[1])
    return found


def _runs_of(state: TopicState, arrivals: dict[int, list[Arrival]]) -> dict[bytes, list[_Wanted]]:
    """The runs that may have a row of each id."""
    moved = state.moved
    places = _places(state, {number for entries in arrivals.values() for number, _ in entries})
    wanted: dict[bytes, list[_Wanted]] = {}
    for item, entries in arrivals.items():
        for number, ts in entries:
            key = places.get(number)
            if key is not None:
                wanted.setdefault(key, []).append((item, number, ts))
            if number in moved:
                for key in moved.runs_of(number, ts):
                    wanted.setdefault(key, []).append((item, number, ts))
    return wanted


def _places(state: TopicState, numbers: set[int]) -> dict[int, bytes]:
    """The keys of the runs with these numbers, as far as they exist."""
    known = {number: key for number in numbers if (key := state.wide.key_of(number)) is not None}
    # A run whose rows moved, and that is not among the wide runs, has no row any more.
    unknown = [number for number in numbers if number not in known and number not in state.moved]
    for number, place in zip(unknown, state.index.places(unknown), strict=True):
        if place is not None:
            known[number] = keys.at_place(keys.RUN, state.topic.number, place)
    return known
