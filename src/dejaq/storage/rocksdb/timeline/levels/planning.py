"""Which wide runs are merged next."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.levels.wide_runs import Shelf, WideRuns

# So many runs are looked at before others may run.
_STRETCH = 256
# A shelf with nothing to merge is looked at again when one part in so many of it has changed, or when a run came near:
# among 20,000 runs a look takes 18 ms.
_CHANGED_PART = 16


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Runs of one shelf that overlap each other."""

    shelf: Shelf
    runs: list[bytes]
    # Whether some of it is due soon.
    near: bool
    # How many runs wait that were never merged, on this shelf or others.
    waiting: int
    # The average size of a row, if it is known.
    row_bytes: int = 0


async def next_merge(
    wide: WideRuns, settings: LevelSettings, now: int, rest: Callable[[], Awaitable[None]]
) -> MergePlan | None:
    """The runs that have to be merged most urgently, or None while few of them overlap.

    `rest` is called often and lets other tasks run. Runs of the plan may have gone meanwhile.
    """
    best: MergePlan | None = None
    waiting = 0
    for shelf, counted in wide.shelves():
        await rest()
        if shelf.level >= settings.levels or len(counted) < min(settings.merge_runs, settings.near_runs):
            continue
        seen = wide.changes(shelf), bisect_left(counted, (now + settings.near_merge_ms,))
        before = wide.fruitless.get(shelf)
        enough = max(1, len(counted) // _CHANGED_PART)
        if before is not None and before[1] == seen[1] and seen[0] - before[0] < enough:
            continue
        entries = wide.on_shelf(shelf)
        if not entries:
            continue
        near = entries[0][0] < now + settings.near_merge_ms
        least = settings.near_runs if near else settings.merge_runs
        runs = await _overlapping(wide, entries, least, settings, now, rest)
        if not runs:
            # A shelf that changed meanwhile is looked at again.
            if wide.changes(shelf) == seen[0]:
                wide.fruitless[shelf] = seen
            continue
        waiting += 0 if shelf.level else len(entries)
        if best is None or _urgency(near, runs, shelf) > _urgency(best.near, best.runs, best.shelf):
            best = MergePlan(shelf, runs, near, 0)
    return best and replace(best, waiting=waiting)


def _urgency(near: bool, runs: list[bytes], shelf: Shelf) -> tuple[bool, int, int]:
    """Of equal ones the lower level is first: runs that were never merged must not gather behind merges of merges."""
    return near, len(runs), -shelf.level


async def _overlapping(
    wide: WideRuns,
    entries: list[tuple[int, bytes]],
    least: int,
    settings: LevelSettings,
    now: int,
    rest: Callable[[], Awaitable[None]],
) -> list[bytes]:
    """At least so many runs that have a moment in common, the first such moment; empty where there is none.

    Behind the near part of the timeline `merge_runs` of them are required.
    """
    active: list[tuple[int, bytes]] = []
    found: list[bytes] = []
    for number, (first, key) in enumerate(entries):
        if number % _STRETCH == 0:
            await rest()
        while active and active[0][0] < first:
            heapq.heappop(active)
        if first >= now + settings.near_merge_ms:
            least = max(least, settings.merge_runs)
        if key in wide and (last := wide.at(key).last) >= now + settings.ending_ms:
            heapq.heappush(active, (last, key))
        if len(active) >= max(least, len(found) + 1):
            found = [key for _, key in active]
            if len(found) >= settings.merge_runs_max:
                break
        elif found and len(active) < len(found):
            break
    size = 0
    chosen: list[bytes] = []
    for key in found:
        if key not in wide:
            continue
        size += wide.at(key).size
        if len(chosen) > 1 and size > settings.merge_bytes_max:
            break
        chosen.append(key)
    return chosen
