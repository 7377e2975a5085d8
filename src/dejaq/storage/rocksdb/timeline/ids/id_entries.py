"""Which run each listed id of a topic arrived in, for any number of ids.

What a commit adds and removes is one record. Such records are merged into sorted runs, and these into longer ones, each
of about eight of the level below. Each commit does a part of that work in proportion to what it adds, so that no commit
does much. A lookup of an id that is not there reads nothing: the prints of all entries are in memory, four bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline.ids.columns import (
    Entries,
    Rows,
    joined,
    order_of,
    positions,
    prints_of,
    unpack,
)
from dejaq.storage.rocksdb.timeline.ids.hashing import Numbers
from dejaq.storage.rocksdb.timeline.ids.print_slab import PrintSlab, prints_for
from dejaq.storage.rocksdb.timeline.ids.run_search import RunSearch
from dejaq.storage.rocksdb.timeline.ids.seen_prints import SeenPrints
from dejaq.storage.rocksdb.timeline.ids.sorted_run import (
    Discarded,
    MergeJob,
    RunWriter,
    SortedRun,
    load_runs,
)

Times = npt.NDArray[np.int64]
# The number of a run and the time of a message in it.
Arrival = tuple[int, int]

# So many entries, or records of commits, are kept apart before they become a sorted run.
RECENT_ENTRIES = 16_384
RECENT_RECORDS = 256
# So many runs of a level are merged into one of the next.
FAN_IN = 8
# For each entry that is added so many are merged, on each level that has something to merge; and a few more.
WORK_PER_ENTRY = 2
WORK_MIN = 64
STEP_ENTRIES = 4_096
DELETES_PER_COMMIT = 32
# So few ids are looked for one by one.
_FEW_IDS = 8
# The memory of an entry that is apart: two columns, or an element of a dictionary.
_LARGE_ENTRY_BYTES, _SMALL_ENTRY_BYTES = 56, 330
# The entries of commits with at most so many are found by hash.
_SMALL_COMMIT = 32
_ONE = np.uint64(1)


class ArrivalColumns(NamedTuple):
    """By the position of the hash that was looked for: the run in which an id arrived, and the time of its message."""

    rows: Rows
    numbers: Numbers
    times: Times


class _Entered(NamedTuple):
    """Numbers and stamps of entries, by the position of the hash that was looked for."""

    rows: Rows
    numbers: Numbers
    stamps: Numbers


_NONE = ArrivalColumns(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))


class _Recent:
    """The entries of the last commits, and the records that have them.

    Those of small commits are found by hash. Those of a large one are columns; of all of them there is one sorted
    column of hashes, because nearly all lookups are of ids that have no entry.
    """

    def __init__(self) -> None:
        # By the hash, numbers and stamps.
        self.by_hash: dict[int, tuple[tuple[int, int], ...]] = {}
        self.count = 0
        self.records: list[int] = []
        self.columns: list[Entries] = []
        self._large: list[Entries] = []
        self._hashes: Numbers = np.zeros(0, dtype=np.uint64)
        # Those that were large when one of their entries was last looked for, in the order of their hashes.
        self._sorted: Entries | None = None

    def add(self, entries: Entries) -> None:
        """Add entries of one commit."""
        if len(entries.hashes) <= _SMALL_COMMIT:
            self.add_few(*(column.tolist() for column in entries))
            return
        self.count += len(entries.hashes)
        self._large.append(entries)
        # Two sorted columns: a stable sort merges them.
        self._hashes = np.sort(np.concatenate((self._hashes, np.sort(entries.hashes))), kind="stable")

    def add_few(self, hashes: Sequence[int], numbers: Sequence[int], stamps: Sequence[int]) -> None:
        """Add a few entries; a hash that occurs twice has them all."""
        self.count += len(hashes)
        for hashed, entry in zip(hashes, zip(numbers, stamps, strict=True), strict=True):
            self.by_hash[hashed] = (*self.by_hash.get(hashed, ()), entry)

    @property
    def memory_bytes(self) -> int:
        """The memory of the entries."""
        few = len(self.by_hash)
        return few * _SMALL_ENTRY_BYTES + (self.count - few) * _LARGE_ENTRY_BYTES

    def find(self, wanted: Numbers) -> Iterator[_Entered]:
        """The entries with these hashes, by the position of the hash."""
        if self.by_hash and not self.by_hash.keys().isdisjoint(hashes := wanted.tolist()):
            known = [row for row, hashed in enumerate(hashes) if hashed in self.by_hash]
            listed = [(row, *entry) for row in known for entry in self.by_hash[hashes[row]]]
            numbers, stamps = (np.array([one[part] for one in listed], dtype=np.uint64) for part in (1, 2))
            yield _Entered(np.array([row for row, _, _ in listed]), numbers, stamps)
        if not len(self._hashes):
            return
        rows, places = positions(self._hashes, wanted)
        if len(rows):
            ordered = self._in_order()
            yield _Entered(rows, ordered.numbers[places], ordered.stamps[places])

    def _in_order(self) -> Entries:
        """The entries of large commits in the order of their hashes."""
        if self._large:
            parts = [*([] if self._sorted is None else [self._sorted]), *self._large]
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            order = order_of(columns[0])
            self._sorted, self._large = Entries(*(column[order] for column in columns)), []
        assert self._sorted is not None
        return self._sorted


class IdEntries:
    """The entries of one topic."""

    def __init__(self, topic: int, database: RocksDatabase) -> None:
        self._topic, self._database = topic, database
        # What the present change adds.
        self._new: list[Entries] = []
        self._recent = _Recent()
        # What is being merged into a sorted run.
        self._frozen: _Recent | None = None
        self._runs: list[SortedRun] = []
        # Made when it is needed; and by level, where the prints of the next run come.
        self._search: RunSearch | None = None
        self._slabs: dict[int, PrintSlab] = {}
        # What any of the sorted runs may have.
        self._seen = SeenPrints()
        self._jobs: dict[int, MergeJob] = {}
        self._discarded: list[Discarded] = []
        self._next_record = self._next_run = 1
        # The memory of the sorted runs, of those that are being made, and of what any of them may have.
        self._sorted_bytes = 0

    def load(self) -> None:
        """Read the prints, and the records of the last commits."""
        prefix = keys.of_topic(keys.ID_CHANGES, self._topic)
        for key, value in self._database.scan(prefix, keys.after(prefix)):
            self._next_record = int.from_bytes(key[5:], "big") + 1
            entries = unpack(value)
            self._recent.add(entries)
            self._recent.records.append(self._next_record - 1)
            self._recent.columns.append(entries)
        self._runs, discarded = load_runs(self._topic, self._database)
        self._seen = SeenPrints([run.prints for run in self._runs])
        self._discarded = [Discarded(self._topic, number) for number in discarded]
        self._next_run = max([*discarded, *(run.number for run in self._runs)], default=0) + 1
        self._recount()

    @property
    def empty(self) -> bool:
        """Whether there is no entry."""
        return not self._recent.count and not self._runs and self._frozen is None

    def __len__(self) -> int:
        return self._recent.count + (self._frozen.count if self._frozen is not None else 0) + sum(map(len, self._runs))

    @property
    def memory_bytes(self) -> int:
        """How much memory the entries and their prints take."""
        return self._sorted_bytes + self._recent.memory_bytes + (self._frozen.memory_bytes if self._frozen else 0)

    def _recount(self) -> None:
        sizes = [run.memory_bytes for run in self._runs] + [job.memory_bytes for job in self._jobs.values()]
        self._sorted_bytes = sum(sizes) + self._seen.memory_bytes

    # Changing

    def add(self, hashes: Numbers, number: int, ts: Times) -> None:
        """List ids under the run that they arrived in."""
        self._enter(Entries(hashes, np.full(len(hashes), number, dtype=np.uint64), ts.astype(np.uint64) << _ONE))

    def remove(
        self, hashes: Sequence[int] | Numbers, numbers: Sequence[int] | Numbers, ts: Sequence[int] | Times
    ) -> None:
        """Remove ids that were listed under these runs and times."""
        stamps = np.asarray(ts, dtype=np.uint64) << _ONE | _ONE
        self._enter(Entries(np.array(hashes, dtype=np.uint64), np.array(numbers, dtype=np.uint64), stamps))

    def _enter(self, entries: Entries) -> None:
        self._new.append(entries)
        self._recent.add(entries)

    def clear(self, batch: Batch) -> None:
        """Remove every entry: the topic has no message."""
        self._new = []
        for recent in (self._recent, self._frozen):
            for record in recent.records if recent is not None else ():
                batch.delete(keys.numbered(keys.ID_CHANGES, self._topic, record))
        for run in self._runs:
            self._discard(batch, run.number)
        for job in self._jobs.values():
            self._discarded.append(Discarded(self._topic, job.number))
        self._recent, self._frozen, self._runs, self._jobs = _Recent(), None, [], {}
        self._search, self._slabs = None, {}
        self._seen = SeenPrints()
        self._recount()

    def write(self, batch: Batch) -> None:
        """Put what the change added into the batch, and do a part of the merges."""
        count = sum(len(entries.hashes) for entries in self._new)
        if count:
            new, self._new = self._new, []
            entries = new[0] if len(new) == 1 else Entries(*map(np.concatenate, zip(*new, strict=True)))
            batch.put(keys.numbered(keys.ID_CHANGES, self._topic, self._next_record), entries.pack())
            self._recent.records.append(self._next_record)
            self._recent.columns.append(entries)
            self._next_record += 1
            self._begin_jobs(batch)
        if not count and not len(batch):
            return
        self._do_jobs(batch, count)
        self._seen.step(count)
        if self._discarded and self._discarded[0].delete(batch, self._database, DELETES_PER_COMMIT):
            del self._discarded[0]

    # Merging

    def _begin_jobs(self, batch: Batch) -> None:
        recent = self._recent
        full = recent.count >= RECENT_ENTRIES or len(recent.records) >= RECENT_RECORDS
        if full and self._frozen is None:
            self._frozen, self._recent = recent, _Recent()
            entries = joined(recent.columns)
            self._seen.add(entries.prints, [run.prints for run in self._runs])
            self._begin(batch, 0, [entries])
        for level in {run.level for run in self._runs} - self._jobs.keys():
            runs = [run for run in self._runs if run.level == level]
            if len(runs) >= FAN_IN:
                self._begin(batch, level, runs)

    def _do_jobs(self, batch: Batch, added: int) -> None:
        """Do a part of the merges for a commit that added so many entries: those first that are most in arrears.

        A step of many entries costs little more than one of few, so a merge waits until it has enough to do.
        """
        for job in self._jobs.values():
            job.due += WORK_MIN + WORK_PER_ENTRY * added
        most = max(2 * STEP_ENTRIES, 3 * WORK_PER_ENTRY * added)
        for level, job in sorted(self._jobs.items(), key=lambda item: -item[1].due):
            if job.due < min(STEP_ENTRIES, job.left) or most <= 0:
                return
            most -= job.due
            self._work(batch, level, job.due)

    def _begin(self, batch: Batch, level: int, sources: Sequence[SortedRun | Entries]) -> None:
        most = sum(len(source.prints) for source in sources)
        # Runs that are made from now on are merged later than those of the level that are merged now.
        self._slabs.pop(level, None)
        listed = prints_for(most, self._slabs.get(level + 1), FAN_IN)
        self._slabs[level + 1] = listed.slab
        self._jobs[level] = MergeJob(sources, RunWriter(self._topic, self._next_run, level + 1, listed))
        self._jobs[level].begin(batch)
        self._next_run += 1

    def _work(self, batch: Batch, level: int, count: int) -> None:
        """Merge about so many entries of a level; what it merged is replaced once everything is written."""
        job = self._jobs[level]
        while count > 0 and not job.done:
            count -= max(1, job.step(batch, self._database, min(count, STEP_ENTRIES)))
        job.due = min(0, count)
        if not job.done:
            self._recount()
            return
        merged = job.finish(batch)
        del self._jobs[level]
        if level == 0 and self._frozen is not None:
            for record in self._frozen.records:
                batch.delete(keys.numbered(keys.ID_CHANGES, self._topic, record))
            self._frozen = None
        for run in job.sources:
            if isinstance(run, SortedRun):
                self._runs.remove(run)
                self._discard(batch, run.number)
        if merged is not None:
            self._runs.append(merged)
        self._search = None
        self._recount()

    def _discard(self, batch: Batch, number: int) -> None:
        self._discarded.append(Discarded(self._topic, number))
        self._discarded[-1].begin(batch)

    def frame_moved(self, key: bytes) -> None:
        """Record that the pieces of a frame were copied into the database."""
        number, first = keys.pair_of(key)
        of_jobs = [job.writer.pieces for job in self._jobs.values()]
        for pieces in [*of_jobs, *(run.pieces for run in self._runs)]:
            if pieces.number == number:
                pieces.moved(first)
        self._search = None

    # Searching

    def find(self, wanted: Numbers) -> dict[int, list[Arrival]]:
        """The runs in which ids with these hashes arrived, by the position of the hash; none for an absent hash."""
        found: dict[int, list[Arrival]] = {}
        rows, numbers, times = self.find_columns(wanted)
        for row, number, ts in zip(rows.tolist(), numbers.tolist(), times.tolist(), strict=True):
            found.setdefault(row, []).append((number, ts))
        return found

    def find_columns(self, wanted: Numbers) -> ArrivalColumns:
        """The same as columns, in any order."""
        # In order, because then a search is near the one before.
        order = order_of(wanted)
        wanted = wanted[order]
        parts = [part for recent in (self._recent, self._frozen) if recent is not None for part in recent.find(wanted)]
        if self._runs:
            parts += self._find_sorted(wanted)
        if not parts:
            return _NONE
        rows, numbers, stamps = (
            parts[0] if len(parts) == 1 else _Entered(*map(np.concatenate, zip(*parts, strict=True)))
        )
        if (stamps & _ONE).any():
            rows, numbers, stamps = _standing(_Entered(rows, numbers, stamps), len(wanted))
        return ArrivalColumns(order[rows], numbers, (stamps >> _ONE).astype(np.int64))

    def _find_sorted(self, wanted: Numbers) -> list[_Entered]:
        """The entries of the sorted runs."""
        prints = prints_of(wanted)
        if len(wanted) <= _FEW_IDS:
            rows = np.array(
                [row for row, one in enumerate(prints.tolist()) if self._seen.may_have(one)], dtype=np.int64
            )
        else:
            rows = self._seen.rows(prints)
        if not len(rows):
            return []
        at, entries = self._run_search().find(self._database, prints[rows])
        at = rows[at]
        same = entries.hashes == wanted[at]
        return [_Entered(at[same], entries.numbers[same], entries.stamps[same])]

    def _run_search(self) -> RunSearch:
        """Made again until all frames of entries are in the files of the log."""
        if self._search is None:
            settled = [run.pieces.settle(self._database) for run in self._runs]
            search = RunSearch(self._runs)
            if not all(settled):
                return search
            self._search = search
        return self._search


def _standing(found: _Entered, count: int) -> _Entered:
    """The entries that no other one removes."""
    rows, numbers, stamps = found
    several = np.bincount(rows, minlength=count)[rows] > 1
    keep = ~several & ((stamps & _ONE) == 0)
    kept = np.flatnonzero(keep).tolist()
    counts: dict[tuple[int, int, int], int] = {}
    places: dict[tuple[int, int, int], int] = {}
    for at in np.flatnonzero(several).tolist():
        stamp = int(stamps[at])
        entry = int(rows[at]), int(numbers[at]), stamp >> 1
        counts[entry] = counts.get(entry, 0) + (-1 if stamp & 1 else 1)
        if not stamp & 1:
            places[entry] = at
    kept += [places[entry] for entry, left in counts.items() for _ in range(left)]
    return _Entered(rows[kept], numbers[kept], stamps[kept])
