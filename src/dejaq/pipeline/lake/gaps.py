"""The records of a journal that a lake should have and does not have: before its first, between, and after its last.

A journal says where it begins and ends in its signed statements. Without the journal at hand, the lake's own commit
shows it: the records of an origin are 1, 2, 3 and so on, unless its journal said that it begins later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dejaq.journal.extents import OriginExtent
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.ranges import Ranges


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that are not in the lake. `dropped`: the journal does not have them any more either."""

    origin: str
    first: int
    last: int
    dropped: bool = False

    @property
    def records(self) -> int:
        """How many records are missing."""
        return self.last - self.first + 1

    @property
    def why(self) -> str:
        """What is known of the cause."""
        return "dropped by retention before the lake took them in" if self.dropped else "not in the lake yet"

    def __str__(self) -> str:
        return f"{self.origin} {self.first}-{self.last}"


def gaps(commit: Commit, journal: Mapping[str, OriginExtent] | None = None) -> list[Gap]:
    """The missing records of every origin that the lake, or the journal, knows."""
    extents = journal or {}
    found: list[Gap] = []
    for origin in sorted({*commit.records, *extents}):
        ranges, extent = commit.records.get(origin, Ranges()), extents.get(origin, OriginExtent())
        begin = max(commit.begins.get(origin, 1), extent.begin)
        for first, last in ranges.missing(begin, max(ranges.end, extent.last)):
            if first < extent.kept_from <= last:
                found += [Gap(origin, first, extent.kept_from - 1, True), Gap(origin, extent.kept_from, last)]
            else:
                found.append(Gap(origin, first, last, last < extent.kept_from))
    return found


def begins(journal: Mapping[str, OriginExtent]) -> dict[str, int]:
    """Where the history of each origin begins that does not begin with record 1."""
    return {origin: extent.begin for origin, extent in journal.items() if extent.begin > 1}
