"""The runs that have rows in some ranges of time, as they were when a view was taken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from itertools import islice

from dejaq.errors import Code, DejaqError, error_of
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

Range = tuple[int, int]

# So many keys are looked through in one go.
_KEYS_AT_ONCE = 250
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
        self._wide = wide

    async def each(self, pace: QueryPace) -> AsyncIterator[tuple[Run, int]]:
        """Each run once, with the mask of the rows that were live; other tasks run meanwhile."""
        seen = set(self._wide)
        for bucket in (*range(self._state.topic.settings.buckets), keys.SPREAD):
            for start, end in self._key_ranges(bucket):
                while start < end:
                    items = list(islice(self._view.items(start, end), _KEYS_AT_ONCE))
                    wanted = [item for item in items if item[0] not in seen and self._may_have(item[0])]
                    seen.update(key for key, _ in wanted)
                    gone = gone_rows(self._view, wanted)
                    for key, stored in wanted:
                        yield self.run_of(key, stored, gone.get(key[1:], 0))
                        await pace.rest()
                    start = items[-1][0] + b"\0" if len(items) == _KEYS_AT_ONCE else end
                    await pace.rest()
        for key in self._wide:
            if self._owner is None or keys.owner_of(key) == self._owner:
                wide = self._view.get(key)
                if wide is None:
                    raise lost_run(self._state)
                yield self.run_of(key, wide, masks.unpack(self._view.get(keys.gone(key)) or b""))
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


def gone_rows(view: View, items: Sequence[tuple[bytes, bytes]]) -> dict[bytes, int]:
    """The rows that have left, of those runs of which some have; by key without the table."""
    if not items:
        return {}
    first, last = keys.gone(items[0][0]), keys.gone(items[-1][0])
    return {key[1:]: masks.unpack(value) for key, value in view.items(first, last + b"\0")}
