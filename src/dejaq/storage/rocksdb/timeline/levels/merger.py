"""The background merge: wide runs that overlap become runs that follow each other.

A merge reads the rows of some runs of one producer group as columns, sorts them, and moves one piece of them after the
other into a run of its own, each in one atomic write. It works in short steps, the longest of which writes a piece.
Other tasks run between them, so rows may be leased, changed or cancelled after they were read. A piece is made of the
rows that are still free when it is written. Rows in a lease remain in their run. Nothing depends on a merge: a run that
is not merged is leased, found and counted too, only more slowly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from dejaq.crashpoints import crash_at
from dejaq.domain.changes import Change, Create
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import new_batch
from dejaq.storage.rocksdb.timeline.levels.columns import MergedColumns
from dejaq.storage.rocksdb.timeline.levels.planning import MergePlan, next_merge
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

log = logging.getLogger(__name__)

# A step ends when it took so long.
STEP_S = 0.001
# While others have work, a merge of rows that are due soon takes about one part in so many of the time. Other merges
# take less: the more runs wait, the more, so that creates that continue for minutes pay only for what has to be done.
SHARE = 3
FAR_SHARE = 12
# A loop that comes back within this time had nothing else to do.
IDLE_S = 0.0003
# How often the present time is compared with the runs that come near.
LOOK_EVERY_MS = 1_000
# More rows than these are sorted in a thread.
SORT_ROWS_MAX = 8_192
# So many pieces are written in one step where rows are copied as bytes: what is written for each source is less.
CELL_PIECES = 2
# A lease waits at most so long for merges, and looks this often.
LEAD_S, WAIT_S = 0.02, 0.001
# How often a piece is made before it is written in the same step.
_TRIES = 3
# A piece is divided by bucket if many consumers share the buckets and each bucket would have so many rows.
BUCKET_ROWS_MIN = 8


class _Pace:
    """Divides the work into steps, and leaves most of the time to others while they need it."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.longest_s = 0.0
        self.share: float = SHARE
        self._began = time.perf_counter()

    def start(self) -> None:
        """Begin to count: what passed since the last step was no work."""
        self._began = time.perf_counter()

    @property
    def step_is_over(self) -> bool:
        return time.perf_counter() - self._began >= STEP_S

    async def rest(self) -> None:
        """Let others run if the step took long enough."""
        if self.step_is_over:
            await self.pause()

    async def pause(self) -> None:
        """Let others run."""
        now = time.perf_counter()
        took = now - self._began
        self.busy_s += took
        self.longest_s = max(self.longest_s, took)
        await asyncio.sleep(0)
        if time.perf_counter() - now > IDLE_S:
            await asyncio.sleep((self.share - 1) * took)
        self._began = time.perf_counter()


