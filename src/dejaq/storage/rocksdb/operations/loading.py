"""Reading rows into memory, in short steps between which other tasks run: ahead of time, and for a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# Steps are done for so long before others run.
_BUSY_S = 0.001
# A topic that nobody leased from or loaded for so long gives its memory to others.
_IDLE_S = 10.0


class RowLoader:
    """Reads the rows of topics that are due soon. `is_live` returns whether a state is still that of its topic."""

    def __init__(self, states: Callable[[], Sequence[TopicState]], is_live: Callable[[TopicState], bool]) -> None:
        self._states, self._is_live = states, is_live
        self._began = 0.0

    async def load(self, state: TopicState, buckets: Sequence[int], until: int) -> None:
        """Read what is due up to `until`, as far as there is memory for it."""
        state.used_at = self._began = time.monotonic()
        if state.runs.budget.spent:
            await self._unload_idle(state)
        for bucket in (*buckets, keys.SPREAD):
            while self._is_live(state) and state.load_near(bucket, until):
                await self._let_others_run()

    async def read_due(self, state: TopicState, buckets: Sequence[int], until: int) -> None:
        """Read what a lease needs."""
        state.used_at = self._began = time.monotonic()
        if state.has_read(buckets, until):
            return
        for bucket in (*buckets, keys.SPREAD):
            steps = 0
            while self._is_live(state) and state.read_step(bucket, until, steps):
                steps += 1
                await self._let_others_run()

    async def divide(self, state: TopicState, buckets: Sequence[int], now: int) -> None:
        """Divide what lies over several buckets, until a row of these buckets comes next: a lease divides few runs."""
        if not isinstance(state, PriorityTopicState):
            return
        self._began = time.monotonic()
        while self._is_live(state) and state.divide_step(buckets, now):
            await self._let_others_run()

    async def _unload_idle(self, state: TopicState) -> None:
        """Forget the rows of topics that nobody leases from."""
        for other in self._states():
            if other is not state and other.loaded and time.monotonic() - other.used_at > _IDLE_S:
                for bucket in other.loaded:
                    if self._is_live(other):
                        other.unload(bucket)
                    await asyncio.sleep(0)

    async def _let_others_run(self) -> None:
        if time.monotonic() - self._began > _BUSY_S:
            await asyncio.sleep(0)
            self._began = time.monotonic()
