"""Snapshots: a whole topic at one instant, read in small portions so that other work continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from dejaq import limits
from dejaq.domain.batch import Portion, RowRange, StoredFrames, StoredRuns, Stretch
from dejaq.domain.message import Status, status_of
from dejaq.domain.topic import Encryption
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import Filter, Share
from dejaq.storage.rocksdb.bodies.large import LARGE
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.engine.frames import size_of
from dejaq.storage.rocksdb.reading.leased import CopiedLease
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.levels.wide_runs import last_of
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

# A portion takes about half a millisecond, so that messages that become due meanwhile are not late.
_PORTION_RUNS = 250
_PORTION_EXTENTS = 500
_PORTION_BYTES = 128 * 1024
# Runs that the caller reads from files itself; it holds those of a portion in memory.
_FRAMED_BYTES = 4 * 1024 * 1024
# Separately stored bodies are read one by one, until a portion has about so many bytes.
_APART_BYTES = 1024 * 1024

# Every column of a run of listed ids.
_COLUMNS = ("ids", "ts", "bodies", "priorities", "attempts", "headers", "apart", "firsts", "lasts", "versions")

Value = TypeVar("Value", int, bytes)


@dataclass(frozen=True, slots=True)
class _LeasedRows:
    """Rows of a run in a lease."""

    lease_id: int
    consumer: str
    expires: int
    part: LeasePart
    rows: int


class _Found(NamedTuple):
    """A run that was read: its record and plain value, and the rows that are gone or leased."""

    key: bytes
    record: records.Run
    value: bytes
    gone: int
    leased: int


class RocksSnapshot:
    """A view of the database, and the leases of the topic at the same instant."""

    def __init__(self, state: TopicState, view: View, leases: list[CopiedLease], now: int) -> None:
        self.at = now
        self.count = state.total
        self._state = state
        self._view = view
        self._leases = leases
        self._leased: list[_LeasedRows] = []
        self._leased_rows: dict[bytes, int] = {}

    async def begin(self, pace: QueryPace) -> None:
        """Find the leased rows of each run; other tasks run meanwhile."""
        for lease in self._leases:
            for expires, rows in lease.terms.items():
                for part, _ in lease.parts:
                    held = part.in_run(rows)
                    if held:
                        key = part.run.key
                        self._leased.append(_LeasedRows(lease.id, lease.consumer, expires, part, held))
                        self._leased_rows[key] = self._leased_rows.get(key, 0) | held
            await pace.rest()
        self._leases.clear()

    def close(self) -> None:
        """Close the view."""
        self._view.close()

    async def scan(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """Leased rows first, then the rows without a lease, bucket by bucket."""
        async for portion in self._scan(buckets, where, bodies=bodies):
            assert isinstance(portion, Portion)
            yield portion

    def scan_stored(
        self, buckets: Sequence[int], where: Filter, *, bodies: bool
    ) -> AsyncIterator[Portion | StoredRuns]:
        """The same as `scan`, but rows without a lease are in their stored form."""
        portions = self._scan(buckets, where, bodies=bodies, stored=True)
        return cast("AsyncIterator[Portion | StoredRuns]", portions)

    @property
    def frames_path(self) -> Path | None:
        """The files of the commit log, unless what they have of the topic may be sealed, or bodies are elsewhere."""
        topic, database = self._state.topic, self._state.database
        prefix = keys.of_topic(keys.RUN, topic.number)
        if topic.settings.encryption is not Encryption.NONE or not database.values.is_plain(prefix):
            return None
        bodies = keys.of_topic(keys.BODY, topic.number)
        return None if any(True for _ in self._view.items(bodies, keys.after(bodies))) else database.log_path

    def scan_shared(
        self, buckets: Sequence[int], share: Share, *, bodies: bool, framed: bool
    ) -> AsyncIterator[Portion | StoredRuns | StoredFrames]:
        """The whole topic as `scan_stored` returns it, but runs over several buckets are not divided."""
        framed = framed and self.frames_path is not None
        return self._scan(buckets, Filter(), bodies=bodies, stored=True, framed=framed, share=share)

    async def _scan(
        self,
        buckets: Sequence[int],
        where: Filter,
        *,
        bodies: bool,
        stored: bool = False,
        framed: bool = False,
        share: Share | None = None,
    ) -> AsyncIterator[Portion | StoredRuns | StoredFrames]:
        wanted = set(buckets)
        for leased in self._scan_leased(wanted, where, bodies=bodies):
            yield leased
            await asyncio.sleep(0)
        if where.consumer is not None or where.status is Status.PROCESSING:
            return
        first = await self._first_slice(where)
        for bucket in (*sorted(wanted), keys.SPREAD):
            for start, end in self._stretches(bucket, first, where):
                while start < end:
                    if framed:
                        frames, found, start = self._framed(start, end, share)
                        if len(frames):
                            yield frames
                    else:
                        found, start = self._found(start, end, share)
                    if stored and (bucket != keys.SPREAD or share is not None):
                        whole, found = self._whole(found, where, bodies=bodies, merged=share is not None)
                        if len(whole):
                            yield whole
                    runs = [
                        (Run(one.key, one.record, len(one.value), one.gone, one.leased), one.value) for one in found
                    ]
                    if bucket == keys.SPREAD and share is None:
                        runs = [cut for run, _ in runs for cut in self._cut(run, wanted)]
                    for portion in self._portions(runs, where, bodies=bodies, stored=stored, shared=share is not None):
                        yield portion
                        await asyncio.sleep(0)
                    await asyncio.sleep(0)

    async def _first_slice(self, where: Filter) -> int:
        """The first slice in which a run may begin that has rows of the filter's times."""
        first = max(0, where.start) // keys.SLICE_MS
        start = keys.of_topic(keys.EXTENT, self._state.topic.number)
        end = keys.after(start)
        while first and start < end:
            found = list(islice(self._view.items(start, end), _PORTION_EXTENTS))
            firsts = [keys.slice_of(key) for key, value in found if last_of(value) >= where.start]
            first = min([first, *firsts])
            start = found[-1][0] + b"\0" if len(found) == _PORTION_EXTENTS else end
            await asyncio.sleep(0)
        return first

    def _stretches(self, bucket: int, first: int, where: Filter) -> list[tuple[bytes, bytes]]:
        """The key ranges that may have rows in the filter's time range; rows in the order of priority are all read."""
        topic = self._state.topic
        last = min(where.end - 1, limits.TS_MS_MAX) // keys.SLICE_MS
        stretches = [(keys.slice_start(topic.number, bucket, first), keys.slice_start(topic.number, bucket, last + 1))]
        if topic.by_priority:
            stretches.append((keys.ready_start(topic.number, bucket), keys.ready_end(topic.number, bucket)))
        return stretches

    async def tally(self, where: Filter, step: int) -> list[tuple[int, int]]:
        """(start of step, count) of the matching messages."""
        counts: dict[int, int] = {}
        async for portion in self.scan(range(self._state.topic.settings.buckets), where, bodies=False):
            for ts in portion.ts:
                start = ts - (ts - where.start) % step
                counts[start] = counts.get(start, 0) + 1
        return sorted(counts.items())

    def _found(self, start: bytes, end: bytes, share: Share | None) -> tuple[list[_Found], bytes]:
        """Some runs from `start` on, and the position to continue from."""
        items: list[tuple[bytes, bytes]] = []
        size = 0
        for item in self._view.items(start, end):
            items.append(item)
            size += size_of(item[1]) if _is_in(share, item[0]) else 0
            if size >= _PORTION_BYTES or len(items) >= _PORTION_RUNS:
                break
        if not items:
            return [], end
        gone = self._gone(items)
        parse, leased, run_at = records.Run.FromString, self._leased_rows, self._view.run_at
        found = []
        for key, stored in items:
            if not _is_in(share, key):
                continue
            value = run_at(key, stored)
            found.append(_Found(key, parse(value), value, gone.get(key[1:], 0), leased.get(key, 0)))
        return found, items[-1][0] + b"\0"

    def _framed(self, start: bytes, end: bytes, share: Share | None) -> tuple[StoredFrames, list[_Found], bytes]:
        """The same with the places of those runs that are in files."""
        frames, found = StoredFrames(), list[_Found]()
        items: list[tuple[bytes, bytes]] = []
        size = held = 0
        for item in self._view.items(start, end):
            items.append(item)
            if _is_in(share, item[0]):
                held, size = held + len(item[1]), size + size_of(item[1])
            if held >= _PORTION_BYTES or size >= _FRAMED_BYTES or len(items) >= _PORTION_RUNS:
                break
        if not items:
            return frames, found, end
        gone, leased = self._gone(items), self._leased_rows
        for key, stored in items:
            if not _is_in(share, key):
                continue
            absent, in_lease = gone.get(key[1:], 0), leased.get(key, 0)
            address = self._view.frame_at(stored)
            if address is not None:
                without = absent | in_lease
                frames.add(address, keys.bucket_of(key), masks.pack(without) if without else b"")
            else:
                value = self._view.run_at(key, stored)
                found.append(_Found(key, records.Run.FromString(value), value, absent, in_lease))
        return frames, found, items[-1][0] + b"\0"

    def _gone(self, items: Sequence[tuple[bytes, bytes]]) -> dict[bytes, int]:
        """The rows that are gone of successive runs, by the places of the runs."""
        first, last = keys.gone(items[0][0]), keys.gone(items[-1][0])
        return {key[1:]: masks.unpack(value) for key, value in self._view.items(first, last + b"\0")}

    def _whole(
        self, found: Sequence[_Found], where: Filter, *, bodies: bool, merged: bool
    ) -> tuple[StoredRuns, list[_Found]]:
        """The runs of which every row belongs to the result, and the others, which need a `Run`.

        `merged`: rows of one run may have different versions.
        """
        whole, others = StoredRuns(), []
        start, end = self._times(where)
        for one in found:
            record, ts = one.record, one.record.ts
            bucket, first, number, _ = keys.unpack_place(keys.place(one.key))
            if (
                one.gone
                or one.leased
                or where.needs_row_scan
                or first >= keys.READY_SLICE
                or not start <= ts[0] <= ts[-1] < end
                or (record.versions and not merged)
                or (bodies and record.apart)
            ):
                others.append(one)
            elif where.owner is None or record.owner == where.owner:
                whole.add(one.value if bodies else _without_bodies(record), bucket, number, len(ts))
        return whole, others

    def _cut(self, run: Run, buckets: set[int]) -> Iterator[tuple[Run, bytes]]:
        """A run over several buckets as one run for each requested bucket."""
        for bucket, rows in self._state.by_bucket(run).items():
            chosen = list(masks.rows(rows & run.free)) if bucket in buckets else []
            if chosen:
                record = records.Run(owner=run.record.owner)
                for name in _COLUMNS:
                    column = getattr(run.record, name)
                    getattr(record, name).extend([column[row] for row in chosen] if column else ())
                key = keys.run(self._state.topic.number, bucket, run.slice, run.number, run.owner)
                value = record.SerializeToString()
                yield Run(key, record, len(value)), value

    def _portions(
        self, runs: Sequence[tuple[Run, bytes]], where: Filter, *, bodies: bool, stored: bool, shared: bool
    ) -> Iterator[Portion | StoredRuns]:
        """The matching rows of the runs in one portion; the rows of a run with separately stored bodies in their own
        portions.
        """
        whole, builder = StoredRuns(), _Builder(self, bodies=bodies)
        for run, value in runs:
            if where.owner is not None and run.record.owner != where.owner:
                continue
            rows = fitting(run, run.free & self._matching(run, where), where)
            if not rows:
                continue
            if bodies and run.record.apart:
                yield from self._with_apart(run, rows, self._state.by_bucket(run))
            elif stored and (shared or not run.merged):
                mask = b"" if rows == masks.full(run.count) else masks.pack(rows)
                whole.add(value if bodies else _without_bodies(run.record), run.bucket, run.number, run.count, mask)
            else:
                for begin, stop in _alike(run, rows):
                    builder.add(run, begin, stop, bucket=run.bucket)
        for portion in (whole, builder.portion):
            if len(portion):
                yield portion

    def _with_apart(self, run: Run, chosen: int, buckets: dict[int, int]) -> Iterator[Portion]:
        builder, size = _Builder(self, bodies=True), 0
        for bucket, row in ((bucket, row) for bucket, rows in buckets.items() for row in masks.rows(rows & chosen)):
            builder.add(run, row, row + 1, bucket=bucket)
            assert builder.portion.bodies is not None
            size += len(builder.portion.bodies[-1])
            if size >= _APART_BYTES:
                yield builder.portion
                builder, size = _Builder(self, bodies=True), 0
        if len(builder.portion):
            yield builder.portion

    def _times(self, where: Filter) -> tuple[int, int]:
        """The range of the times of matching rows without a lease."""
        start, end = where.start, where.end
        if where.status is Status.AVAILABLE:
            end = min(end, self.at + 1)
        elif where.status is Status.WAITING:
            start = max(start, self.at + 1)
        return start, end

    def _matching(self, run: Run, where: Filter) -> int:
        start, end = self._times(where)
        ts = run.record.ts
        whole = not run.by_priority and start <= ts[0] and ts[-1] < end
        return masks.full(run.count) if whole else run.rows_between(start, end)

    def _scan_leased(self, buckets: set[int], where: Filter, *, bodies: bool) -> Iterator[Portion]:
        for held in self._leased:
            run, expires = held.part.run, held.expires
            if (
                (run.spread or run.bucket in buckets)
                and where.start <= expires < where.end
                and where.status in (None, status_of(expires, held.consumer, self.at))
                and where.consumer in (None, held.consumer)
                and where.owner in (None, run.record.owner)
            ):
                builder = _Builder(self, bodies=bodies)
                for bucket, rows in self._state.by_bucket(run).items():
                    if bucket in buckets:
                        for begin, stop in masks.ranges(fitting(run, held.rows & rows, where)):
                            builder.add(run, begin, stop, bucket=bucket, held=held)
                if len(builder.portion):
                    yield builder.portion

    def body(self, number: int) -> bytes:
        """A separately stored body."""
        key = keys.numbered(keys.BODY, self._state.topic.number, number)
        value = self._view.get(key)
        if value is None:
            raise KeyError(f"body {number}")
        return self._state.database.values.opened_body(key, value)


