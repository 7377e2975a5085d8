"""The runs that have rows in some ranges of time, as they were when a view was taken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.far.packed_run import times_in
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

Range = tuple[int, int]
Times = npt.NDArray[np.int64]

# So many keys are looked through in one go.
_KEYS_AT_ONCE = 250
# So many wide runs are found in one go. Their values are mostly pointers, and else at most half a megabyte.
_WIDE_AT_ONCE = 16
# With more searches than these, all keys between the first and the last range are looked through.
_SEARCHES_MAX = 4_096


def lost_run(state: TopicState) -> DejaqError:
    """The error for a run that is known and not stored."""
    what = f"the store has lost messages of topic {state.topic.name!r}; restore it from a backup"
    return error_of(Code.STORE_CORRUPT, what)


class RunsTouching:
    """Finds the runs. Make it when the view is taken: it remembers which wide runs there are, unless `wide` has them.

    The ranges are sorted and do not overlap. Runs in the order of priority are left out.
    """

    def __init__(
        self,
        state: TopicState,
        view: View,
        ranges: Sequence[Range],
        owner: int | None = None,
        *,
        wide: list[bytes] | None = None,
    ) -> None:
        self._state, self._view, self._ranges, self._owner = state, view, ranges, owner
        # With many ranges, most of these have rows in one of them.
        if wide is None:
            wide = list(state.wide.between(ranges[0][0], ranges[-1][1])) if ranges else []
        if owner is not None:
            wide = [key for key in wide if keys.owner_of(key) == owner]
        self._wide = sorted(wide)

    async def each(self, pace: QueryPace) -> AsyncIterator[tuple[Run, int]]:
        """Each run once, with the mask of the rows that were live; other tasks run meanwhile."""
        async for found in self._found(pace):
            yield self.run_of(*found)
            await pace.rest()

    async def times(self, pace: QueryPace) -> AsyncIterator[tuple[int, Times]]:
        """The owner of each run and the times of its live rows, from the first range to the end of the last; other
        tasks run meanwhile. No column but the times is decoded.
        """
        async for found in self._found(pace):
            times = self.times_of(*found)
            if len(times):
                yield keys.owner_of(found[0]), times
            await pace.rest()

    async def narrow(self, pace: QueryPace) -> AsyncIterator[tuple[Run, int]]:
        """The same as `each` without the wide runs."""
        async for found in self._found_narrow(pace):
            yield self.run_of(*found)
            await pace.rest()

    def wide(self, key: bytes) -> tuple[Run, int]:
        """One of the wide runs, in the same form."""
        stored = self._view.get(key)
        if stored is None:
            raise lost_run(self._state)
        return self.run_of(key, stored, masks.unpack(self._view.get(keys.gone(key)) or b""))

    async def _found(self, pace: QueryPace) -> AsyncIterator[tuple[bytes, bytes, int]]:
        """The key of each run, what is stored under it, and the mask of the rows that have left."""
        async for narrow in self._found_narrow(pace):
            yield narrow
        for first in range(0, len(self._wide), _WIDE_AT_ONCE):
            wide = self._wide[first : first + _WIDE_AT_ONCE]
            left = self._view.get_sorted([keys.gone(key) for key in wide])
            for key, found, mask in zip(wide, self._view.get_sorted(wide), left, strict=True):
                if found is None:
                    raise lost_run(self._state)
                yield key, found, masks.unpack(mask) if mask else 0
            await pace.rest()

    async def _found_narrow(self, pace: QueryPace) -> AsyncIterator[tuple[bytes, bytes, int]]:
        seen = set(self._wide)
        for bucket in (*range(self._state.topic.settings.buckets), keys.SPREAD):
            for start, end in self._key_ranges(bucket):
                while start < end:
                    items = list(islice(self._view.items(start, end), _KEYS_AT_ONCE))
                    wanted = [item for item in items if item[0] not in seen and self._may_have(item[0])]
                    seen.update(key for key, _ in wanted)
                    gone = gone_rows(self._view, wanted)
                    for key, stored in wanted:
                        yield key, stored, gone.get(key[1:], 0)
                    start = items[-1][0] + b"\0" if len(items) == _KEYS_AT_ONCE else end
                    await pace.rest()

    def _key_ranges(self, bucket: int) -> list[tuple[bytes, bytes]]:
        """The key ranges of a bucket that may have runs of a single slice."""
        topic = self._state.topic
        slices = [
            (bottom // keys.SLICE_MS, min((top - 1) // keys.SLICE_MS, keys.READY_SLICE - 1) + 1)
            for bottom, top in self._ranges
        ]
        if len(slices) * topic.settings.buckets > _SEARCHES_MAX:
            slices = [(slices[0][0], slices[-1][1])]
        number = topic.number
        return [(keys.slice_start(number, bucket, low), keys.slice_start(number, bucket, high)) for low, high in slices]

    def _may_have(self, key: bytes) -> bool:
        if self._owner is not None and keys.owner_of(key) != self._owner:
            return False
        # A wide run that begins here may also be among these keys; its own times decide later.
        at = keys.slice_of(key) * keys.SLICE_MS
        behind = bisect_left(self._ranges, (at + keys.SLICE_MS,))
        return behind > 0 and self._ranges[behind - 1][1] > at

    def run_of(self, key: bytes, stored: bytes, gone: int) -> tuple[Run, int]:
        """The run in memory if all its columns are there, else the run as it is stored."""
        kept = self._state.runs.kept(key)
        if kept is not None and kept.held == kept.count:
            return kept, masks.full(kept.count) & ~gone
        run = Run.parse(key, self._view.run_at(key, stored), gone)
        return run, run.live

    def times_of(self, key: bytes, stored: bytes, gone: int) -> Times:
        """The times of the live rows of a run, from the first range to the end of the last."""
        kept = self._state.runs.kept(key)
        if kept is not None and kept.held == kept.count:
            ts: Sequence[int] = kept.record.ts
        else:
            ts = times_in(self._view.run_at(key, stored))
        first, end = bisect_left(ts, self._ranges[0][0]), bisect_left(ts, self._ranges[-1][1])
        times = np.array(ts[first:end], dtype=np.int64)
        left = (gone >> first) & masks.full(end - first)
        return times[~masks.flags(left, end - first)] if left else times


def gone_rows(view: View, items: Sequence[tuple[bytes, bytes]]) -> dict[bytes, int]:
    """The rows that have left, of those runs of which some have; by key without the table."""
    if not items:
        return {}
    first, last = keys.gone(items[0][0]), keys.gone(items[-1][0])
    return {key[1:]: masks.unpack(value) for key, value in view.items(first, last + b"\0")}
