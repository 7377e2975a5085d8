"""Which prints the sorted runs of a topic may have: one look for all of them, because nearly every new id has no entry.

A topic with millions of entries has dozens of runs. To ask each of them whether it has a print cost more than all else
that a create does. Here each range of prints has a word of 64 bits, and each print four bits of its word. Prints that
left remain until the words are made again, which is done when there are too many prints for them, in small steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dejaq.storage.rocksdb.timeline.ids.columns import Prints
from dejaq.storage.rocksdb.timeline.memory.minute_table import firsts_of

Words = npt.NDArray[np.uint64]

# A word is for so many prints at most, on average: then about one print in 150 that is absent seems to be there.
PRINTS_PER_WORD = 4
# What is added to a filter that is made again, for each print that is added to the present one; and in one step.
WORK_PER_PRINT = 8
STEP_PRINTS = 4_096
# Spreads the low bits of a print over its high ones.
_FACTOR = 0x9E3779B1
# Which bits of the product are the numbers of the four bits.
_PLACES = (26, 20, 14, 8)
_ONE, _LOW = np.uint64(1), np.uint32(63)
_PRINT_BITS = 32
_ROOM_MIN = 1_024


class WordFilter:
    """The words for up to `room` prints."""

    def __init__(self, room: int) -> None:
        count = 1 + room // PRINTS_PER_WORD
        self.room = PRINTS_PER_WORD * count
        # Memory that is never written to is not used.
        self._words: Words = np.zeros(count, dtype=np.uint64)
        self._one_by_one = memoryview(self._words)  # type: ignore[arg-type]

    @property
    def memory_bytes(self) -> int:
        """The memory of all words."""
        return self._words.nbytes

    def add(self, prints: Prints) -> None:
        """Add prints, which are in order."""
        if not len(prints):
            return
        places = self._places_of(prints)
        firsts = firsts_of(places)
        self._words[places[firsts]] |= np.bitwise_or.reduceat(_marks_of(prints), firsts)

    def may_have(self, one: int) -> bool:
        """Whether a print may have been added."""
        word: int = self._one_by_one[one * len(self._words) >> _PRINT_BITS]
        product = one * _FACTOR
        return all(word >> (product >> place & 63) & 1 for place in _PLACES)

    def rows(self, prints: Prints) -> npt.NDArray[np.int64]:
        """The positions of those that may have been added."""
        marks = _marks_of(prints)
        return np.flatnonzero(self._words[self._places_of(prints)] & marks == marks)

    def _places_of(self, prints: Prints) -> npt.NDArray[np.int64]:
        """The word of each print; the words are in the order of the prints."""
        return (prints.astype(np.int64) * len(self._words)) >> _PRINT_BITS


class SeenPrints:
    """The prints of all sorted runs of a topic, however many they are."""

    def __init__(self, runs: Sequence[Prints] = ()) -> None:
        self._filter = WordFilter(_room_for(sum(map(len, runs))))
        for prints in runs:
            self._filter.add(prints)
        self._count = sum(map(len, runs))
        # The filter that takes the place of this one, what it does not have yet, and how much of it is due.
        self._next: WordFilter | None = None
        self._left: list[Prints] = []
        self._next_count = self._due = 0

    @property
    def memory_bytes(self) -> int:
        """The memory of the filter, and of the one that takes its place."""
        return self._filter.memory_bytes + (self._next.memory_bytes if self._next is not None else 0)

    def add(self, prints: Prints, others: Sequence[Prints]) -> None:
        """Add the prints of a new run, which are in order; `others` has those of the runs that exist."""
        self._filter.add(prints)
        self._count += len(prints)
        if self._next is None and self._count > self._filter.room:
            self._next_count = sum(map(len, others))
            self._next, self._left = WordFilter(_room_for(self._next_count)), list(others)
        if self._next is not None:
            self._next.add(prints)
            self._next_count += len(prints)

    def step(self, added: int) -> None:
        """Do a part of what has to be done, for a commit that added so many entries."""
        if self._next is None:
            return
        self._due += WORK_PER_PRINT * (added + 1)
        while self._due >= STEP_PRINTS and self._left:
            prints = self._left.pop()
            self._next.add(prints[:STEP_PRINTS])
            self._due -= STEP_PRINTS
            if len(prints) > STEP_PRINTS:
                self._left.append(prints[STEP_PRINTS:])
        if not self._left:
            self._filter, self._count, self._next, self._due = self._next, self._next_count, None, 0

    def may_have(self, one: int) -> bool:
        """Whether a run may have a print."""
        return self._filter.may_have(one)

    def rows(self, prints: Prints) -> npt.NDArray[np.int64]:
        """The positions of the prints that a run may have."""
        return self._filter.rows(prints)


def _room_for(count: int) -> int:
    return count + count // 2 + _ROOM_MIN


def _marks_of(prints: Prints) -> Words:
    product = prints * np.uint32(_FACTOR)
    marks = np.zeros(len(prints), dtype=np.uint64)
    for place in _PLACES:
        marks |= _ONE << (product >> np.uint32(place) & _LOW).astype(np.uint64)
    return marks
