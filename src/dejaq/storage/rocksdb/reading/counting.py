"""Counts and histograms: from the maintained counts, in short steps while messages come and go.

The counts are read from the first minute to the last. A change in a part that was read already is passed on, so the
answer is exact as of the moment when the reading ends. At that moment the leases and a view of the database are taken;
of them come the leased rows, which count at the end of their lease, and the rows of minutes that a limit divides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.minute_counts import DAY, HOUR, MinuteCounts

Range = tuple[int, int]

# Longer than all times.
_STEP_MAX = 2**62


@dataclass(slots=True)
class Tally:
    """Counts by step of time, and the ranges of time whose rows have to be read, to be added or to be subtracted."""

    start: int
    step: int
    counts: dict[int, int] = field(default_factory=dict)
    unread: list[Range] = field(default_factory=list)
    excess: list[Range] = field(default_factory=list)

    def add(self, ts: int, count: int) -> None:
        """Count messages at a time."""
        index = (ts - self.start) // self.step
        self.counts[index] = self.counts.get(index, 0) + count

    def add_rows(self, record: records.Run, rows: int, sign: int, *, sorted_by_time: bool = True) -> None:
        """Count rows of a run by their own times."""
        ts, start, step = record.ts, self.start, self.step
        for first, end in masks.ranges(rows):
            if sorted_by_time and (ts[first] - start) // step == (ts[end - 1] - start) // step:
                self.add(ts[first], sign * (end - first))
            else:
                for value in ts[first:end]:
                    self.add(value, sign)

    def add_times(self, times: npt.NDArray[np.int64], sign: int) -> None:
        """Count messages at times."""
        # A count has one step, which is longer than any time that numpy knows.
        indexes = (times - self.start) // min(self.step, _STEP_MAX)
        for index, count in zip(*np.unique(indexes, return_counts=True), strict=True):
            self.counts[int(index)] = self.counts.get(int(index), 0) + sign * int(count)

    def steps(self) -> list[tuple[int, int]]:
        """(start of step, count) of each step that has messages."""
        return [(self.start + index * self.step, count) for index, count in sorted(self.counts.items()) if count]


class CountReading:
    """Reads the counts of [low, high) into a tally.

    `low` may divide its minute only because it is the present time: then the whole minute is counted, and the rows
    before `low` are an excess of the tally. Those are few, since most of them are leased or have left.
    """

    def __init__(self, counts: MinuteCounts, tally: Tally, low: int, high: int, *, low_is_now: bool = False) -> None:
        self._counts, self._tally = counts, tally
        self._low, self._high = low, high
        self._from = low // keys.MINUTE_MS * keys.MINUTE_MS if low_is_now else low
        self._first, self._last = low // keys.MINUTE_MS, (high - 1) // keys.MINUTE_MS
        # Every minute before this one was read.
        self._position = self._first
        self._cut: set[int] = set()
        self._ended = False
        counts.watch(self._changed)

    async def read(self, pace: QueryPace) -> None:
        """Read every count; other tasks run meanwhile."""
        while self._position <= self._last:
            day = self._counts.first_day(self._position // DAY)
            if day is None or day * DAY > self._last:
                break
            self._position = max(self._position, day * DAY)
            if self._position == day * DAY and self._is_whole(day, DAY):
                self._take(self._position, self._counts.on_day(day), cut=False)
                self._position += DAY
            else:
                for hour in range(self._position // HOUR, min((day + 1) * 24, self._last // HOUR + 1)):
                    self._read_hour(hour)
                    await pace.rest()
            await pace.rest()
        self._position = self._last + 1

    def _read_hour(self, hour: int) -> None:
        begin, behind = max(hour * HOUR, self._position), min((hour + 1) * HOUR, self._last + 1)
        count = self._counts.in_hour(hour)
        if count and begin == hour * HOUR and self._is_whole(hour, HOUR):
            self._take(begin, count, cut=False)
        elif count:
            in_minute = self._counts.in_minute
            for minute in range(begin, behind):
                count = in_minute(minute)
                if count:
                    self._take(minute, count, cut=not self._is_whole(minute, 1))
        self._position = (hour + 1) * HOUR

    def _changed(self, minute: int, delta: int) -> None:
        if self._first <= minute < self._position and minute <= self._last:
            self._take(minute, delta, cut=not self._is_whole(minute, 1))

    def _take(self, minute: int, count: int, *, cut: bool) -> None:
        if cut:
            self._cut.add(minute)
        else:
            self._tally.add(minute * keys.MINUTE_MS, count)

    def _is_whole(self, number: int, minutes: int) -> bool:
        """Whether a minute, hour or day lies within one step and within the limits."""
        begin = number * minutes * keys.MINUTE_MS
        last = begin + minutes * keys.MINUTE_MS - 1
        start, step = self._tally.start, self._tally.step
        return self._from <= begin and last < self._high and (begin - start) // step == (last - start) // step

    def end(self) -> None:
        """Stop: the tally has the counts as they are now, and the ranges that have to be read from the rows."""
        if self._ended:
            return
        self._ended = True
        self._counts.unwatch(self._changed)
        unread = self._tally.unread
        for minute in sorted(self._cut):
            bottom = max(minute * keys.MINUTE_MS, self._low)
            top = min((minute + 1) * keys.MINUTE_MS, self._high)
            if unread and unread[-1][1] == bottom:
                unread[-1] = (unread[-1][0], top)
            else:
                unread.append((bottom, top))
        if self._from < self._low and self._first not in self._cut:
            self._tally.excess.append((self._from, self._low))
