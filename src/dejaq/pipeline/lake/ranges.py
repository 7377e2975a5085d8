"""A set of whole numbers as the ranges it is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges from first to last, both included, in order, with gaps between."""

    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[Iterable[int]]) -> Ranges:
        """The set that these ranges make, in whatever order."""
        merged = cls()
        for first, last in sorted(map(tuple, pairs)):
            merged = merged.with_range(first, last)
        return merged

    @property
    def end(self) -> int:
        """The largest number, or 0."""
        return self.pairs[-1][1] if self.pairs else 0

    def missing(self, first: int, last: int) -> tuple[tuple[int, int], ...]:
        """The numbers from first to last that are not in the set, as ranges."""
        edges = [(0, first - 1), *self.pairs, (last + 1, 0)]
        between = ((max(before[1] + 1, first), min(after[0] - 1, last)) for before, after in pairwise(edges))
        return tuple((start, end) for start, end in between if start <= end)

    def holds(self, first: int, last: int) -> bool:
        """Whether every number from first to last is in the set."""
        return any(start <= first and last <= end for start, end in self.pairs)

    def meets(self, first: int, last: int) -> bool:
        """Whether any number from first to last is in the set."""
        return any(start <= last and first <= end for start, end in self.pairs)

    def with_range(self, first: int, last: int) -> Ranges:
        """The set with one more range."""
        apart = [pair for pair in self.pairs if pair[1] < first - 1 or pair[0] > last + 1]
        joined = [pair for pair in self.pairs if pair not in apart]
        start = min([first, *(pair[0] for pair in joined)])
        end = max([last, *(pair[1] for pair in joined)])
        return Ranges(tuple(sorted([*apart, (start, end)])))
