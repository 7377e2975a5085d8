"""Exact counts of messages per minute, with few keys per commit however many minutes the commit touches.

A commit writes one *count change*: the minutes that it touched and by how much. From time to time the counts of the
touched days are written as one record per day, a few days in each commit. A day record has the sequence of its commit,
and says what the day holds after it; so loading adds to it only the count changes behind that sequence. Count changes
lie in a ring of slots: one is overwritten long after every day that it touched has been written.

In memory there are counts per minute and day, so that a histogram costs little more than it has steps.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline.memory.minute_table import Column, MinuteTable, firsts_of

# Added to the number in the records of the second counts of a priority topic: those of the messages that are due.
READY_COUNTS = 1 << 40

# After so many commits the touched days are written, within at most half as many commits.
FOLD_EVERY = 64
SLOTS = 4 * FOLD_EVERY
# Restarts can interrupt folds, so that a slot is needed again before its days were written. Then there are more slots.
MORE_SLOTS = 64 * SLOTS

HOUR = 60
DAY = 24 * HOUR
_SEQUENCE = struct.Struct("<Q")
# The sequence of a count change, and up to which one every day has been written since.
_SEQUENCES = struct.Struct("<QQ")
# So few messages are counted one by one.
_FEW_TIMES = 16


class MinuteCounts:
    """How many messages are due in each minute, by their own ts; a lease does not change the minute of a message.

    A topic may have two counts; `base` separates their records.
    """

    def __init__(self, topic: int, base: int = 0, *, kept: bool = True) -> None:
        # Whether changes are kept until they are written.
        self._kept = kept
        self._topic = topic
        self._base = base
        self._minutes = MinuteTable()
        self._days: Counter[int] = Counter()
        # The days that have messages, in order.
        self._order: list[int] = []
        # By how much the counts of minutes changed since the last write, and the same as columns.
        self._changed: Counter[int] = Counter()
        self._columns: list[tuple[Column, Column]] = []
        # Days that may have no message left.
        self._fewer: set[int] = set()
        self._sequence = 0
        # Every day that a count change up to this one touched has been written behind it.
        self._folded = 0
        # Days that are touched since the last fold began; those it still has to write, and when it began.
        self._touched: set[int] = set()
        self._folding: list[int] = []
        self._fold_began = 0
        self._days_per_commit = 0
        # Days without messages whose record is still needed, so that no count change is added to them.
        self._empty: dict[int, int] = {}
        # Whether records of earlier releases, one per minute, have to be replaced.
        self._by_minute = False
        # Each is called with every change: the minute, and by how much.
        self._watchers: list[Callable[[int, int], None]] = []
        self.total = 0

    # Loading

    def load(self, database: RocksDatabase) -> None:
        """Read every count of the topic."""
        written = self._load_days(database)
        changes = sorted(self._load_changes(database), key=lambda change: change[0])
        self._folded = max((folded for _, folded, _ in changes), default=0)
        self._sequence = max([*written.values(), *(sequence for sequence, _, _ in changes)], default=0)
        for sequence, _, packed in changes:
            if sequence > self._folded:
                for minute, delta in _unpack(packed, "Ii"):
                    self._touched.add(minute // DAY)
                    if sequence > written.get(minute // DAY, 0):
                        self._add(minute, delta)
        self._load_minutes(database, written)
        self.forget_empty()
        self._touched.update(day for day in written if day not in self._days)
        self._changed.clear()
        self._columns.clear()

    def _load_days(self, database: RocksDatabase) -> dict[int, int]:
        """Read the day records; the sequence of each."""
        written: dict[int, int] = {}
        for key, value in self._scan(database, keys.DAY_COUNTS):
            day = int.from_bytes(key[5:], "big") - self._base
            (written[day],) = _SEQUENCE.unpack_from(value)
            rows = (len(value) - _SEQUENCE.size) // 6
            minutes = np.frombuffer(value, dtype="<u2", count=rows, offset=_SEQUENCE.size).astype(np.int64)
            numbers = np.frombuffer(value, dtype="<u4", offset=_SEQUENCE.size + 2 * rows).astype(np.int64)
            if rows:
                self._add_column(minutes + day * DAY, numbers)
        return written

    def _load_changes(self, database: RocksDatabase) -> Iterator[tuple[int, int, bytes]]:
        """(sequence, folded, encoded minutes with their change) of each slot."""
        for _, value in self._scan(database, keys.COUNT_CHANGE):
            sequence, folded = _SEQUENCES.unpack_from(value)
            yield sequence, folded, value[_SEQUENCES.size :]

    def _load_minutes(self, database: RocksDatabase, written: dict[int, int]) -> None:
        """Read what an earlier release wrote, one record per minute; the record of a day replaces its minutes."""
        for key, value in self._scan(database, keys.MINUTE_COUNT):
            self._by_minute = True
            minute = int.from_bytes(key[5:], "big") - self._base
            if minute // DAY not in written:
                self._add(minute, int.from_bytes(value, "big"))
                self._touched.add(minute // DAY)

    def _scan(self, database: RocksDatabase, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return database.scan(self._key(table, 0), self._key(table, READY_COUNTS))

    def _key(self, table: bytes, number: int) -> bytes:
        return keys.numbered(table, self._topic, self._base + number)

    # Changing

    def add(self, time_slice: int, delta: int) -> None:
        """Count `delta` more messages in the minute of a slice."""
        self._add(time_slice * keys.SLICE_MS // keys.MINUTE_MS, delta)

    def add_times(self, times: Sequence[int] | Column, sign: int) -> None:
        """Count one message more, or less, at each of the times."""
        width = keys.MINUTE_MS
        if len(times) <= _FEW_TIMES:
            for minute, count in Counter([int(at) // width for at in times]).items():
                self._add(minute, sign * count)
            return
        column = np.asarray(times, dtype=np.int64)
        first = int(column.min()) // width
        if first == int(column.max()) // width:
            self._add(first, sign * len(column))
            return
        minutes = column // width
        if not (minutes[1:] >= minutes[:-1]).all():
            minutes.sort()
        firsts = firsts_of(minutes)
        ends = np.concatenate((firsts[1:], [len(minutes)]))
        self._add_column(minutes[firsts], (ends - firsts) * sign)

    def _add_column(self, minutes: Column, deltas: Column) -> None:
        """Add to minutes, which are in order and each of which occurs once."""
        self._minutes.add_column(minutes, deltas)
        column = minutes // DAY
        firsts = firsts_of(column)
        days: list[int] = column[firsts].tolist()
        fewer = bool((deltas < 0).any())
        for day, delta in zip(days, np.add.reduceat(deltas, firsts).tolist(), strict=True):
            if day not in self._days:
                insort(self._order, day)
            self._days[day] += delta
            if fewer:
                self._fewer.add(day)
            self.total += delta
        if self._kept:
            self._columns.append((minutes, deltas))
            self._touched.update(days)
        for watcher in self._watchers:
            for minute, delta in zip(minutes.tolist(), deltas.tolist(), strict=True):
                watcher(minute, delta)

    def add_minute(self, minute: int, delta: int) -> None:
        """Count `delta` more messages in a minute."""
        self._add(minute, delta)

    def _add(self, minute: int, delta: int) -> None:
        day = minute // DAY
        if day not in self._days:
            insort(self._order, day)
        self._minutes.add(minute, delta)
        self._days[day] += delta
        if self._kept:
            self._changed[minute] += delta
            self._touched.add(day)
        self.total += delta
        if delta < 0:
            self._fewer.add(day)
        for watcher in self._watchers:
            watcher(minute, delta)

    # Writing

    def write(self, batch: Batch) -> None:
        """Put what changed into the batch."""
        if not self._changed and not self._columns:
            return
        self._sequence += 1
        self.forget_empty()
        if self._sequence - self._folded >= MORE_SLOTS:
            # The slot is needed now.
            self._begin_fold(at_once=True)
        elif not self._folding and (self._by_minute or self._sequence - self._fold_began >= FOLD_EVERY):
            self._begin_fold()
        if self._folding:
            self._fold(batch)
        slot = self._sequence % SLOTS
        if self._sequence - self._folded >= SLOTS:
            slot = SLOTS + self._sequence % MORE_SLOTS
        value = _SEQUENCES.pack(self._sequence, self._folded) + self._take_changes()
        batch.put(self._key(keys.COUNT_CHANGE, slot), value)

    def _take_changes(self) -> bytes:
        """The minutes that changed, and by how much each, as two columns."""
        changed, columns = self._changed, self._columns
        few = len(changed)
        minutes = [column.astype("<u4").tobytes() for column, _ in columns]
        deltas = [column.astype("<i4").tobytes() for _, column in columns]
        packed = b"".join(
            (*minutes, struct.pack(f"<{few}I", *changed), *deltas, struct.pack(f"<{few}i", *changed.values()))
        )
        self._changed, self._columns = Counter(), []
        return packed

    def forget_empty(self) -> None:
        """Forget the days without messages."""
        for day in self._fewer:
            if day in self._days and not self._days[day]:
                del self._days[day]
                del self._order[bisect_left(self._order, day)]
        self._fewer.clear()

    def _begin_fold(self, *, at_once: bool = False) -> None:
        """Have the days that were touched since the last time written, a few in each commit."""
        self._folding = sorted(self._touched.union(self._folding))
        self._touched = set()
        self._fold_began = self._sequence
        self._days_per_commit = len(self._folding) if at_once else 1 + len(self._folding) // (FOLD_EVERY // 2)

    def _fold(self, batch: Batch) -> None:
        for day in self._folding[: self._days_per_commit]:
            self._write_day(batch, day)
        del self._folding[: self._days_per_commit]
        if self._folding:
            return
        self._folded = self._fold_began
        if self._by_minute:
            # Every day has a record of its own now.
            self._by_minute = False
            batch.delete_range(self._key(keys.MINUTE_COUNT, 0), self._key(keys.MINUTE_COUNT, READY_COUNTS))
        for day, sequence in list(self._empty.items()):
            if sequence <= self._folded:
                del self._empty[day]
                batch.delete(self._key(keys.DAY_COUNTS, day))

    def _write_day(self, batch: Batch, day: int) -> None:
        minutes: list[int] = []
        counts: list[int] = []
        if day in self._days:
            self._empty.pop(day, None)
            minutes, counts = self._minutes.between(day * DAY, (day + 1) * DAY)
        else:
            self._empty[day] = self._sequence
        packed = (np.array(minutes, dtype=np.int64) - day * DAY).astype("<u2").tobytes()
        packed += np.array(counts, dtype="<u4").tobytes()
        batch.put(self._key(keys.DAY_COUNTS, day), _SEQUENCE.pack(self._sequence) + packed)

    # Reading

    def between(self, start_ms: int, end_ms: int) -> Iterator[tuple[int, int, int]]:
        """(start, end, count) of each minute that has messages and touches [start_ms, end_ms), in order."""
        first, last = start_ms // keys.MINUTE_MS, (end_ms - 1) // keys.MINUTE_MS
        width = keys.MINUTE_MS
        for day in self._days_between(first, last):
            found = self._minutes.between(max(day * DAY, first), min((day + 1) * DAY, last + 1))
            for minute, count in zip(*found, strict=True):
                yield minute * width, (minute + 1) * width, count

    def watch(self, watcher: Callable[[int, int], None]) -> None:
        """Call `watcher` with every change from now on: the minute, and by how much."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[int, int], None]) -> None:
        """Call it no more."""
        self._watchers.remove(watcher)

    @property
    def watched(self) -> bool:
        """Whether somebody reads the counts in steps."""
        return bool(self._watchers)

    def first_day(self, day: int) -> int | None:
        """The first day from this one on that has messages."""
        place = bisect_left(self._order, day)
        return self._order[place] if place < len(self._order) else None

    def on_day(self, day: int) -> int:
        """The number of messages in one day."""
        return self._days.get(day, 0)

    def in_hour(self, hour: int) -> int:
        """The number of messages in one hour."""
        return self._minutes.total(hour * HOUR, (hour + 1) * HOUR) if hour // 24 in self._days else 0

    def in_minute(self, minute: int) -> int:
        """The number of messages in one minute."""
        return self._minutes.get(minute)

    @property
    def size(self) -> int:
        """How many minutes have messages."""
        return len(self._minutes)

    def _days_between(self, first: int, last: int) -> list[int]:
        return self._order[bisect_left(self._order, first // DAY) : bisect_right(self._order, last // DAY)]


def _unpack(packed: bytes, form: str) -> Iterator[tuple[int, int]]:
    """The pairs of two columns; `form` has a letter of `struct` for each."""
    rows = len(packed) // struct.calcsize(f"<{form}")
    values = struct.unpack(f"<{rows}{form[0]}{rows}{form[1]}", packed)
    return zip(values[:rows], values[rows:], strict=True)
