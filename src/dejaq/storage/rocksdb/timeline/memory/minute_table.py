"""A number for each of many minutes: in a dictionary while there are few, then in arrays of about two years each.

An array is as large as its minutes, whatever is in them, but only those parts of it that are used take memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]

# A topic with more minutes has arrays.
FEW_MINUTES = 4_096
_PAGE = 1 << 20
_BEGIN = np.ones(1, dtype=np.bool_)


def firsts_of(ordered: Column) -> Column:
    """Where each value of a column in order begins."""
    return np.flatnonzero(np.concatenate((_BEGIN, ordered[1:] != ordered[:-1])))


class MinuteTable:
    """Numbers by minute; 0 where none was added."""

    def __init__(self) -> None:
        self._few: dict[int, int] = {}
        self._pages: dict[int, npt.NDArray[np.int32]] = {}

    def __len__(self) -> int:
        """How many minutes have a number."""
        return len(self._few) + sum(int(np.count_nonzero(page)) for page in self._pages.values())

    def get(self, minute: int) -> int:
        """The number of a minute."""
        if not self._pages:
            return self._few.get(minute, 0)
        page = self._pages.get(minute // _PAGE)
        return 0 if page is None else int(page[minute % _PAGE])

    def add(self, minute: int, delta: int) -> None:
        """Add to the number of a minute."""
        if self._pages:
            self._page(minute // _PAGE)[minute % _PAGE] += delta
            return
        count = self._few.get(minute, 0) + delta
        if count:
            self._few[minute] = count
        else:
            self._few.pop(minute, None)
        if len(self._few) > FEW_MINUTES:
            self._use_pages()

    def add_column(self, minutes: Column, deltas: Column) -> None:
        """Add to the numbers of minutes, which are in order and each of which occurs once."""
        if not self._pages:
            for minute, delta in zip(minutes.tolist(), deltas.tolist(), strict=True):
                self.add(minute, delta)
            return
        first, last = int(minutes[0]) // _PAGE, int(minutes[-1]) // _PAGE
        for number in range(first, last + 1):
            low, high = np.searchsorted(minutes, (number * _PAGE, (number + 1) * _PAGE)) if first < last else (0, None)
            self._page(number)[minutes[low:high] - number * _PAGE] += deltas[low:high].astype(np.int32)

    def between(self, first: int, behind: int) -> tuple[list[int], list[int]]:
        """The minutes from `first` on and before `behind` that have a number, in order, and their numbers."""
        if not self._pages:
            few = self._few
            if behind - first > len(few):
                found = sorted(minute for minute in few if first <= minute < behind)
            else:
                found = [minute for minute in range(first, behind) if minute in few]
            return found, [few[minute] for minute in found]
        minutes: list[int] = []
        numbers: list[int] = []
        while first < behind:
            number = first // _PAGE
            end = min(behind, (number + 1) * _PAGE)
            page = self._pages.get(number)
            if page is not None:
                part = page[first - number * _PAGE : end - number * _PAGE]
                rows = np.flatnonzero(part)
                minutes += (rows + first).tolist()
                numbers += part[rows].tolist()
            first = end
        return minutes, numbers

    def total(self, first: int, behind: int) -> int:
        """The sum of the numbers from `first` on and before `behind`, which lie in one day."""
        if not self._pages:
            few = self._few
            return sum([few[minute] for minute in range(first, behind) if minute in few])
        parts = {first // _PAGE, (behind - 1) // _PAGE} & self._pages.keys()
        return sum(int(self._pages[n][max(0, first - n * _PAGE) : behind - n * _PAGE].sum()) for n in parts)

    def _page(self, number: int) -> npt.NDArray[np.int32]:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = np.zeros(_PAGE, dtype=np.int32)
        return page

    def _use_pages(self) -> None:
        few, self._few = self._few, {}
        self._page(next(iter(few)) // _PAGE)
        minutes = np.array(sorted(few), dtype=np.int64)
        self.add_column(minutes, np.array([few[minute] for minute in minutes.tolist()], dtype=np.int64))
