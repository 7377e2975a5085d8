"""Counting rows in ranges of time: each run is read once, and of it only the column of times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.counting import Range, Tally
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.reading.touching import RunsTouching, Times
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# So many times are counted in one go.
_ROWS_AT_ONCE = 8_192
_KEYS_AT_ONCE = 64


async def tally_rows(runs: RunsTouching, tally: Tally, pace: QueryPace) -> None:
    """Add the live rows in the unread ranges, leased ones by their own time included, and subtract the excess."""
    waiting, rows = list[Times](), 0
    async for _, times in runs.times(pace):
        waiting.append(times)
        rows += len(times)
        if rows >= _ROWS_AT_ONCE:
            _tally(waiting, tally)
            waiting, rows = [], 0
            await pace.rest()
    if waiting:
        _tally(waiting, tally)


def _tally(parts: Sequence[Times], tally: Tally) -> None:
    times = np.concatenate(parts)
    tally.add_times(_within(times, tally.unread), 1)
    if tally.excess:
        tally.add_times(_within(times, tally.excess), -1)


def _within(times: Times, ranges: Sequence[Range]) -> Times:
    """Those of the times that lie in one of the ranges, which are sorted and do not overlap."""
    if not ranges:
        return times[:0]
    bounds = np.array(ranges, dtype=np.int64)
    places = np.searchsorted(bounds[:, 0], times, side="right") - 1
    found: Times = times[(places >= 0) & (times < bounds[places, 1])]
    return found


async def tally_ready_rows(
    state: TopicState, view: View, ranges: Sequence[Range], owner: int | None, tally: Tally, pace: QueryPace
) -> None:
    """Add the live rows of a priority topic that are in the order of priority, as far as they are in the ranges."""
    number = state.topic.number
    for bucket in (*range(state.topic.settings.buckets), keys.SPREAD):
        start, end = keys.ready_start(number, bucket), keys.ready_end(number, bucket)
        while start < end:
            items = list(islice(view.items(start, end), _KEYS_AT_ONCE))
            for key, stored in items:
                if owner is None or keys.owner_of(key) == owner:
                    run = Run.parse(key, view.run_at(key, stored), masks.unpack(view.get(keys.gone(key)) or b""))
                    for bottom, top in ranges:
                        tally.add_rows(run.record, run.live & run.rows_between(bottom, top), 1, sorted_by_time=False)
                    await pace.rest()
            start = items[-1][0] + b"\0" if len(items) == _KEYS_AT_ONCE else end
            await pace.rest()
