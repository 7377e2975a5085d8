"""Counting rows in ranges of time: each run is read once; with many ranges its times are compared as a column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.counting import Range, Tally, rows_within
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.reading.touching import RunsTouching
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# With so few ranges, a search for each costs less than the column.
_SEARCHED_RANGES_MAX = 8
_KEYS_AT_ONCE = 64


async def tally_rows(runs: RunsTouching, tally: Tally, pace: QueryPace) -> None:
    """Add the live rows in the unread ranges, leased ones by their own time included, and subtract the excess."""
    few = len(tally.unread) <= _SEARCHED_RANGES_MAX
    async for run, live in runs.each(pace):
        if tally.excess:
            tally.add_rows(run.record, live & rows_within(run.record, tally.excess), -1)
        if few:
            tally.add_rows(run.record, live & rows_within(run.record, tally.unread), 1)
        else:
            _tally_column(run, live, tally, tally.unread)


def _tally_column(run: Run, live: int, tally: Tally, ranges: list[Range]) -> None:
    bottoms = np.array([bottom for bottom, _ in ranges], dtype=np.int64)
    tops = np.array([top for _, top in ranges], dtype=np.int64)
    ts = np.array(run.record.ts, dtype=np.int64)
    if live != masks.full(run.count):
        ts = ts[list(masks.rows(live))]
    places = np.searchsorted(bottoms, ts, side="right") - 1
    ts = ts[(places >= 0) & (ts < tops[places])]
    # A count has one step, which is longer than any time that numpy knows.
    starts = ts - (ts - tally.start) % tally.step if tally.step < 2**62 else ts[:1].repeat(len(ts))
    for start, count in zip(*np.unique(starts, return_counts=True), strict=True):
        tally.add(int(start), int(count))


async def tally_ready_rows(
    state: TopicState, view: View, ranges: Sequence[Range], owner: int | None, tally: Tally, pace: QueryPace
) -> None:
    """Add the live rows of a priority topic that are in the order of priority, as far as they are in the ranges."""
    number = state.topic.number
    for bucket in range(state.topic.settings.buckets):
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
