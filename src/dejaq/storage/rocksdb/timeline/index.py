"""The run of each listed id of a topic: for young runs in memory, for other runs as entries on disk.

Most messages are deleted soon after they were created. An entry on disk for each of them would be searched, written and
removed, which was a third of the cost of such a message. So a run that is due soon has one mark on disk for all its
ids, and its ids are kept in memory; after a restart they are loaded again by the mark. The memory is divided into
generations. A generation is dropped as a whole when its last run is gone, so that the removal of a run need not touch
its ids. When there are too many ids, the oldest runs get entries on disk and lose their mark.

An entry names the run in which the id arrived and the time of its message (`ids`); merges leave entries as they are. Up
to format 5, there was one record per id instead. Runs of that time keep these records, which are only read and removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import bucket_hash
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.ids.hashing import Numbers, bucket_column, hash_column
from dejaq.storage.rocksdb.timeline.ids.id_entries import Arrival, ArrivalColumns, IdEntries, Times
from dejaq.storage.rocksdb.timeline.memory.budget import Budget
from dejaq.storage.rocksdb.timeline.run import Run

# A run whose first row is due later than this will be old when its rows are leased.
YOUNG_MS = 60_000
# Small enough for a processor's cache, and large enough that there are few generations to search.
GENERATION_IDS = 32_768
GENERATIONS_MAX = 32
# The buckets of so few ids are computed one by one.
_FEW_IDS = 16


# A generation removes deleted ids when it has this many times as many ids as its runs.
_SPARSE, _SPARSE_MIN = 4, 1_024


@dataclass(slots=True, eq=False)
class _Generation:
    """Ids of consecutive runs, and how many of the runs are still young."""

    places: dict[str, bytes] = field(default_factory=dict)
    runs: int = 0
    ids: int = 0


@dataclass(frozen=True, slots=True)
class _YoungRun:
    ids: Sequence[str]
    ts: Times
    generation: _Generation


class Index:
    """The listed ids of one topic."""

    def __init__(
        self, topic: int, buckets: int, database: RocksDatabase, budget: Budget, *, number: Callable[[], int]
    ) -> None:
        self._topic = topic
        self._buckets = buckets
        self._prefixes = [keys.of_bucket(keys.INDEX, topic, bucket) for bucket in range(buckets)]
        self._database = database
        self._budget = budget
        self._number = number
        self._generations: list[_Generation] = []
        # Every id of a young run: one search for all generations, instead of 0.17 us per generation.
        self._taken: set[str] = set()
        # The young runs by place, the oldest run first.
        self._young: dict[bytes, _YoungRun] = {}
        self._entries = IdEntries(topic, database)
        # What the budget counts for them.
        self._counted = 0
        # The places of runs that the present change adds.
        self._new_places: dict[int, bytes] = {}
        # Runs with a smaller number have records of format 5; and whether there may be such records.
        self._listed_since = 0
        self._since_is_written = False
        self._has_records = False

    def load(self, run_at: Callable[[bytes], Run]) -> None:
        """Load the young runs and the prints of the entries."""
        since = self._database.get(keys.of_topic(keys.LISTED_SINCE, self._topic))
        self._since_is_written = since is not None
        self._listed_since = self._number() if since is None else int.from_bytes(since, "big")
        first = keys.of_topic(keys.INDEX, self._topic)
        self._has_records = self._database.first_key(first, keys.after(first)) is not None
        self._entries.load()
        self._recount()
        first = keys.of_topic(keys.YOUNG, self._topic)
        for key in list(self._database.scan_keys(first, keys.after(first))):
            run = run_at(keys.place(key))
            self._keep(keys.place(key), _ids_of(run, run.live), np.array(_times_of(run, run.live)))

    def close(self) -> None:
        """Release the memory."""
        for place in list(self._young):
            self._forget(place)
        self._taken.clear()
        self._budget.index -= self._counted
        self._counted = 0

    def _recount(self) -> None:
        """Count again how much memory the entries take; the ids of young runs have a limit of their own."""
        count = self._entries.memory_bytes
        self._budget.index += count - self._counted
        self._counted = count

    def frame_moved(self, key: bytes) -> None:
        """Record that a frame of entries was copied into the database."""
        self._entries.frame_moved(key)

    def emptied(self, batch: Batch) -> None:
        """Remove what is left of the entries: the topic has no message."""
        self._has_records = False
        if not self._entries.empty:
            self._entries.clear(batch)

    def write(self, batch: Batch) -> None:
        """Put the entries that changed into the batch."""
        self._entries.write(batch)
        self._recount()
        self._new_places.clear()
        if not self._since_is_written and len(batch):
            batch.put(keys.of_topic(keys.LISTED_SINCE, self._topic), self._listed_since.to_bytes(8, "big"))
            self._since_is_written = True

    def buckets_of(self, ids: Iterable[str]) -> list[int]:
        """The bucket of each natural id."""
        buckets = self._buckets
        if isinstance(ids, IdColumn) and len(ids) > _FEW_IDS:
            listed: list[int] = bucket_column(hash_column(ids), buckets).tolist()
            return listed
        return [number % buckets for number in map(bucket_hash, map(str.encode, ids))]

    # Searching

    def find(self, ids: Sequence[str], born: dict[int, int] | None = None) -> list[bytes | None]:
        """The place of the run of each id that is young or has a record of format 5; None for other ids.

        A generated id may have a record in its original bucket, which `born` has by its position in `ids`.
        """
        found: list[bytes | None] = [None] * len(ids)
        if not self._taken.isdisjoint(ids):
            for generation in self._generations:
                for row, place in self._standing(generation, ids):
                    found[row] = place
        if self._has_records:
            rows = [row for row, place in enumerate(found) if place is None]
            wanted = [ids[row] for row in rows]
            self._read(ids, rows, self.buckets_of(wanted), found)
            rows = [row for row in born or () if found[row] is None]
            self._read(ids, rows, [(born or {})[row] for row in rows], found)
        return found

    def arrivals(self, ids: Sequence[str]) -> dict[int, list[Arrival]]:
        """The runs in which ids may have arrived, by position in `ids`, and the time of the message in each."""
        return {} if self._entries.empty else self._entries.find(hash_column(ids))

    def arrivals_of(self, hashes: Numbers) -> ArrivalColumns:
        """The same for ids with these hashes, as columns."""
        return self._entries.find_columns(hashes)

    @property
    def has_entries(self) -> bool:
        """Whether any id has an entry."""
        return not self._entries.empty

    def places(self, numbers: Sequence[int]) -> list[bytes | None]:
        """The places of runs in which ids arrived; None for a run that has gone."""
        stored = self._database.get_many([keys.numbered(keys.PLACE, self._topic, number) for number in numbers])
        return [self._new_places.get(number, place) for number, place in zip(numbers, stored, strict=True)]

    def may_have_any(self, ids: Sequence[str]) -> bool:
        """Whether any of these natural ids may be listed; fast when none is."""
        return (
            bool(self._taken and not self._taken.isdisjoint(ids))
            or (self._has_records and any(self.find(ids)))
            or bool(self.arrivals(ids))
        )

    def _standing(self, generation: _Generation, ids: Sequence[str]) -> list[tuple[int, bytes]]:
        """The rows of `ids` that are in a young run of a generation; ids of other runs are ignored."""
        places = generation.places
        if places.keys().isdisjoint(ids):
            return []
        found = ((row, places.get(message_id)) for row, message_id in enumerate(ids))
        return [(row, place) for row, place in found if place is not None and place in self._young]

    def _read(self, ids: Sequence[str], rows: Sequence[int], buckets: Sequence[int], found: list[bytes | None]) -> None:
        """Search the records for the ids of rows, each in a bucket, and add the places that are found."""
        prefixes = self._prefixes
        entries = [prefixes[bucket] + ids[row].encode() for row, bucket in zip(rows, buckets, strict=True)]
        for row, entry, value in zip(rows, entries, self._database.get_many(entries), strict=True):
            if value is not None:
                found[row] = value if len(value) == keys.PLACE_BYTES else entry[keys.BUCKET_BYTES] + value

    # Changing

    def is_young(self, run_key: bytes) -> bool:
        """Whether the ids of a run are in memory."""
        return keys.place(run_key) in self._young

    def has_records(self, run: Run) -> bool:
        """Whether the ids of a run are listed as format 5 did."""
        return run.number < self._listed_since and not self.is_young(run.key)

    def add(self, batch: Batch, run_key: bytes, ids: Sequence[str], ts: Times, *, young: bool) -> None:
        """Add the ids of a new run."""
        place = keys.place(run_key)
        if not young:
            self._list(batch, place, ids, ts)
            return
        batch.put(keys.young(run_key), b"")
        self._keep(place, ids, ts)
        # Twice as many ids are written out as added, so that no single change has to write very many.
        self._age(batch, 2 * len(ids))

    def _list(self, batch: Batch, place: bytes, ids: Sequence[str], ts: Times) -> None:
        number = keys.number_of_place(place)
        batch.put(keys.numbered(keys.PLACE, self._topic, number), place)
        self._new_places[number] = place
        self._entries.add(hash_column(ids), number, ts)

    def _age(self, batch: Batch, most: int) -> None:
        """Make entries of about so many of the oldest ids, if there are too many."""
        budget = self._budget
        while most > 0 and self._young and (budget.ids > budget.ids_max or len(self._generations) > GENERATIONS_MAX):
            place, young = next(iter(self._young.items()))
            places = young.generation.places
            rows = [row for row, message_id in enumerate(young.ids) if places.get(message_id) == place]
            ids = [young.ids[row] for row in rows]
            self._list(batch, place, ids, young.ts[rows])
            self._taken.difference_update(ids)
            batch.delete(keys.at_place(keys.YOUNG, self._topic, place))
            self._forget(place)
            most -= len(young.ids)

    def remove(self, batch: Batch, run: Run, mask: int, *, moved: bool = False) -> None:
        """Remove the ids of rows that leave a run; with the last row the run is removed.

        The ids of a run whose rows `moved` have entries under the runs in which they arrived.
        """
        place = keys.place(run.key)
        young = self._young.get(place)
        ids = run.ids if mask == masks.full(run.count) else _ids_of(run, mask)
        if young is not None:
            self._remove_young(batch, run, young, ids, mask)
        elif run.number < self._listed_since:
            for entry in self._records(place, ids):
                batch.delete(entry)
        else:
            numbers = _versions_of(run, mask) if moved else [run.number] * len(ids)
            self._entries.remove(hash_column(ids), numbers, _times_of(run, mask))
            if mask == run.live and not moved:
                self.forget_place(batch, run)

    def remove_entries(self, hashes: Numbers, numbers: Numbers, ts: Times) -> None:
        """Remove ids that have entries under these runs and times, and whose runs have other rows."""
        self._entries.remove(hashes, numbers, ts)

    def forget_place(self, batch: Batch, run: Run) -> None:
        """Record that a run in which ids arrived has gone."""
        batch.delete(keys.numbered(keys.PLACE, self._topic, run.number))
        self._new_places.pop(run.number, None)

    def _remove_young(self, batch: Batch, run: Run, young: _YoungRun, ids: Sequence[str], mask: int) -> None:
        self._taken.difference_update(ids)
        place = keys.place(run.key)
        if mask == run.live:
            batch.delete(keys.young(run.key))
            self._forget(place)
            return
        places = young.generation.places
        for message_id in ids:
            if places.get(message_id) == place:
                del places[message_id]

    def _keep(self, place: bytes, ids: Sequence[str], ts: Times) -> None:
        if not self._generations or len(self._generations[-1].places) >= GENERATION_IDS:
            self._generations.append(_Generation())
        generation = self._generations[-1]
        generation.places.update(dict.fromkeys(ids, place))
        self._taken.update(ids)
        generation.runs += 1
        generation.ids += len(ids)
        self._young[place] = _YoungRun(ids, ts, generation)
        self._budget.ids += len(ids)

    def _forget(self, place: bytes) -> None:
        young = self._young.pop(place)
        generation, count = young.generation, len(young.ids)
        self._budget.ids -= count
        generation.runs -= 1
        generation.ids -= count
        if not generation.runs:
            self._generations.remove(generation)
        elif len(generation.places) > _SPARSE_MIN + _SPARSE * generation.ids:
            # A few remaining runs must not keep the ids of all runs of their generation.
            generation.places = {one: at for one, at in generation.places.items() if at in self._young}

    def _records(self, place: bytes, ids: Sequence[str]) -> Iterator[bytes]:
        """The record of each id of a run of format 5: under the run's bucket, or else under the id's own bucket."""
        prefixes = self._prefixes
        buckets = self.buckets_of(ids) if keys.is_spread(place) else repeat(int.from_bytes(place[:2], "big"))
        return (prefixes[bucket] + message_id.encode() for message_id, bucket in zip(ids, buckets, strict=False))


def _ids_of(run: Run, mask: int) -> list[str]:
    return masks.pick(run.ids, mask)


def _times_of(run: Run, mask: int) -> list[int]:
    return masks.pick(run.record.ts, mask)


def _versions_of(run: Run, mask: int) -> list[int]:
    return masks.pick(run.record.versions, mask)