def fitting(run: Run, rows: int, where: Filter) -> int:
    """The rows that match the conditions that only the messages themselves can answer."""
    if not where.needs_row_scan:
        return rows
    record = run.record
    if where.headers and not record.headers:
        return 0
    mask = 0
    for row in masks.rows(rows):
        if where.fits(run.sort_key(row)[1], record.headers[row] if record.headers else b""):
            mask |= 1 << row
    return mask


def _alike(run: Run, rows: int) -> Iterator[RowRange]:
    """Rows without a lease as ranges with the same version."""
    for start, end in masks.ranges(rows):
        if run.merged:
            yield from ((row, row + 1) for row in range(start, end))
        else:
            yield start, end


def _is_in(share: Share | None, key: bytes) -> bool:
    """Whether a run is for the caller who has a share of those over several buckets."""
    return share is None or keys.bucket_of(key) != keys.SPREAD or keys.number_of(key) % share.parts == share.part


def _without_bodies(record: records.Run) -> bytes:
    record.ClearField("bodies")
    record.ClearField("apart")
    packed: bytes = record.SerializeToString()
    return packed


class _Builder:
    """A portion under construction; a column begins with the first row that needs it."""

    def __init__(self, snapshot: RocksSnapshot, *, bodies: bool) -> None:
        self._snapshot = snapshot
        self.portion = Portion(bodies=[] if bodies else None)

    def add(self, run: Run, start: int, end: int, *, bucket: int, held: _LeasedRows | None = None) -> None:
        """Add rows of a run that belong to one bucket, free or held by a lease."""
        portion, record = self.portion, run.record
        before, count = len(portion), end - start
        version, consumer = (held.lease_id, held.consumer) if held else (run.version_at(start), "")
        portion.stretches.append(Stretch(run.id_span(start, end), bucket, record.owner, version, consumer))
        portion.ts.extend([held.expires] * count if held else record.ts[start:end])
        attempts = [held.part.attempts_at(row) for row in range(start, end)] if held else record.attempts[start:end]
        portion.attempts = _extended(portion.attempts, attempts, 0, before, count)
        portion.priorities = _extended(portion.priorities, record.priorities[start:end], 0, before, count)
        portion.headers = _extended(portion.headers, record.headers[start:end], b"", before, count)
        if portion.bodies is not None:
            if record.apart:
                apart = zip(record.apart[start:end], run.bodies[start:end], strict=True)
                portion.bodies.extend(self._snapshot.body(n) if 0 < n < LARGE else body for n, body in apart)
            else:
                portion.bodies.extend(run.bodies[start:end])


def _extended(
    column: list[Value] | None, values: Sequence[Value], default: Value, before: int, count: int
) -> list[Value] | None:
    if column is None and not values:
        return None
    column = [default] * before if column is None else column
    column.extend(values or [default] * count)
    return column
