"""The wide runs of a topic: runs whose rows lie in more slices than the one in their key; and all others that were
merged or may be merged, such as batches for several buckets that are due soon in one slice; and the merged runs in the
order of priority, so that it is known how their ids are found.

Any other run lies in exactly one slice, so a scan of the keys of some slices finds it. A wide run is found by its
*extent*, the times of its first and last row, which is one small record on disk. In memory the extents are grouped by
their length, each group sorted by the first time: which of them overlap a stretch of time is one search per group.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple, TypeVar

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline.memory.budget import WIDE_BYTES, Budget
from dejaq.storage.rocksdb.timeline.run import Run

Group = TypeVar("Group")

_RECORD = struct.Struct("<QQIIBB")
_RECORD_5 = struct.Struct("<QQIIB")
_LEVEL_AT = struct.calcsize("<QQII")


class Ids(IntEnum):
    """How the ids of a run are found."""

    # By entries that name the run, or in memory.
    LISTED = 0
    # By the counters of their producer session.
    GENERATED = 1
    # By entries that name the runs in which its rows arrived.
    LISTED_ELSEWHERE = 2
    # By the counters of the runs in which its rows arrived.
    GENERATED_ELSEWHERE = 3
    # By records of format 5: such runs are not merged.
    RECORDS = 4


class WideRun(NamedTuple):
    """Where the rows of a wide run lie, how much it holds, how often its rows were merged, and how ids are found."""

    first: int
    last: int
    rows: int
    size: int
    level: int
    ids: Ids


class Shelf(NamedTuple):
    """Wide runs that may be merged with each other."""

    bucket: int
    owner: int
    level: int
    generated: bool
    # Whether their ids are in memory.
    young: bool
    # Whether they are in the order of priority.
    by_priority: bool = False


class WideRuns:
    """The wide runs of one topic by key."""

    def __init__(self, topic: int, is_young: Callable[[bytes], bool], budget: Budget) -> None:
        self._topic, self._budget = topic, budget
        self._is_young = is_young
        # How many are new since the merger looked at them.
        self.grown = 0
        # How often a shelf was changed; and of a shelf with nothing to merge, that number and how many runs were near.
        self._changes: dict[Shelf, int] = {}
        self.fruitless: dict[Shelf, tuple[int, int]] = {}
        self._runs: dict[bytes, WideRun] = {}
        # Those of which the length has so many bits, as (first, key).
        self._by_length: dict[int, list[tuple[int, bytes]]] = {}
        self._shelf_of: dict[bytes, Shelf] = {}
        self._keys: dict[int, bytes] = {}
        self._shelves: dict[Shelf, list[tuple[int, bytes]]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, key: bytes) -> bool:
        return key in self._runs

    def __iter__(self) -> Iterator[tuple[bytes, WideRun]]:
        return iter(self._runs.items())

    def close(self) -> None:
        """Release the memory."""
        self._budget.index -= WIDE_BYTES * len(self._runs)

    def load(self, database: RocksDatabase) -> None:
        """Read the extents."""
        prefix = keys.of_topic(keys.EXTENT, self._topic)
        for key, value in database.scan(prefix, keys.after(prefix)):
            if len(value) == _RECORD_5.size:
                first, last, rows, size, level = _RECORD_5.unpack(value)
                ids = Ids.RECORDS
            else:
                first, last, rows, size, level, number = _RECORD.unpack(value)
                ids = Ids(number)
            self._enter(keys.RUN + key[1:], WideRun(first, last, rows, size, level, ids))

    def add(self, batch: Batch, key: bytes, wide: WideRun) -> None:
        """Enter a new run."""
        batch.put(keys.EXTENT + key[1:], _RECORD.pack(*wide))
        self.grown += not keys.is_ready(key)
        self._enter(key, wide)

    def remove(self, batch: Batch, key: bytes) -> None:
        """Forget a run that has gone."""
        wide = self._runs.get(key)
        if wide is None:
            return
        batch.delete(keys.EXTENT + key[1:])
        if not keys.is_ready(key):
            _discard(self._by_length, (wide.last - wide.first).bit_length(), (wide.first, key))
        self._unshelve(key)
        del self._runs[key]
        self._budget.index -= WIDE_BYTES
        self._keys.pop(keys.number_of(key), None)

    def between(self, start_ms: int, end_ms: int) -> Iterator[bytes]:
        """The keys of the runs that may have rows in [start_ms, end_ms); not of those in the order of priority."""
        for length, group in self._by_length.items():
            low, high = bisect_left(group, (start_ms - (1 << length),)), bisect_left(group, (end_ms,))
            yield from (key for _, key in group[low:high] if self._runs[key].last >= start_ms)

    def shelves(self) -> list[tuple[Shelf, list[tuple[int, bytes]]]]:
        """The runs of each shelf, as (first, key) in order."""
        return list(self._shelves.items())

    def on_shelf(self, shelf: Shelf) -> list[tuple[int, bytes]]:
        """The runs of one shelf as they are now, as (first, key) in order."""
        return list(self._shelves.get(shelf, ()))

    def changes(self, shelf: Shelf) -> int:
        """A number that is another one after each change of a shelf."""
        return self._changes.get(shelf, 0)

    def set_aside(self, run_keys: Iterable[bytes]) -> None:
        """Merge these no more, as far as they are there: what could be moved was moved."""
        for key in run_keys:
            if key in self._runs:
                self._unshelve(key)

    def has_number(self, number: int) -> bool:
        """Whether a run with this number is among them."""
        return number in self._keys

    def key_of(self, number: int) -> bytes | None:
        """The key of the run with a number, if it is among them."""
        return self._keys.get(number)

    def ids_of(self, key: bytes) -> Ids | None:
        """How the ids of a run are found; None for a run that is not among them."""
        wide = self._runs.get(key)
        return None if wide is None else wide.ids

    def at(self, key: bytes) -> WideRun:
        """Where the rows of a run lie."""
        return self._runs[key]

    def _enter(self, key: bytes, wide: WideRun) -> None:
        self._budget.index += WIDE_BYTES
        self._runs[key] = wide
        self._keys[keys.number_of(key)] = key
        if not keys.is_ready(key):
            insort(self._by_length.setdefault((wide.last - wide.first).bit_length(), []), (wide.first, key))
        shelf = self._shelf_for(key, wide)
        if shelf is not None:
            self._shelf_of[key] = shelf
            insort(self._shelves.setdefault(shelf, []), (wide.first, key))
            self._changes[shelf] = self._changes.get(shelf, 0) + 1

    def _shelf_for(self, key: bytes, wide: WideRun) -> Shelf | None:
        """None for a run that is not merged."""
        young = self._is_young(key)
        if (
            wide.ids is Ids.RECORDS
            or keys.is_ready(key)
            or (wide.level and wide.first // keys.SLICE_MS == wide.last // keys.SLICE_MS)
        ):
            return None
        if wide.level and wide.ids is Ids.LISTED and not young:
            # The entries of its ids name this run, and not the runs that their versions name.
            return None
        generated = wide.ids in (Ids.GENERATED, Ids.GENERATED_ELSEWHERE)
        bucket = int.from_bytes(key[keys.BUCKET_BYTES], "big")
        return Shelf(bucket, keys.owner_of(key), wide.level, generated, young)

    def _unshelve(self, key: bytes) -> None:
        shelf = self._shelf_of.pop(key, None)
        if shelf is None:
            return
        self._changes[shelf] = self._changes.get(shelf, 0) + 1
        _discard(self._shelves, shelf, (self._runs[key].first, key))
        if shelf not in self._shelves:
            del self._changes[shelf]
            self.fruitless.pop(shelf, None)


def extent_of(run: Run, level: int, ids: Ids) -> WideRun:
    """Where the rows of a run lie."""
    ts = run.record.ts
    first, last = (min(ts), max(ts)) if run.by_priority else (ts[0], ts[-1])
    return WideRun(first, last, run.count, run.size, level, ids)


def last_of(extent: bytes) -> int:
    """The time of the last row of a wide run, from its record."""
    return int.from_bytes(extent[8:16], "little")


def level_of(extent: bytes) -> int:
    """How often the rows of a wide run were merged, from its record."""
    return extent[_LEVEL_AT]


def _discard(groups: dict[Group, list[tuple[int, bytes]]], group: Group, entry: tuple[int, bytes]) -> None:
    entries = groups.get(group, [])
    at = bisect_left(entries, entry)
    if at < len(entries) and entries[at] == entry:
        del entries[at]
        if not entries:
            del groups[group]
