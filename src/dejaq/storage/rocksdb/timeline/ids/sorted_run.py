"""Entries of ids in the order of their hashes, on disk in pieces of equal length; their prints are in memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice

import numpy as np

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.engine.frames import address_in
from dejaq.storage.rocksdb.timeline.ids.columns import (
    ENTRY_BYTES,
    Entries,
    Prints,
    Rows,
    joined,
    pack_pieces,
    unpack,
    unpack_pieces,
)
from dejaq.storage.rocksdb.timeline.ids.pieces import RunPieces, WantedPieces, read_pieces
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

    def __init__(self, level: int, listed: RunPrints, pieces: RunPieces, piece_entries: int) -> None:
        self.topic, self.number, self.level = pieces.topic, pieces.number, level
        self.listed, self.pieces, self.piece_entries = listed, pieces, piece_entries
        self.prints = listed.prints

    def __len__(self) -> int:
        return len(self.prints)

    @property
    def memory_bytes(self) -> int:
        """The memory of the prints and of what finds them, and of the places of pieces."""
        return self.listed.memory_bytes + self.pieces.memory_bytes

    def bytes_of(self, pieces: Rows) -> Rows:
        """The sizes of some pieces, of which the last one of the run may have fewer entries."""
        entries = np.minimum(len(self) - pieces * self.piece_entries, self.piece_entries)
        return entries * ENTRY_BYTES

    def read(self, database: RocksDatabase, start: int, end: int) -> Entries:
        """Entries start to end-1."""
        entries = self.piece_entries
        if end <= start:
            return unpack(b"")
        pieces = np.arange(start // entries, (end - 1) // entries + 1)
        self.pieces.settle(database)
        of_runs, origins, checks = np.zeros(len(pieces), np.int64), self.pieces.origins, self.pieces.checks
        wanted = WantedPieces(of_runs, pieces, self.bytes_of(pieces), origins[pieces], checks[pieces])
        first = int(pieces[0]) * entries
        # The frames of a run are in the order of its pieces.
        words = read_pieces(database, [self.pieces], wanted).words.copy()
        return unpack_pieces(words, entries).cut(start - first, end - first)


class RunWriter:
    """Writes a run piece by piece; it counts once it is finished."""

    def __init__(self, topic: int, number: int, level: int, listed: RunPrints) -> None:
        self._topic, self.number, self._level = topic, number, level
        # What the run has in memory at last; to make it at the end would take long.
        self._listed = listed
        self._piece_entries = PIECE_ENTRIES
        self.pieces = RunPieces(topic, number, ENTRY_BYTES * PIECE_ENTRIES, -(-listed.room // PIECE_ENTRIES))
        self._rest: list[Entries] = []
        self._waiting = 0
        self._chunk: list[Prints] = []
        self._chunks = 0

    @property
    def memory_bytes(self) -> int:
        """The memory of what was added, which is written in order; the rest is not used yet."""
        return self._listed.memory_bytes + self.pieces.memory_bytes

    def begin(self, batch: Batch) -> None:
        """Say that there may be pieces: a start after a crash deletes them."""
        batch.put(keys.numbered(keys.ID_RUN, self._topic, self.number), _RECORD.pack(DISCARDED, 0, 0))

    def add(self, batch: Batch, entries: Entries) -> None:
        """Add entries whose hashes are behind those that were added."""
        self._rest.append(entries)
        self._waiting += len(entries.hashes)
        if self._waiting >= self._piece_entries:
            self._write(batch, self._waiting - self._waiting % self._piece_entries)

    def finish(self, batch: Batch) -> SortedRun | None:
        """The complete run; None where no entry is left."""
        self._write(batch, self._waiting)
        self._write_prints(batch)
        key = keys.numbered(keys.ID_RUN, self._topic, self.number)
        if not len(self._listed):
            batch.delete(key)
            return None
        self._listed.finish()
        batch.put(key, _RECORD.pack(self._level, len(self._listed), self._piece_entries))
        return SortedRun(self._level, self._listed, self.pieces, self._piece_entries)

    def _write(self, batch: Batch, count: int) -> None:
        if not count:
            return
        whole = Entries(*map(np.concatenate, zip(*self._rest, strict=True)))
        self.pieces.add(batch, pack_pieces(whole.cut(0, count), self._piece_entries))
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
        pieces = RunPieces(topic, number, ENTRY_BYTES * entries, -(-count // entries))
        pieces.load(database)
        runs.append(SortedRun(level, listed, pieces, entries))
    return runs, discarded


class Discarded:
    """The records of a run that is not needed any more; a few are deleted with each commit."""

    def __init__(self, topic: int, number: int) -> None:
        self._topic, self._number = topic, number
        tables = keys.ID_FRAME, keys.ID_PIECE, keys.ID_PRINTS
        starts = (keys.numbered(table, topic, number) for table in tables)
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
            if start.startswith(keys.ID_FRAME):
                batch.released += [(self._topic, address_in(value)) for value in database.get_many(found) if value]
            if len(found) == count:
                self._left[0] = found[-1] + b"\0", end
                return False
            del self._left[0]
        batch.delete(keys.numbered(keys.ID_RUN, self._topic, self._number))
        return True


class MergeJob:
    """Several sources become one run of the next level, a few thousand entries at a time."""

    def __init__(self, sources: Sequence[SortedRun | Entries], writer: RunWriter) -> None:
        self.sources, self.writer = sources, writer
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
        self.writer.begin(batch)

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
            self.writer.add(batch, pieces[0] if len(pieces) == 1 else joined(pieces))
        self._low, self._left = high, self._left - merged
        return merged

    @property
    def memory_bytes(self) -> int:
        """The memory of what was merged; the sources count themselves."""
        return self.writer.memory_bytes

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
        return self.writer.finish(batch)

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
