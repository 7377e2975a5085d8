"""The runs of a topic that are kept in memory; reads the other runs from disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.engine.frames import address_in, size_of
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.far.packed_run import PackedRun
from dejaq.storage.rocksdb.timeline.far.stored_run import RunsOnDisk
from dejaq.storage.rocksdb.timeline.lease import LeaseBook
from dejaq.storage.rocksdb.timeline.memory.budget import Budget, bytes_of_run
from dejaq.storage.rocksdb.timeline.memory.remaining import forget_settled, is_mostly_settled
from dejaq.storage.rocksdb.timeline.run import Run

# One step of loading takes a millisecond; with so few runs, when the memory is used up, much less.
_STEP_BYTES = 256 * 1024
_STEP_RUNS = 64
FEW_RUNS = 8


class KeptRuns:
    """Runs by key. The memory that they take counts against the budget of the store."""

    def __init__(self, topic: int, database: RocksDatabase, leases: LeaseBook, budget: Budget) -> None:
        self._topic = topic
        self._database = database
        self._leases = leases
        self.budget = budget
        self._runs: dict[bytes, Run] = {}
        # What is known of others.
        self.stored = RunsOnDisk(database, budget)
        self._shared: dict[bytes, Run] | None = None

    def close(self) -> None:
        """Release the memory of every run."""
        for run in list(self._runs.values()):
            self.let_go(run)
        self.stored.close()

    def leased(self, place: bytes) -> Run:
        """The run of a part of a lease, kept from now on; a run without rows when every row has left."""
        try:
            run = self.at(place)
        except KeyError:
            return Run(keys.at_place(keys.RUN, self._topic, place), records.Run(), 0)
        self.keep(run)
        return run

    def at(self, place: bytes) -> Run:
        """The run at a place: the run in memory, or a run that is read from disk for this use only."""
        key = keys.at_place(keys.RUN, self._topic, place)
        run = self._shared.get(key) if self._shared is not None else None
        run = run or self._runs.get(key)
        if run is None:
            value, gone = self._database.get_many([key, keys.gone(key)])
            if value is None:
                raise KeyError(key)
            run = self._parse(key, value, masks.unpack(gone or b""))
        if self._shared is not None:
            self._shared[key] = run
        return run

    def packed(self, key: bytes) -> PackedRun | None:
        """The stored form of a run with all of its rows; None once the run has gone."""
        value = self._database.get(key)
        return None if value is None else PackedRun(self._database.run_at(key, value))

    @property
    def is_sharing(self) -> bool:
        """Whether several steps of one write share runs."""
        return self._shared is not None

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Within this block a run stays one object, even when it is not kept, so that several steps of one write can
        change it.

        The database does not contain the first step when the second step reads.
        """
        self._shared = {}
        try:
            yield
        finally:
            self._shared = None

    def read(self, start: bytes, end: bytes, runs_max: int = _STEP_RUNS) -> tuple[list[Run], bool]:
        """The next runs from `start`, at most one step, and whether these are all runs before `end`."""
        bytes_max = _STEP_BYTES
        if self.budget.exhausted:
            runs_max, bytes_max = min(runs_max, FEW_RUNS), _STEP_BYTES // FEW_RUNS
        items: list[tuple[bytes, bytes]] = []
        size = 0
        for item in self._database.scan(start, end):
            items.append(item)
            size += size_of(item[1])
            if size >= bytes_max or len(items) >= runs_max:
                break
        if not items:
            return [], True
        span = self._database.scan(keys.gone(items[0][0]), keys.gone(items[-1][0]) + b"\0")
        gone = {key[1:]: masks.unpack(value) for key, value in span}
        runs: list[Run] = []
        for key, value in items:
            run = self._runs.get(key)
            if run is None:
                run = self._parse(key, value, gone.get(key[1:], 0))
                self.keep(run)
            runs.append(run)
        return runs, size < bytes_max and len(items) < runs_max

    def _parse(self, key: bytes, stored: bytes, gone: int) -> Run:
        value = self._database.run_at(key, stored)
        return Run.parse(key, value, gone, self._leases.leased_rows(key), address_in(stored))

    def kept(self, key: bytes) -> Run | None:
        """The run in memory."""
        return self._runs.get(key)

    def has_none(self, keys_of_runs: Mapping[bytes, int]) -> bool:
        """Whether none of these runs is in memory."""
        return self._runs.keys().isdisjoint(keys_of_runs.keys())

    def keeps(self, run: Run) -> bool:
        """Whether this object is the kept one of its run."""
        return self._runs.get(run.key) is run

    def keep(self, run: Run) -> None:
        """Keep a run in memory."""
        if run.key not in self._runs:
            self._runs[run.key] = run
            run.counted = bytes_of_run(run)
            self.budget.used += run.counted

    def let_go(self, run: Run) -> None:
        """Keep a run no longer."""
        kept = self._runs.pop(run.key, None)
        if kept is not None:
            self.budget.used -= kept.counted

    def recount(self, run: Run) -> None:
        """Count again how much memory a run takes, after its ids were decoded or most of its rows have left."""
        if self.keeps(run):
            before, run.counted = run.counted, bytes_of_run(run)
            self.budget.used += run.counted - before

    def shrink(self, run: Run) -> None:
        """Forget the rows that left, once few others remain and all of them are leased."""
        if is_mostly_settled(run) and self.keeps(run):
            forget_settled(run)
            self.recount(run)
