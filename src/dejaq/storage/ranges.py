"""Sorted disjoint half-open ranges of numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection


def insert(ranges: list[list[int]], start: int, end: int) -> None:
    """Add [start, end), and join it with the ranges that it touches."""
    if ranges and ranges[-1][1] == start:
        ranges[-1][1] = end
        return
    at = bisect_left(ranges, [start])
    if at and ranges[at - 1][1] >= start:
        at -= 1
        start = ranges[at][0]
    stop = at
    while stop < len(ranges) and ranges[stop][0] <= end:
        end = max(end, ranges[stop][1])
        stop += 1
    ranges[at:stop] = [[start, end]]


def within(ranges: list[list[int]], first: int, count: int) -> set[int]:
    """Which of the `count` numbers from `first` on are in the ranges, counted from `first`."""
    if not ranges or first >= ranges[-1][1]:
        return set()
    return {number - first for start, end in ranges for number in range(max(start, first), min(end, first + count))}


def without(count: int, holes: Collection[int]) -> list[tuple[int, int]]:
    """The numbers below `count` that are not in `holes`, as ranges."""
    if not holes:
        return [(0, count)]
    found: list[tuple[int, int]] = []
    start = 0
    for hole in [*sorted(holes), count]:
        if hole > start:
            found.append((start, hole))
        start = hole + 1
    return found
