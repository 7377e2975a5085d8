"""A ring of points: every name has several, and a position belongs to the name of the next point."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from hashlib import blake2b

# More points make the parts of the ring more even, and a change of the ring more expensive. Among many names, the parts
# need not be even: each of them is the first choice of only a few buckets.
FEW_NAMES = 64
POINTS_OF_FEW, POINTS_OF_MANY = 128, 16
# So many points are removed one by one, which is faster than to filter the points of a large ring.
FEW_POINTS = 256
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def seed_of(name: str) -> int:
    """The position of a name: the same at every broker."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def mix(value: int) -> int:
    """Spread the bits of a 64-bit number (the finalizer of splitmix64)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def position_of(seed: int, number: int) -> int:
    """The position with this number of everything that has a seed."""
    return mix((seed + (number + 1) * _GOLDEN) & _MASK)


def points_per_name(names: int) -> int:
    """How many points each of so many names has."""
    return POINTS_OF_FEW if names <= FEW_NAMES else POINTS_OF_MANY


class Ring:
    """The points of a set of names."""

    def __init__(self, names: int = 0) -> None:
        """`names` says how many names the ring is about to have."""
        self.points_per_name = points_per_name(names)
        self._points: list[int] = []
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._points)

    def owner(self, position: int) -> str:
        """The name whose point is at `position` or next after it; the ring must not be empty."""
        place = bisect_left(self._points, position)
        return self._names[self._points[place if place < len(self._points) else 0]]

    def before(self, position: int) -> int:
        """The point before `position`."""
        return self._points[bisect_left(self._points, position) - 1]

    def points_of(self, name: str) -> list[int]:
        """The points of a name. Of two names with one point, the first name in the alphabet has it."""
        seed = seed_of(name)
        return [position_of(seed, number) for number in range(self.points_per_name)]

    def add(self, names: Iterable[str]) -> None:
        """Add the points of names."""
        for name in sorted(names, reverse=True):
            for point in self.points_of(name):
                if point not in self._names:
                    self._points.append(point)
                self._names[point] = name
        # The points that were there are sorted, so this only merges.
        self._points.sort()

    def remove(self, names: Collection[str]) -> None:
        """Remove the points of names."""
        gone = {point for name in names for point in self.points_of(name) if self._names.get(point) == name}
        if len(gone) <= FEW_POINTS:
            for point in gone:
                del self._points[bisect_left(self._points, point)]
        else:
            self._points = [point for point in self._points if point not in gone]
        for point in gone:
            del self._names[point]
