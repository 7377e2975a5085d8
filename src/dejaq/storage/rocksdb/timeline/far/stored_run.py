"""Runs that are only on disk, of which single rows are read: a run in groups of rows is not read as a whole.

What is known of such a run is kept: where it is, which of its rows exist, and the head of its groups.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, FrameAddress
from dejaq.storage.rocksdb.bodies.row_groups import ID_HEAD_BYTES, TIME_BYTES, GroupPart, RowGroups
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.engine.frames import address_in
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.far.run_parts import RunPlace, groups_at, rows_at
from dejaq.storage.rocksdb.timeline.far.step_size import StepSize
from dejaq.storage.rocksdb.timeline.memory.budget import Budget, bytes_of_known_run

if TYPE_CHECKING:
    from dejaq.storage.rocksdb.timeline.far.far_rows import FoundAhead

# So many runs of a topic are known at most, of about a kilobyte each.
KNOWN_RUNS_MAX = 16_384
# More ids are not looked for in one step, because their bodies may be large.
FIND_IDS_MAX = 250
# A place in a file has fewer.
OFFSET_BITS = 40

# The body, priority and encoded headers of a row.
Values = tuple[bytes, int, bytes]


class StoredRun:
    """A run on disk. `live` rows exist; none of them may be in memory or leased."""

    __slots__ = (
        "_groups",
        "_record",
        "bucket",
        "count",
        "counted",
        "head",
        "is_rare",
        "key",
        "live",
        "origin",
        "owner",
        "place",
    )

    def __init__(self, database: RocksDatabase, key: bytes, stored: bytes, gone: int) -> None:
        self.key = key
        self.place = RunPlace(key, stored, address_in(stored))
        self._groups = groups_at(database, self.place)
        self._record: records.Run | None = None
        if self._groups is not None:
            self.count = self._groups.rows
        else:
            self._record = records.Run.FromString(database.run_at(key, stored))
            self.count = len(self._record.ts)
        self.live = masks.full(self.count) & ~gone
        self.bucket, self.owner = keys.bucket_of(key), keys.owner_of(key)
        # Whether its rows were leased before, have large bodies, or ids that are counters.
        self.is_rare = self._record is not None and _is_rare(self._record)
        # The head of groups that are bytes of a file, as they are, and where that file has the first of them.
        self.head, self.origin = b"", 0
        if self._groups is not None and self.place.address is not None and database.values.is_plain(key):
            self.head, self.origin = self._groups.packed, origin_of(self.place.address, self._groups.start)
        # The memory that this object takes.
        self.counted = bytes_of_known_run(len(self._groups.packed if self._groups else b"") + self.count // 4)

    @property
    def is_small(self) -> bool:
        """Whether this object has no row."""
        return self._record is None and self.place.address is not None

    def is_in_file(self, database: RocksDatabase) -> bool:
        """Whether its groups can be read as bytes of a file: the frame is not in a change that is pending."""
        return bool(self.head) and (database.overlay.empty or database.overlay.frame(self.place.stored) is None)

    def find(self, database: RocksDatabase, ts: int, message_id: str) -> tuple[int, Values] | None:
        """The live row with a time and an id; the run may have another id with the same hash at that time."""
        groups = self._groups
        if groups is None:
            assert self._record is not None
            return self.find_decoded(0, self._record, ts, message_id)
        group = groups.find(ts)
        while True:
            part = groups.part(group)
            data = rows_at(database, self.place, groups, part)
            found = (
                self._find_plain(groups, part, data, ts, message_id)
                if groups.plain
                else self.find_decoded(part.row, records.Run.FromString(data), ts, message_id)
            )
            if found is not None or not groups.begins_with(group, ts):
                return found
            group -= 1

    def _find_plain(
        self, groups: RowGroups, part: GroupPart, data: bytes, ts: int, message_id: str
    ) -> tuple[int, Values] | None:
        """Find a row in a group whose cells all have their places: the times, the ids, the bodies."""
        cell = message_id.encode()
        size = groups.id_bytes
        if len(cell) != size:
            return None
        width = ID_HEAD_BYTES + size
        start, end = groups.ids_in(part.rows)
        first = start - TIME_BYTES * part.rows
        at = data.find(cell, start, end)
        while at >= 0:
            row, rest = divmod(at - start, width)
            if rest == ID_HEAD_BYTES:
                due = int.from_bytes(data[first + TIME_BYTES * row : first + TIME_BYTES * (row + 1)], "little")
                if due == ts and self.live >> part.row + row & 1:
                    body_bytes = groups.body_bytes
                    stop = end + (len(data) - end) // part.rows * (row + 1)
                    return part.row + row, (data[stop - body_bytes : stop], 0, b"")
            at = data.find(cell, at + 1, end)
        return None

    def find_decoded(self, before: int, record: records.Run, ts: int, message_id: str) -> tuple[int, Values] | None:
        """Find a row among those of a record, which are behind others of the run."""
        times: Sequence[int] = record.ts
        row = bisect_left(times, ts)
        while row < len(times) and times[row] == ts:
            if self.live >> before + row & 1 and record.ids[row] == message_id:
                priority = record.priorities[row] if record.priorities else 0
                return before + row, (record.bodies[row], priority, record.headers[row] if record.headers else b"")
            row += 1
        return None


def _is_rare(record: records.Run) -> bool:
    return bool(record.session or record.attempts or record.apart or record.firsts or record.lasts)


def origin_of(address: FrameAddress, start: int) -> int:
    """A place in a frame as one number, in the order of the files."""
    return address.file << OFFSET_BITS | address.offset + FRAME_HEADER_BYTES + start


class RunsOnDisk:
    """The runs of a topic on disk that were searched lately, by key."""

    def __init__(self, database: RocksDatabase, budget: Budget) -> None:
        self._database, self._budget = database, budget
        self._runs: dict[bytes, StoredRun] = {}
        # Rows that were found for the change that follows.
        self.ahead: FoundAhead | None = None
        # How many ids a step of the event loop looks for.
        self.finding = StepSize(FIND_IDS_MAX)

    def take_ahead(self) -> FoundAhead | None:
        """The rows that were found for the present change."""
        ahead, self.ahead = self.ahead, None
        return ahead

    def read(self, wanted: Sequence[bytes]) -> Iterator[StoredRun]:
        """Those of the runs that exist, one after the other: those that must be decoded need much memory together."""
        runs, database = self._runs, self._database
        unknown = [key for key in wanted if key not in runs]
        values = database.get_many(unknown)
        gone = database.get_many([keys.gone(key) for key in unknown])
        yield from [runs[key] for key in wanted if key in runs]
        for key, value, mask in zip(unknown, values, gone, strict=True):
            if value is not None:
                run = StoredRun(database, key, value, masks.unpack(mask) if mask else 0)
                if run.is_small:
                    self._keep(run)
                yield run

    def knows(self, run: StoredRun) -> bool:
        """Whether this is what is known of a run, and the run has not been moved or replaced since."""
        return self._runs.get(run.key) is run

    def _keep(self, run: StoredRun) -> None:
        while self._runs and (len(self._runs) >= KNOWN_RUNS_MAX or self._budget.knows_enough):
            self.forget(next(iter(self._runs)))
        self._runs[run.key] = run
        self._budget.known += run.counted

    def forget(self, key: bytes) -> None:
        """Read a run again when it is needed: its rows have changed, or their place."""
        run = self._runs.pop(key, None)
        if run is not None:
            self._budget.known -= run.counted

    def close(self) -> None:
        """Forget every run."""
        self.ahead = None
        for key in list(self._runs):
            self.forget(key)
