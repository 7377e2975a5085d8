"""The counts of a change: how many messages it adds to each minute, or removes from it.

A change of few minutes adds to rows of the table `counter`, one per minute. A change of many minutes, such as a batch
at random times over a month, writes one row with a list of its minutes; `upkeep` joins these lists. Readers add both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import floordiv

MINUTE_MS = 60_000
# A list costs about as much as the rows of this many minutes.
LISTED_MIN = 16


def minutes_of(times: Iterable[int]) -> Counter[int]:
    """The number of times per minute."""
    return Counter(map(floordiv, times, repeat(MINUTE_MS)))


@dataclass(frozen=True, slots=True)
class CountRows:
    """Counts as columns of the table `counter`."""

    topics: Sequence[int] = ()
    minutes: Sequence[int] = ()
    held: Sequence[bool] = ()
    owners: Sequence[str] = ()
    counts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class CountList:
    """The counts of many minutes, of one topic and owner."""

    topic: int = 0
    held: bool = False
    owner: str = ""
    minutes: Sequence[int] = ()
    counts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class WrittenSizes:
    """What a statement wrote: the bytes of its journal record, and the minutes that it counted as a list."""

    record_bytes: int
    listed: int


class CountChanges:
    """Gathers the counts of one change."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, bool, str], Counter[int]] = {}

    def add(self, topic: int, times: Sequence[int], owners: str | Sequence[str], *, held: bool) -> None:
        """Count messages that now have these times; `owners` is one for all, or one per message."""
        for owner, theirs in _by_owner(times, owners):
            self._groups.setdefault((topic, held, owner), Counter()).update(minutes_of(theirs))

    def remove(self, topic: int, times: Sequence[int], owners: str | Sequence[str], *, held: bool) -> None:
        """Count messages that no longer have these times."""
        for owner, theirs in _by_owner(times, owners):
            self._groups.setdefault((topic, held, owner), Counter()).subtract(minutes_of(theirs))

    def columns(self) -> tuple[CountRows, CountList]:
        """The counts, those of at most one topic and owner as a list; sorted, so that no two changes deadlock."""
        groups = {
            key: {minute: count for minute, count in counts.items() if count} for key, counts in self._groups.items()
        }
        most = max(groups, key=lambda key: len(groups[key]), default=None)
        listed = CountList()
        if most is not None and len(groups[most]) >= LISTED_MIN:
            minutes = groups.pop(most)
            listed = CountList(*most, list(minutes), list(minutes.values()))
        rows = sorted(
            (topic, minute, held, owner, count)
            for (topic, held, owner), minutes in groups.items()
            for minute, count in minutes.items()
        )
        return CountRows(*zip(*rows, strict=True)) if rows else CountRows(), listed


def _by_owner(times: Sequence[int], owners: str | Sequence[str]) -> Iterable[tuple[str, Sequence[int]]]:
    if isinstance(owners, str):
        return ((owners, times),)
    if not owners or owners.count(owners[0]) == len(owners):
        return ((owners[0], times),) if owners else ()
    found: dict[str, list[int]] = {}
    for owner, ts in zip(owners, times, strict=True):
        found.setdefault(owner, []).append(ts)
    return found.items()