class Merger:
    """Merges the wide runs of all topics of a store, one merge at a time."""

    def __init__(
        self,
        states: Callable[[], Sequence[TopicState]],
        committer: Committer,
        fail: Callable[[str], None],
    ) -> None:
        self._states, self._committer, self._fail = states, committer, fail
        self._wake = asyncio.Event()
        self._looked_at = 0
        self._pace = _Pace()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._working = False
        # How long a create waits.
        self._behind = 0.0
        self.merges = 0
        self.rows = 0

    def changed(self, states: Sequence[TopicState], now: int) -> None:
        """Take note of a write to the topics; it may have added wide runs, or time may have brought some near."""
        if now - self._looked_at >= LOOK_EVERY_MS or any(_grew(one) for one in states):
            self._looked_at = now
            for state in states:
                state.wide.grown = 0
            if self._task is None and not self._stopped:
                self._task = asyncio.get_running_loop().create_task(self._run())
            self._wake.set()

    @property
    def behind(self) -> bool:
        """Whether creates have to wait."""
        return self._behind > 0

    async def make_room(self, changes: Sequence[Change]) -> None:
        """Slow the creates of topics down whose merges are hopelessly behind; `merge_behind` in `stats` says so."""
        if self._behind and any(isinstance(change, Create) for change in changes):
            await asyncio.sleep(self._behind)

    async def lead(self, state: TopicState, buckets: Sequence[int], now: int) -> None:
        """Wait a moment while rows are merged of which a lease would have to take single ones of many runs."""
        if not state.thin.wanted or not isinstance(state, PriorityTopicState):
            return
        until = time.perf_counter() + LEAD_S
        while state.thin.wanted and time.perf_counter() < until and self._is_live(state):
            first = state.first_priority(buckets, now)
            if first is None or not state.thin.is_behind(first):
                return
            await asyncio.sleep(WAIT_S)

    async def stop(self) -> None:
        """End the merge that is in progress; what it has written stands."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def settle(self) -> None:
        """Wait until nothing has to be merged."""
        while not self._stopped and (self._working or await self._next() is not None):
            self._wake.set()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())
            await asyncio.sleep(0.001)

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        levels: dict[int, int] = {}
        for state in self._states():
            for shelf, entries in state.wide.shelves():
                levels[shelf.level] = levels.get(shelf.level, 0) + len(entries)
        return {
            "merges": self.merges,
            "merged_rows": self.rows,
            "merge_seconds": self._pace.busy_s,
            "merge_behind": float(self._behind > 0),
            "merge_step_seconds_max": self._pace.longest_s,
            **{f"wide_runs_level_{level}": count for level, count in sorted(levels.items())},
        }

    # Merging

    async def _run(self) -> None:
        while not self._stopped:
            await self._wake.wait()
            self._wake.clear()
            self._pace.start()
            await self._pace.pause()
            while not self._stopped and (found := await self._next()) is not None:
                self._working = True
                try:
                    await self._merge(*found)
                except Exception as cause:
                    # What is in memory may be ahead of the disk; the store is read again before it takes anything.
                    log.exception("a merge failed")
                    self._fail(f"a merge failed: {cause!r}")
                    self._stopped = True
                finally:
                    self._working = False

    async def _next(self) -> tuple[TopicState, MergePlan] | None:
        best: tuple[TopicState, MergePlan] | None = None
        behind = 0.0
        for state in self._states():
            plan = None
            # What cannot be read must not be written again.
            if not state.database.values.is_locked(state.topic):
                plan = state.thin.next_merge(state.index.is_young)
                if plan is None and len(state.wide):
                    plan = await next_merge(state.wide, state.levels, state.now, self._pace.rest)
            if plan is not None and plan.waiting >= state.levels.behind_runs:
                behind = state.levels.behind_s
            if plan is not None and (best is None or plan.near > best[1].near):
                best = state, plan
        self._behind = behind
        return best if best is not None and self._is_live(best[0]) else None

    def _is_live(self, state: TopicState) -> bool:
        return not self._stopped and any(state is one for one in self._states())

    async def _merge(self, state: TopicState, plan: MergePlan) -> None:
        """Move every free row of the planned runs."""
        kept: list[Run] = []
        self._pace.share = 1 if state.thin.wanted else share_of(plan, state.levels.behind_runs)
        merge = state.next_number()
        try:
            columns = await self._gather(state, plan, kept)
            if len(columns) > SORT_ROWS_MAX:
                await asyncio.to_thread(columns.sort)
            else:
                columns.sort()
            rows = max(1, min(state.levels.piece_rows, state.levels.piece_bytes // _row_bytes(state, plan)))
            step = rows * CELL_PIECES if columns.are_cells else rows
            if plan.shelf.by_priority:
                # Whole runs are merged, each of which is changed once if all is written at once, in equal pieces.
                step = max(1, len(columns))
                rows = -(-step // -(-step // rows))
            for start in range(0, len(columns), step):
                await self._committer.make_room()
                if not self._is_live(state):
                    return
                await self._move(state, plan, merge, columns, range(start, min(start + step, len(columns)), rows), kept)
                await self._pace.pause()
        finally:
            for run in kept:
                if not run.in_window and state.runs.keeps(run) and not state.leases.on_run(run.key):
                    state.runs.let_go(run)
        self.merges += 1
        # What is left of them is in a lease, or due.
        (state.thin if plan.shelf.by_priority else state.wide).set_aside(plan.runs)

    async def _gather(self, state: TopicState, plan: MergePlan, kept: list[Run]) -> MergedColumns:
        """Read the free rows of the runs."""
        columns = MergedColumns(by_priority=plan.shelf.by_priority)
        for key in plan.runs:
            if not self._is_live(state):
                return MergedColumns()
            run = _source(state, plan, key, kept)
            if run is not None and run.free:
                columns.add(run, run.free, None if plan.shelf.by_priority else state.runs.packed(run.key))
            if self._pace.step_is_over:
                await self._pace.pause()
        return columns

    async def _move(
        self,
        state: TopicState,
        plan: MergePlan,
        merge: int,
        columns: MergedColumns,
        pieces: range,
        kept: list[Run],
    ) -> None:
        """Move those of the next rows that are still free into runs of their own, each of a `step` of the range.

        The columns of these runs are made in one step, and written in the next one, unless rows left meanwhile.
        """
        start, end = pieces.start, pieces.stop
        taken = columns.take(start, end)
        for last in (*[False] * (_TRIES - 1), True):
            sources, lost = _free_of(state, plan, columns, taken, kept)
            # On a timeline, what is due by now is leased before it could be moved.
            ending = not plan.shelf.by_priority and columns.time_at(end - 1) < state.now + state.levels.ending_ms
            if not sources or ending:
                return
            positions = columns.positions(start, end, lost)
            shared = plan.near and plan.shelf.bucket == keys.SPREAD and state.demand.shared_by_many
            shared = shared and not plan.shelf.by_priority
            divided = shared and len(positions) >= BUCKET_ROWS_MIN * state.topic.settings.buckets
            owner = state.owners.name(plan.shelf.owner)
            buckets_of = state.index.buckets_of if divided else None
            parts = columns.pieces(positions, pieces.step)
            merged = [one for part in parts for one in columns.encoded(owner, plan.shelf.bucket, part, buckets_of)]
            if last:
                break
            await self._pace.pause()
            if not self._is_live(state):
                return
            if _free_of(state, plan, columns, taken, kept) == (sources, lost):
                break
        batch = new_batch()
        state.replace_rows(batch, sources, merged, shelf=plan.shelf, merge=merge)
        crash_at("storage.before_merge")
        self._committer.write(batch)
        crash_at("storage.after_merge")
        self.rows += len(positions)


def _grew(state: TopicState) -> bool:
    return state.wide.grown >= state.levels.near_runs or state.thin.waiting


def share_of(plan: MergePlan, behind_runs: int) -> float:
    """A merge takes one part in so many of a busy loop's time; so many runs that wait slow creates down."""
    waiting = 1.0 if plan.near else min(1.0, plan.waiting / behind_runs)
    return FAR_SHARE - (FAR_SHARE - SHARE) * waiting


