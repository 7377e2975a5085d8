"""Which wide runs are merged next."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass

from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.levels.wide_runs import Shelf, WideRuns


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Runs of one shelf that overlap each other."""

    shelf: Shelf
    runs: list[bytes]
    # Whether some of it is due soon.
    near: bool
    # How many runs that were never merged are on the shelf.
    waiting: int


def next_merge(wide: WideRuns, settings: LevelSettings, now: int) -> MergePlan | None:
    """The runs that have to be merged most urgently, or None while few of them overlap."""
    best: MergePlan | None = None
    for shelf, entries in wide.shelves():
        if shelf.level >= settings.levels or len(entries) < min(settings.merge_runs, settings.near_runs):
            continue
        seen = wide.changes(shelf), bisect_left(entries, (now + settings.near_merge_ms,))
        if wide.fruitless.get(shelf) == seen:
            continue
        near = entries[0][0] < now + settings.near_merge_ms
        least = settings.near_runs if near else settings.merge_runs
        runs = _overlapping(wide, entries, least, settings, now)
        if not runs:
            wide.fruitless[shelf] = seen
        elif best is None or (near, len(runs)) > (best.near, len(best.runs)):
            best = MergePlan(shelf, runs, near, 0 if shelf.level else len(entries))
    return best


def _overlapping(
    wide: WideRuns, entries: list[tuple[int, bytes]], least: int, settings: LevelSettings, now: int
) -> list[bytes]:
    """At least so many runs that have a moment in common, the first such moment; empty where there is none.

    Behind the near part of the timeline `merge_runs` of them are required.
    """
    active: list[tuple[int, bytes]] = []
    found: list[bytes] = []
    for first, key in entries:
        while active and active[0][0] < first:
            heapq.heappop(active)
        if first >= now + settings.near_merge_ms:
            least = max(least, settings.merge_runs)
        extent = wide.at(key)
        if extent.last >= now + settings.ending_ms:
            heapq.heappush(active, (extent.last, key))
        if len(active) >= max(least, len(found) + 1):
            found = [key for _, key in active]
            if len(found) >= settings.merge_runs_max:
                break
        elif found and len(active) < len(found):
            break
    size = 0
    chosen: list[bytes] = []
    for key in found:
        size += wide.at(key).size
        if len(chosen) > 1 and size > settings.merge_bytes_max:
            break
        chosen.append(key)
    return chosen
