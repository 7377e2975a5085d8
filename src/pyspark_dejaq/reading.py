"""Batch read: the pending timeline of a topic at one instant, a partition for each range of buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from dejaq.domain.message import Status
from dejaq.errors import DejaqError, Indefinite, NoBroker, Unavailable
from dejaq.protocol.blocking import BlockingTransport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from pyspark_dejaq.columns import record_batch
from pyspark_dejaq.options import Options
from pyspark_dejaq.runs import run_batch
from pyspark_dejaq.worker import settle_in

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass
class BucketRange(InputPartition):
    """The buckets that one task reads from a snapshot; a retried task reads the same."""

    address: str
    snapshot: str
    at: int
    topic: str
    first: int
    end: int
    start_ms: int
    end_ms: int
    statuses: tuple[str, ...]
    ids: tuple[str, ...]
    include_body: bool


class PendingReader(DataSourceReader):
    """Reads a topic. Filters come from the options; `FilteringReader` adds those Spark pushes down."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._start, self._end = options.start, options.end
        self._statuses, self._ids = options.statuses, options.ids

    def partitions(self) -> Sequence[InputPartition]:
        """Open one snapshot and deal its buckets out."""
        options = self._options
        topic = options.need("subscribe")
        options.need("dejaq.url")
        address, opened = open_snapshot(options, topic)
        parts = min(options.min_partitions, opened.buckets)
        edges = [opened.buckets * part // parts for part in range(parts + 1)]
        return [
            BucketRange(
                address=address,
                snapshot=opened.snapshot,
                at=opened.at_ms,
                topic=topic,
                first=first,
                end=end,
                start_ms=self._start,
                end_ms=self._end,
                statuses=self._statuses,
                ids=self._ids,
                include_body=options.include_body,
            )
            for first, end in pairwise(edges)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range of buckets."""
        assert isinstance(partition, BucketRange)
        settle_in()
        if _NOBODY in (partition.statuses, partition.ids):
            return
        transport = BlockingTransport(partition.address)
        try:
            for status in partition.statuses or ("",):
                where = carrier.Filter(start=partition.start_ms, end=partition.end_ms, status=status)
                request = carrier.ScanRequest(
                    snapshot=partition.snapshot,
                    first_bucket=partition.first,
                    end_bucket=partition.end,
                    filter=where,
                    without_bodies=not partition.include_body,
                    runs=True,
                )
                for scan in _scanned(transport, request, partition.topic):
                    for made in (record_batch, run_batch):
                        batch = made(scan, partition.topic, partition.at)
                        if partition.ids:
                            batch = batch.filter(pa.compute.is_in(batch["id"], pa.array(partition.ids)))
                        if len(batch):
                            yield batch
        finally:
            transport.close()


class FilteringReader(PendingReader):
    """The same, for a Spark that pushes filters down: time, status and id are applied by the broker or the task."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  Spark's name
        """Take what can be applied here; give back the rest."""
        for pushed in filters:
            if not self._take(pushed):
                yield pushed

    def _take(self, pushed: Filter) -> bool:
        name = getattr(pushed, "attribute", ())
        if name == ("id",) and isinstance(pushed, EqualTo | In):
            self._ids = _narrowed(self._ids, _listed(pushed))
        elif name == ("status",) and isinstance(pushed, EqualTo | In) and set(_listed(pushed)) <= set(Status):
            self._statuses = _narrowed(self._statuses, _listed(pushed))
        elif name in (("ts",), ("due",)) and isinstance(pushed, _BOUNDS) and _is_moment(pushed.value):
            self._bound(pushed, _ms_up(pushed.value), exact=_ms_up(pushed.value) == _ms_down(pushed.value))
        else:
            return False
        return True

    def _bound(self, pushed: Filter, at: int, *, exact: bool) -> None:
        """Narrow the time; `at` is the first millisecond that is not before the value."""
        after = at + 1 if exact else at
        if isinstance(pushed, EqualTo):
            self._start, self._end = max(self._start, at), min(self._end, after)
        elif isinstance(pushed, GreaterThanOrEqual):
            self._start = max(self._start, at)
        elif isinstance(pushed, GreaterThan):
            self._start = max(self._start, after)
        elif isinstance(pushed, LessThan):
            self._end = min(self._end, at)
        else:
            self._end = min(self._end, after)


_BOUNDS = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
# What no message has: a filter that contradicts another leaves this, since an empty list means all.
_NOBODY = ("",)


def _listed(pushed: EqualTo | In) -> tuple[str, ...]:
    values = pushed.value if isinstance(pushed, In) else (pushed.value,)
    return tuple(str(value) for value in values if value is not None)


def _narrowed(before: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """What both allow; nothing given before allows everything."""
    return tuple(value for value in wanted if not before or value in before) or _NOBODY


def _is_moment(value: object) -> bool:
    """Whether a value is a time that needs no time zone to be told."""
    return isinstance(value, int) or (isinstance(value, datetime) and value.tzinfo is not None)


def _micros(value: int | datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value * 1_000


def _ms_up(value: int | datetime) -> int:
    return -(-_micros(value) // 1_000)


def _ms_down(value: int | datetime) -> int:
    return _micros(value) // 1_000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _scanned(transport: BlockingTransport, request: carrier.ScanRequest, topic: str) -> Iterator[carrier.ScanColumns]:
    try:
        yield from transport.stream("Carrier.Scan", request, carrier.ScanColumns)
    except DejaqError as error:
        told = f"reading topic {topic!r} from {transport.address} ended early; run the query again"
        raise type(error)(told, details=error.message) from None


def open_snapshot(options: Options, topic: str) -> tuple[str, carrier.SnapshotResponse]:
    """The first broker that answers, and the snapshot it took."""
    for address in options.addresses:
        transport = BlockingTransport(address)
        try:
            request = carrier.SnapshotRequest(topic=topic)
            timeout = options.timeout / len(options.addresses)
            return address, transport.call("Carrier.OpenSnapshot", request, carrier.SnapshotResponse, timeout)
        except (Unavailable, Indefinite):
            continue
        finally:
            transport.close()
    where = ", ".join(options.addresses)
    raise NoBroker(f"no broker answered at {where} within {options.timeout:g} s; check dejaq.url and that it runs")
