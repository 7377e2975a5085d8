"""Snapshots: a whole topic read in small portions, at one instant, beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from dejaq.domain.batch import MessageColumns
from dejaq.domain.message import Status, status_of
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import Filter
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.database import View
from dejaq.storage.rocksdb.image import Image
from dejaq.storage.rocksdb.run import Run

# A portion takes about a millisecond, so that what is due meanwhile is not late.
_PORTION_ROWS = 2_000
_PORTION_BYTES = 256 * 1024


class RocksSnapshot:
    """A view of the database, and the leases of the topic at the same instant."""

    def __init__(self, image: Image, view: View, now: int) -> None:
        self.at = now
        self.count = image.cells.total
        self._image = image
        self._view = view
        # Leases are few and change their objects; their rows and terms are copied.
        self._leased = [
            (lease.id, lease.consumer, expires, part, part.in_run(rows))
            for lease in image.leases
            for expires, rows in lease.terms.items()
            for part in lease.parts
            if part.in_run(rows)
        ]
        self._leased_rows: dict[bytes, int] = {}
        for _, _, _, part, rows in self._leased:
            self._leased_rows[part.run.key] = self._leased_rows.get(part.run.key, 0) | rows

    def close(self) -> None:
        """Let go of the view."""
        self._view.close()

    async def scan(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[MessageColumns]:
        """Leased rows first, then bucket by bucket what is in no lease."""
        wanted = set(buckets)
        for columns in self._scan_leased(wanted, where, bodies=bodies):
            yield columns
            await asyncio.sleep(0)
        if where.consumer is not None or where.status is Status.PROCESSING:
            return
        for bucket in sorted(wanted):
            topic = self._image.topic.number
            start = keys.slice_start(topic, bucket, max(0, where.start) // keys.SLICE_MS)
            end = keys.slice_start(topic, bucket, min(where.end - 1, 2**62) // keys.SLICE_MS + 1)
            while start < end:
                columns, start = self._portion(start, end, where, bodies=bodies)
                if len(columns):
                    yield columns
                await asyncio.sleep(0)

    def _portion(self, start: bytes, end: bytes, where: Filter, *, bodies: bool) -> tuple[MessageColumns, bytes]:
        """Some runs from `start` on, as columns, and where to go on."""
        items: list[tuple[bytes, bytes]] = []
        size = 0
        for item in self._view.items(start, end):
            items.append(item)
            size += len(item[1])
            if size >= _PORTION_BYTES or len(items) >= _PORTION_ROWS:
                break
        columns = MessageColumns()
        if not items:
            return columns, end
        first, last = keys.gone(items[0][0]), keys.gone(items[-1][0])
        gone = {key[1:]: masks.unpack(value) for key, value in self._view.items(first, last + b"\0")}
        for key, value in items:
            run = Run.parse(key, value, gone.get(key[1:], 0), self._leased_rows.get(key, 0))
            if where.owner is None or run.record.owner == where.owner:
                self._add(columns, run, run.free & self._matching(run, where), bodies=bodies)
        return columns, items[-1][0] + b"\0"

    def _matching(self, run: Run, where: Filter) -> int:
        start, end = where.start, where.end
        if where.status is Status.AVAILABLE:
            end = min(end, self.at + 1)
        elif where.status is Status.WAITING:
            start = max(start, self.at + 1)
        return run.rows_between(start, end)

    def _scan_leased(self, buckets: set[int], where: Filter, *, bodies: bool) -> Iterator[MessageColumns]:
        for lease_id, consumer, expires, part, rows in self._leased:
            run = part.run
            if (
                run.bucket in buckets
                and where.start <= expires < where.end
                and where.status in (None, status_of(expires, consumer, self.at))
                and where.consumer in (None, consumer)
                and where.owner in (None, run.record.owner)
            ):
                columns = MessageColumns()
                self._add(columns, run, rows, bodies=bodies)
                count = len(columns)
                columns.ts = [expires] * count
                columns.consumers = [consumer] * count
                columns.versions = [lease_id] * count
                columns.attempts = [part.attempts_at(row) for row in masks.rows(rows)]
                yield columns

    def _add(self, columns: MessageColumns, run: Run, rows: int, *, bodies: bool) -> None:
        record = run.record
        for start, end in masks.ranges(rows):
            count = end - start
            columns.ids.extend(run.id_span(start, end).expand())
            columns.buckets.extend([run.bucket] * count)
            columns.ts.extend(record.ts[start:end])
            columns.priorities.extend(record.priorities[start:end] or [0] * count)
            columns.owners.extend([record.owner] * count)
            columns.consumers.extend([""] * count)
            columns.versions.extend([run.number] * count)
            columns.attempts.extend(record.attempts[start:end] or [0] * count)
            columns.headers.extend(record.headers[start:end] or [b""] * count)
            if bodies:
                columns.bodies.extend(self._bodies(record, start, end))

    def _bodies(self, record: records.Run, start: int, end: int) -> list[bytes]:
        if not record.apart:
            return list(record.bodies[start:end])
        found: list[bytes] = []
        for row in range(start, end):
            number = record.apart[row]
            body = self._view.get(keys.numbered(keys.BODY, self._image.topic.number, number)) if number else None
            found.append(record.bodies[row] if body is None else body)
        return found
