"""Entries of ids in the order of their hashes, on disk in pieces of equal length; their prints are in memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice

import numpy as np

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline.ids.columns import (
    Entries,
    Prints,
    joined,
    pack_pieces,
    unpack,
    unpack_pieces,
)
from dejaq.storage.rocksdb.timeline.ids.print_slab import PrintSlab, RunPrints, prints_for

# A lookup that finds a print reads the whole piece of its entry. Runs of the first kind had more.
PIECE_ENTRIES, _PIECE_ENTRIES_FIRST = 128, 512
# So many prints are one record.
PRINTS = 32_768
# With the filters, an entry takes about so much memory after a start.
ENTRY_MEMORY_BYTES = 9

# Level, entries, and entries of a piece, which the first kind did not have.
_RECORD, _RECORD_FIRST = struct.Struct("<BQI"), struct.Struct("<BQ")
# The level of a run that is not complete, or not needed any more: its records have to be deleted.
DISCARDED = 0xFF


class SortedRun:
    """One run: its prints are in order, and the entry of each is in piece `position // piece_entries`."""

    def __init__(self, topic: int, number: int, level: int, listed: RunPrints, piece_entries: int) -> None:
        self.topic, self.number, self.level, self.listed = topic, number, level, listed
        self.prints = listed.prints
        self.piece_entries = piece_entries

    def __len__(self) -> int:
        return len(self.prints)

    @property
    def memory_bytes(self) -> int:
        """The memory of the prints and of what finds them."""
        return self.listed.memory_bytes

    def read(self, database: RocksDatabase, start: int, end: int) -> Entries:
        """Entries start to end-1."""
        entries = self.piece_entries
        first, last = start // entries, (end - 1) // entries
        if end <= start:
            return unpack(b"")
        values = database.get_many(
            [keys.pair(keys.ID_PIECE, self.topic, self.number, piece) for piece in range(first, last + 1)]
        )
        return unpack_pieces([value or b"" for value in values], entries).cut(
            start - first * entries, end - first * entries
        )


class RunWriter:
    """Writes a run piece by piece; it counts once it is finished."""

    def __init__(self, topic: int, number: int, level: int, listed: RunPrints) -> None:
        self._topic, self.number, self._level = topic, number, level
        # What the run has in memory at last; to make it at the end would take long.
        self._listed = listed
        self._rest: list[Entries] = []
        self._waiting = 0
        self._pieces = 0
        self._chunk: list[Prints] = []
        self._chunks = 0

    @property
    def memory_bytes(self) -> int:
        """The memory of what was added, which is written in order; the rest is not used yet."""
        return self._listed.memory_bytes

    def begin(self, batch: Batch) -> None:
        """Say that there may be pieces: a start after a crash deletes them."""
        batch.put(keys.numbered(keys.ID_RUN, self._topic, self.number), _RECORD.pack(DISCARDED, 0, 0))

    def add(self, batch: Batch, entries: Entries) -> None:
        """Add entries whose hashes are behind those that were added."""
        self._rest.append(entries)
        self._waiting += len(entries.hashes)
        if self._waiting >= PIECE_ENTRIES:
            self._write(batch, self._waiting - self._waiting % PIECE_ENTRIES)

    def finish(self, batch: Batch) -> SortedRun | None:
        """The complete run; None where no entry is left."""
        self._write(batch, self._waiting)
        self._write_prints(batch)
        key = keys.numbered(keys.ID_RUN, self._topic, self.number)
        if not len(self._listed):
            batch.delete(key)
            return None
        self._listed.finish()
        batch.put(key, _RECORD.pack(self._level, len(self._listed), PIECE_ENTRIES))
        return SortedRun(self._topic, self.number, self._level, self._listed, PIECE_ENTRIES)

    def _write(self, batch: Batch, count: int) -> None:
        if not count:
            return
        whole = Entries(*map(np.concatenate, zip(*self._rest, strict=True)))
        for piece in pack_pieces(whole.cut(0, count), PIECE_ENTRIES):
            batch.put(keys.pair(keys.ID_PIECE, self._topic, self.number, self._pieces), piece)
            self._pieces += 1
        prints = whole.prints[:count]
        self._listed.add(prints)
        self._chunk.append(prints)
        if sum(map(len, self._chunk)) >= PRINTS:
            self._write_prints(batch)
        self._rest, self._waiting = [whole.cut(count, len(whole.hashes))], self._waiting - count

    def _write_prints(self, batch: Batch) -> None:
        if self._chunk:
            key = keys.pair(keys.ID_PRINTS, self._topic, self.number, self._chunks)
            batch.put(key, np.concatenate(self._chunk).astype("<u4", copy=False).tobytes())
            self._chunks += 1
            self._chunk = []


def entries_in(record: bytes) -> int | None:
    """How many entries the run with a record has; None for one that does not count."""
    level, count, _ = _sizes_in(record)
    return None if level == DISCARDED else count


def _sizes_in(record: bytes) -> tuple[int, int, int]:
    """The level of a run, its entries, and those of a piece."""
    if len(record) == _RECORD_FIRST.size:
        level, count = _RECORD_FIRST.unpack(record)
        return level, count, _PIECE_ENTRIES_FIRST
    sizes: tuple[int, int, int] = _RECORD.unpack(record)
    return sizes


def load_runs(topic: int, database: RocksDatabase) -> tuple[list[SortedRun], list[int]]:
    """The complete runs of a topic, and the numbers of the others."""
    found: list[tuple[int, int, int, int]] = []
    discarded: list[int] = []
    prefix = keys.of_topic(keys.ID_RUN, topic)
    for key, value in list(database.scan(prefix, keys.after(prefix))):
        number = int.from_bytes(key[5:], "big")
        level, count, entries = _sizes_in(value)
        if level == DISCARDED:
            discarded.append(number)
        else:
            found.append((level, number, count, entries))
    slabs: dict[int, PrintSlab] = {}
    runs: list[SortedRun] = []
    for level, number, count, entries in found:
        listed = prints_for(count, slabs.get(level), sum(one[0] == level for one in found))
        slabs[level] = listed.slab
        start = keys.numbered(keys.ID_PRINTS, topic, number)
        for _, chunk in database.scan(start, keys.after(start)):
            listed.add(np.frombuffer(chunk, dtype="<u4").astype(np.uint32, copy=False))
        listed.finish()
        runs.append(SortedRun(topic, number, level, listed, entries))
    return runs, discarded


class Discarded:
    """The records of a run that is not needed any more; a few are deleted with each commit."""

    def __init__(self, topic: int, number: int) -> None:
        self._topic, self._number = topic, number
        starts = (keys.numbered(table, topic, number) for table in (keys.ID_PIECE, keys.ID_PRINTS))
        self._left = [(start, keys.after(start)) for start in starts]

    def begin(self, batch: Batch) -> None:
        """From now on the run does not count."""
        batch.put(keys.numbered(keys.ID_RUN, self._topic, self._number), _RECORD.pack(DISCARDED, 0, 0))

    def delete(self, batch: Batch, database: RocksDatabase, count: int) -> bool:
        """Delete so many records; whether all of them are deleted."""
        while self._left:
            start, end = self._left[0]
            found = list(islice(database.scan_keys(start, end), count))
            for key in found:
                batch.delete(key)
            if len(found) == count:
                self._left[0] = found[-1] + b"\0", end
                return False
            del self._left[0]
        batch.delete(keys.numbered(keys.ID_RUN, self._topic, self._number))
        return True


class MergeJob:
    """Several sources become one run of the next level, a few thousand entries at a time."""

    def __init__(self, sources: Sequence[SortedRun | Entries], writer: RunWriter) -> None:
        self.sources, self._writer = sources, writer
        self.number = writer.number
        self._prints = [source.prints for source in sources]
        self._at = [0] * len(sources)
        self._left = sum(map(len, self._prints))
        # Entries with a smaller print have been merged.
        self._low = 0
        # How many entries should have been merged by now, and were not.
        self.due = 0

    def begin(self, batch: Batch) -> None:
        """Write nothing yet, but that there may be pieces."""
        self._writer.begin(batch)

    def step(self, batch: Batch, database: RocksDatabase, count: int) -> int:
        """Merge about so many of the next entries; how many they were."""
        high = self._next_bound(count)
        pieces = []
        merged = 0
        for number, source in enumerate(self.sources):
            start, end = self._at[number], self._position(number, high)
            if end > start:
                pieces.append(
                    source.cut(start, end) if isinstance(source, Entries) else source.read(database, start, end)
                )
                self._at[number] = end
                merged += end - start
        if pieces:
            # The entries of one source are in order, and none of them removes another.
            self._writer.add(batch, pieces[0] if len(pieces) == 1 else joined(pieces))
        self._low, self._left = high, self._left - merged
        return merged

    @property
    def memory_bytes(self) -> int:
        """The memory of what was merged; the sources count themselves."""
        return self._writer.memory_bytes

    @property
    def left(self) -> int:
        """How many entries have to be merged."""
        return self._left

    @property
    def done(self) -> bool:
        """Whether every entry was merged."""
        return not self._left

    def finish(self, batch: Batch) -> SortedRun | None:
        """The merged run."""
        return self._writer.finish(batch)

    def _next_bound(self, count: int) -> int:
        """The print before which about so many entries are."""
        end = 1 << 32
        if self._left <= count:
            return end
        width = max(1, (end - self._low) * count // self._left)
        while width > 1 and self._count_until(self._low + width) > 2 * count:
            width //= 2
        return min(end, self._low + width)

    def _count_until(self, high: int) -> int:
        return sum(self._position(number, high) - at for number, at in enumerate(self._at))

    def _position(self, number: int, high: int) -> int:
        prints = self._prints[number]
        return len(prints) if high >= 1 << 32 else int(prints.searchsorted(np.uint32(high)))