def _free_of(
    state: TopicState, plan: MergePlan, columns: MergedColumns, taken: list[tuple[int, int]], kept: list[Run]
) -> tuple[list[tuple[Run, int]], dict[int, int]]:
    """Those of some rows of runs that are free now, and the others by the number of the run."""
    sources: list[tuple[Run, int]] = []
    lost: dict[int, int] = {}
    for number, rows in taken:
        run = _source(state, plan, columns.keys[number], kept)
        free = rows & run.free if run is not None else 0
        if free != rows:
            lost[number] = rows & ~free
        if run is not None and free:
            sources.append((run, free))
    return sources, lost


def _row_bytes(state: TopicState, plan: MergePlan) -> int:
    """The average size of a row of the runs in bytes, roughly."""
    if plan.row_bytes:
        return plan.row_bytes
    sizes = [state.wide.at(key) for key in plan.runs if key in state.wide]
    return max(1, sum(size.size for size in sizes) // (sum(size.rows for size in sizes) or 1))


def _source(state: TopicState, plan: MergePlan, key: bytes, kept: list[Run]) -> Run | None:
    """A run that is merged, as it is now, and kept in memory until the merge ends; None once it has gone."""
    known = state.thin if plan.shelf.by_priority else state.wide
    if key not in known or state.index.is_young(key) is not plan.shelf.young:
        return None
    run = state.runs.kept(key)
    if run is None:
        run = state.runs.at(keys.place(key))
        state.runs.keep(run)
        kept.append(run)
    return run
