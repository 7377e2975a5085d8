"""In which run each listed id of a topic stands: of young runs in memory, of the others on disk.

Most messages are gone soon after they came, and an entry on disk for each would be looked for, written and removed,
which was a third of what such a message cost. So a run that is due soon gets one mark on disk for all its ids, and they
are kept in memory, where a restart puts them back by the mark. Memory is in generations, each forgotten as a whole when
its last run has gone, so that a run that leaves need not touch its ids. When there are too many, the oldest runs get
their entries on disk and lose their mark. Where no entry is on disk, none is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from dejaq.domain.ids import bucket_hash
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.database import Batch, Database
from dejaq.storage.rocksdb.run import Run
from dejaq.storage.rocksdb.window import Budget

# A run whose first row is further ahead will be old when it leaves.
YOUNG_MS = 60_000
# Small enough for a processor's cache, and not so many that to look through them all is slow.
GENERATION_IDS = 32_768
GENERATIONS_MAX = 32


@dataclass(slots=True, eq=False)
class _Generation:
    """Ids that came after each other, and how many of their runs are still young."""

    places: dict[str, bytes] = field(default_factory=dict)
    runs: int = 0


class Index:
    """The listed ids of one topic."""

    def __init__(self, topic: int, buckets: int, database: Database, budget: Budget) -> None:
        self._topic = topic
        self._buckets = buckets
        self._prefixes = [keys.of_bucket(keys.INDEX, topic, bucket) for bucket in range(buckets)]
        self._database = database
        self._budget = budget
        self._generations: list[_Generation] = []
        # Every id that stands in a young run: one look for all generations, instead of 0.17 us in each.
        self._taken: set[str] = set()
        # The ids of each young run by its place, the oldest run first.
        self._young: dict[bytes, tuple[Sequence[str], _Generation]] = {}
        # Whether entries may be on disk.
        self._on_disk = False

    def load(self, run_at: Callable[[bytes], Run]) -> None:
        """Put the young runs back, and see whether there are entries."""
        first = keys.of_topic(keys.INDEX, self._topic)
        self._on_disk = self._database.first_key(first, keys.after(first)) is not None
        first = keys.of_topic(keys.YOUNG, self._topic)
        for key in list(self._database.scan_keys(first, keys.after(first))):
            run = run_at(keys.place(key))
            self._keep(keys.place(key), _ids_of(run, run.live))

    def close(self) -> None:
        """Give back the memory."""
        for place in list(self._young):
            self._forget(place)
        self._taken.clear()

    def emptied(self) -> None:
        """Take note that the topic has no message, and so no entry."""
        self._on_disk = False

    def buckets_of(self, ids: Iterable[str]) -> list[int]:
        """The bucket of each natural id."""
        buckets = self._buckets
        return [number % buckets for number in map(bucket_hash, map(str.encode, ids))]

    # Looking

    def find(self, ids: Sequence[str], born: dict[int, int] | None = None) -> list[bytes | None]:
        """The place of the run of each id; None: it is not listed.

        A generated id may be listed in the bucket it was born in, which `born` gives by its position in `ids`.
        """
        found: list[bytes | None] = [None] * len(ids)
        if not self._taken.isdisjoint(ids):
            for generation in self._generations:
                for row, place in self._standing(generation, ids):
                    found[row] = place
        if self._on_disk:
            rows = [row for row, place in enumerate(found) if place is None]
            wanted = [ids[row] for row in rows]
            self._read(ids, rows, self.buckets_of(wanted), found)
            rows = [row for row in born or () if found[row] is None]
            self._read(ids, rows, [(born or {})[row] for row in rows], found)
        return found

    def has_any(self, ids: Sequence[str]) -> bool:
        """Whether any of these natural ids is listed; quick where none is."""
        return not self._taken.isdisjoint(ids) or (self._on_disk and any(self.find(ids)))

    def _standing(self, generation: _Generation, ids: Sequence[str]) -> list[tuple[int, bytes]]:
        """The rows of `ids` that stand in a young run of a generation; what it has of other runs is left over."""
        places = generation.places
        if places.keys().isdisjoint(ids):
            return []
        found = ((row, places.get(message_id)) for row, message_id in enumerate(ids))
        return [(row, place) for row, place in found if place is not None and place in self._young]

    def _read(self, ids: Sequence[str], rows: Sequence[int], buckets: Sequence[int], found: list[bytes | None]) -> None:
        """Look on disk for the ids of rows, each in a bucket, and fill in what is found."""
        prefixes = self._prefixes
        entries = [prefixes[bucket] + ids[row].encode() for row, bucket in zip(rows, buckets, strict=True)]
        for row, entry, value in zip(rows, entries, self._database.get_many(entries), strict=True):
            if value is not None:
                found[row] = value if len(value) == keys.PLACE_BYTES else entry[keys.BUCKET_BYTES] + value

    # Changing

    def add(self, batch: Batch, run_key: bytes, ids: Sequence[str], *, young: bool) -> None:
        """Enter the ids of a new run."""
        if not young:
            self._write(batch, keys.place(run_key), ids)
            return
        batch.put(keys.young(run_key), b"")
        self._keep(keys.place(run_key), ids)
        # Twice as many leave as come, so that no change has to bear what many have left.
        self._age(batch, 2 * len(ids))

    def _age(self, batch: Batch, most: int) -> None:
        """Write about so many of the oldest ids to disk, if there are too many."""
        budget = self._budget
        while most > 0 and self._young and (budget.ids > budget.ids_max or len(self._generations) > GENERATIONS_MAX):
            place, (ids, generation) = next(iter(self._young.items()))
            standing = [one for one in ids if generation.places.get(one) == place]
            self._write(batch, place, standing)
            self._taken.difference_update(standing)
            batch.delete(keys.at_place(keys.YOUNG, self._topic, place))
            self._forget(place)
            most -= len(ids)

    def remove(self, batch: Batch, run: Run, mask: int) -> None:
        """Take out the ids of rows that leave a run; with the last of them the run goes."""
        place = keys.place(run.key)
        young = self._young.get(place)
        ids = run.ids if mask == masks.full(run.count) else _ids_of(run, mask)
        if young is not None:
            self._taken.difference_update(ids)
        if young is not None and mask == run.live:
            batch.delete(keys.young(run.key))
            self._forget(place)
            return
        if young is None:
            for entry in self._entries(place, ids):
                batch.delete(entry)
        else:
            places = young[1].places
            for message_id in ids:
                if places.get(message_id) == place:
                    del places[message_id]

    def _keep(self, place: bytes, ids: Sequence[str]) -> None:
        if not self._generations or len(self._generations[-1].places) >= GENERATION_IDS:
            self._generations.append(_Generation())
        generation = self._generations[-1]
        generation.places.update(dict.fromkeys(ids, place))
        self._taken.update(ids)
        generation.runs += 1
        self._young[place] = (ids, generation)
        self._budget.ids += len(ids)

    def _forget(self, place: bytes) -> None:
        ids, generation = self._young.pop(place)
        self._budget.ids -= len(ids)
        generation.runs -= 1
        if not generation.runs:
            self._generations.remove(generation)

    def _write(self, batch: Batch, place: bytes, ids: Sequence[str]) -> None:
        # The bucket is in the key of the entry, unless the run is over several.
        value = place if keys.is_spread(place) else place[2:]
        for entry in self._entries(place, ids):
            batch.put(entry, value)
        self._on_disk = True

    def _entries(self, place: bytes, ids: Sequence[str]) -> Iterator[bytes]:
        """The key of the entry of each id of a run: under the run's bucket, or else its own."""
        prefixes = self._prefixes
        buckets = self.buckets_of(ids) if keys.is_spread(place) else repeat(int.from_bytes(place[:2], "big"))
        return (prefixes[bucket] + message_id.encode() for message_id, bucket in zip(ids, buckets, strict=False))


def _ids_of(run: Run, mask: int) -> list[str]:
    return [message_id for start, end in masks.ranges(mask) for message_id in run.ids[start:end]]
