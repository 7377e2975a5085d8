"""How many messages of each producer group are due in each minute: counted in memory, from the first question on.

A topic with one group does not need them: its counts are those of that group. Of a topic with several, the runs are
read once when somebody asks for a group; from then on every change is counted here too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import numpy as np

from dejaq import limits
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.memory.minute_table import Column
from dejaq.storage.rocksdb.timeline.minute_counts import MinuteCounts
from dejaq.storage.rocksdb.timeline.run import Run


class OwnerCounts:
    """The counts of every group of one topic by its number: exact once `complete`, and none once `refused`."""

    def __init__(self, topic: int) -> None:
        self._topic = topic
        self._counts: dict[int, MinuteCounts] = {}
        # How many minutes may have come since their number was looked at.
        self._unchecked = 0
        self.complete = False
        # Set when it is complete, or given up.
        self.changed = asyncio.Event()
        # The groups have more minutes together than are kept; then every question reads the runs.
        self.refused = False

    def of(self, owner: int) -> MinuteCounts:
        """The counts of a group."""
        counts = self._counts.get(owner)
        if counts is None:
            counts = self._counts[owner] = MinuteCounts(self._topic, kept=False)
        return counts

    def add(self, owner: int, minutes: Iterable[int], deltas: Iterable[int]) -> None:
        """Count rows of a group by their minutes."""
        if self.refused:
            return
        counts = self.of(owner)
        for minute, delta in zip(minutes, deltas, strict=True):
            counts.add_minute(minute, delta)
            self._unchecked += 1
        self._check()

    def count(self, run: Run, rows: int, sign: int) -> None:
        """Count rows of a run that came, or that left."""
        if run.wide:
            times = Counter([at // keys.MINUTE_MS for at in masks.pick(run.record.ts, rows)])
            self.add(run.owner, times.keys(), [sign * count for count in times.values()])
        else:
            self.add(run.owner, (run.slice * keys.SLICE_MS // keys.MINUTE_MS,), (sign * rows.bit_count(),))

    def remove(self, rows: Iterable[tuple[int, int]]) -> None:
        """Count rows that left, each as (group, ts)."""
        for (owner, minute), count in Counter((owner, ts // keys.MINUTE_MS) for owner, ts in rows).items():
            self.add(owner, (minute,), (-count,))

    def _check(self) -> None:
        """Give up when there are too many minutes; looked at after as many changes as may have brought many."""
        if self._unchecked < limits.OWNER_MINUTES_MAX // 8:
            return
        self._unchecked = 0
        for owner, counts in list(self._counts.items()):
            counts.forget_empty()
            if not counts.total and not counts.watched:
                del self._counts[owner]
        if sum(counts.size for counts in self._counts.values()) > limits.OWNER_MINUTES_MAX:
            self.refused = True
            self._counts.clear()


def count_rows(
    counts: MinuteCounts, by_owner: OwnerCounts | None, run: Run, rows: int, sign: int, times: Column | None = None
) -> None:
    """Count rows of a run that came, or that left, in both counts; `times` has their times, if they are a column."""
    if by_owner is not None:
        by_owner.count(run, rows, sign)
    if not run.wide:
        counts.add(run.slice, sign * rows.bit_count())
        return
    if times is None:
        times = np.array(masks.pick(run.record.ts, rows), dtype=np.int64)
    counts.add_times(times, sign)
