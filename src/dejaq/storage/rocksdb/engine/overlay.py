"""Changes that are not in the database yet: what every read of the database looks at first.

A change is written to the commit log before it is written to the database. Until then it is here, in the *generation*
of the group that makes it durable. A generation is dropped as a whole when the database has all of it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from dejaq.storage.commit_log.operations import DELETE, PUT, Operations


class Unknown:
    """No pending change says anything about a key."""


UNKNOWN: Final = Unknown()

# A key and its value, or None where the key is deleted.
Pending = tuple[bytes, bytes | None]


class Generation:
    """The changes of one group: by the first byte of the key, the value of each key, or None where it is deleted."""

    __slots__ = ("_sorted", "frames", "ranges", "tables")

    def __init__(self) -> None:
        self.tables: defaultdict[int, dict[bytes, bytes | None]] = defaultdict(dict)
        # Ranges that were deleted; a key in `tables` was changed after that.
        self.ranges: list[tuple[bytes, bytes]] = []
        self._sorted: dict[int, list[bytes]] = {}
        # Values that may not be in the file of the log yet, by the pointers to them.
        self.frames: dict[bytes, bytes] = {}

    def add(self, changes: Operations) -> None:
        """Take the changes of a record, which are later than those that are here."""
        tables, parts = self.tables, changes.parts
        if not any(changes.kinds):
            for key, value in zip(parts[::2], parts[1::2], strict=True):
                tables[key[0]][key] = value
            return
        for kind, key, value in changes:
            if kind == PUT:
                tables[key[0]][key] = value
            elif kind == DELETE:
                tables[key[0]][key] = None
            else:
                self._delete_range(key, value)

    def _delete_range(self, start: bytes, end: bytes) -> None:
        self.ranges.append((start, end))
        for letter in range(start[0], end[0] + 1):
            for key in self.keys(letter, start, end) if letter in self.tables else ():
                del self.tables[letter][key]
            self._sorted.pop(letter, None)

    def keys(self, letter: int, start: bytes, end: bytes) -> list[bytes]:
        """The keys with start <= key < end of one table."""
        keys = self.sorted(letter)
        return keys[bisect_left(keys, start) : bisect_left(keys, end)]

    def sorted(self, letter: int) -> list[bytes]:
        """All keys of one table. A list that was given out is never changed."""
        table = self.tables[letter]
        known = self._sorted.get(letter)
        # Keys are only added, except by `_delete_range`.
        if known is None or len(known) != len(table):
            known = self._sorted[letter] = sorted(table)
        return known

    def hides(self, key: bytes) -> bool:
        """Whether a range that was deleted has the key."""
        return any(start <= key < end for start, end in self.ranges)

    def copy(self) -> Generation:
        """The same changes, which stay as they are."""
        made = Generation()
        for letter, table in self.tables.items():
            made.tables[letter] = table.copy()
        made.ranges = self.ranges.copy()
        made.frames = self.frames
        return made


class Overlay:
    """All generations, the oldest first."""

    def __init__(self, generations: list[Generation] | None = None) -> None:
        self._generations = generations if generations is not None else []

    def begin(self) -> Generation:
        """A new generation, for the changes from now on."""
        self._generations.append(Generation())
        return self._generations[-1]

    def drop(self, generation: Generation) -> None:
        """The database has everything of a generation."""
        self._generations.remove(generation)

    def copy(self) -> Overlay:
        """The changes that are pending now."""
        return Overlay([one.copy() for one in self._generations])

    def touches(self, letter: int) -> bool:
        """Whether there may be changes in a table."""
        return any(letter in one.tables or one.ranges for one in self._generations)

    def find(self, key: bytes) -> bytes | Unknown | None:
        """The value of a key, None where it is deleted, UNKNOWN where only the database knows."""
        letter = key[0]
        for one in reversed(self._generations):
            table = one.tables.get(letter)
            if table is not None and key in table:
                return table[key]
            if one.ranges and one.hides(key):
                return None
        return UNKNOWN

    def frame(self, pointer: bytes) -> bytes | None:
        """The frame of a change that is pending."""
        return next((found for one in self._generations if (found := one.frames.get(pointer)) is not None), None)

    def hides(self, key: bytes) -> bool:
        """Whether the database must not be asked for a key."""
        return self.find(key) is not UNKNOWN

    def between(self, start: bytes, end: bytes) -> list[Pending]:
        """Keys with start <= key < end that a pending change has set or deleted, ascending."""
        pieces = [
            [(key, one.tables[letter][key]) for key in one.keys(letter, start, end)]
            for one in self._generations
            for letter in range(start[0], end[0] + 1)
            if letter in one.tables
        ]
        if len(pieces) == 1 and not self.ranges:
            return pieces[0]
        # A later generation may have deleted a range that a key of an earlier one is in.
        changed = {key for piece in pieces for key, _ in piece}
        found: list[Pending] = []
        for key in sorted(changed):
            value = self.find(key)
            assert not isinstance(value, Unknown)
            found.append((key, value))
        return found

    def first(self, start: bytes, end: bytes) -> bytes | None:
        """The smallest key with start <= key < end that is set."""
        pieces = []
        for one in self._generations:
            for letter in range(start[0], end[0] + 1):
                if letter in one.tables:
                    keys = one.sorted(letter)
                    pieces.append(islice(keys, bisect_left(keys, start), bisect_left(keys, end)))
        for key in heapq.merge(*pieces):
            if self.find(key) is not None:
                return key
        return None

    def last(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key with start <= key <= end that is set, and its value."""
        for key in heapq.merge(*self._descending(start, end), reverse=True):
            value = self.find(key)
            if isinstance(value, bytes):
                return key, value
        return None

    def _descending(self, start: bytes, end: bytes) -> Iterator[Iterator[bytes]]:
        for one in self._generations:
            for letter in range(start[0], end[0] + 1):
                if letter in one.tables:
                    keys = one.sorted(letter)
                    places = range(bisect_right(keys, end) - 1, bisect_left(keys, start) - 1, -1)
                    yield map(keys.__getitem__, places)

    @property
    def ranges(self) -> list[tuple[bytes, bytes]]:
        """The ranges that were deleted; a key that was set later is among those of `between`."""
        return [pair for one in self._generations for pair in one.ranges]

    @property
    def empty(self) -> bool:
        """Whether nothing is pending."""
        return not self._generations


def merged(
    stored: Iterator[tuple[bytes, bytes]], pending: Sequence[Pending], ranges: Sequence[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """What is stored with the pending changes on top of it; what is in a range that is deleted is not."""
    place = 0
    for item in stored:
        key = item[0]
        while place < len(pending) and pending[place][0] < key:
            if pending[place][1] is not None:
                yield pending[place]  # type: ignore[misc]
            place += 1
        if place < len(pending) and pending[place][0] == key:
            continue
        if not any(start <= key < end for start, end in ranges):
            yield item
    for key, value in pending[place:]:
        if value is not None:
            yield key, value
