"""Batch read: the pending timeline of a topic at one instant, with one partition per range of buckets."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
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

from dejaq.directories import machine
from dejaq.domain.message import Status
from dejaq.errors import DejaqError, Indefinite, LimitExceeded, Missing, NoBroker, Unavailable
from dejaq.protocol.blocking import BlockingTransport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from pyspark_dejaq.columns import ARROW_SCHEMA, in_schema, record_batch
from pyspark_dejaq.frames import FrameFiles
from pyspark_dejaq.options import Options
from pyspark_dejaq.runs import WantedBatches, frame_batch, run_batch
from pyspark_dejaq.worker import connect, forget_transport, settle_in, transport_to

# How long to wait before asking a broker again that has too many snapshots.
_PLACE_S = 0.5

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass
class BucketRange(InputPartition):
    """The buckets that one task reads.

    Spark plans a relation once, however often it is queried. So the first task of a query opens the snapshot, under a
    name that only this query has; all tasks and retried tasks of the query read from the same snapshot.
    """

    url: str
    relation: str
    run: str
    topic: str
    buckets: int
    first: int
    end: int
    # A run over several buckets is read by the task that has its share.
    share: int
    shares: int
    start_ms: int
    end_ms: int
    statuses: tuple[str, ...]
    ids: tuple[str, ...]
    include_body: bool
    timeout: float


class PendingReader(DataSourceReader):
    """Reads a topic. Filters come from the options; `FilteringReader` adds those Spark pushes down."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._start, self._end = options.start, options.end
        self._statuses, self._ids = options.statuses, options.ids

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the buckets among partitions."""
        return self._divided(*self._look())

    def few(self, messages_max: int) -> list[BucketRange] | None:
        """The partitions of a topic that has at most so many messages; None for a larger one."""
        url, seen = self._look()
        return self._divided(url, seen) if seen.messages <= messages_max else None

    def _look(self) -> tuple[str, carrier.SnapshotResponse]:
        topic = self._options.need("subscribe")
        self._options.need("dejaq.url")
        return look_at(self._options, topic)

    def _divided(self, url: str, seen: carrier.SnapshotResponse) -> list[BucketRange]:
        options = self._options
        topic = options.need("subscribe")
        relation, buckets = secrets.token_hex(12), seen.buckets
        parts = min(options.min_partitions, buckets)
        edges = [buckets * part // parts for part in range(parts + 1)]
        return [
            BucketRange(
                url=url,
                relation=relation,
                run=seen.run,
                topic=topic,
                buckets=buckets,
                first=first,
                end=end,
                share=share,
                shares=parts,
                start_ms=self._start,
                end_ms=self._end,
                statuses=self._statuses,
                ids=self._ids,
                include_body=options.include_body,
                timeout=options.timeout,
            )
            for share, (first, end) in enumerate(pairwise(edges))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range of buckets."""
        assert isinstance(partition, BucketRange)
        settle_in()
        if _NOBODY in (partition.statuses, partition.ids):
            return
        try:
            yield from read_range(partition)
        except DejaqError as error:
            forget_transport(partition.url)
            told = f"reading topic {partition.topic!r} from {partition.url} ended early"
            raise type(error)(f"{told}; load it and run the query again", details=error.message) from None


def read_range(partition: BucketRange, schema: pa.Schema = ARROW_SCHEMA) -> Iterator[pa.RecordBatch]:
    """The messages of a range of buckets, as the snapshot of its query has them, with the columns of the schema."""
    transport = transport_to(partition.url)
    opened = _shared_snapshot(transport, partition)
    wanted = WantedBatches(partition.topic, partition.buckets, opened.at_ms, schema)
    with FrameFiles.of(opened) or nullcontext() as files:
        for status in partition.statuses or ("",):
            request = carrier.ScanRequest(
                snapshot=opened.snapshot,
                first_bucket=partition.first,
                end_bucket=partition.end,
                filter=carrier.Filter(start=partition.start_ms, end=partition.end_ms, status=status),
                without_bodies=not partition.include_body,
                runs=True,
                frames=files is not None,
                share=partition.share,
                shares=partition.shares,
            )
            for scan in transport.stream("Carrier.Scan", request, carrier.ScanColumns, silent_s=partition.timeout):
                for batch in _batches(scan, files, wanted):
                    if partition.ids:
                        batch = batch.filter(pa.compute.is_in(batch["id"], pa.array(partition.ids)))
                    if len(batch):
                        yield batch


def _batches(scan: carrier.ScanColumns, files: FrameFiles | None, wanted: WantedBatches) -> Iterator[pa.RecordBatch]:
    """The messages of a portion of a snapshot; most portions have one kind of them."""
    if scan.ts:
        yield in_schema(record_batch(scan, wanted.topic, wanted.at), wanted.schema)
    if scan.runs:
        yield run_batch(scan, wanted)
    if scan.frame_files and files is not None:
        yield frame_batch(files.runs(scan), scan, wanted)


def _shared_snapshot(transport: BlockingTransport, partition: BucketRange) -> carrier.SnapshotResponse:
    """The snapshot from which all tasks of this query read."""
    name = f"{partition.relation}-{_query()}"
    request = carrier.SnapshotRequest(topic=partition.topic, name=name, run=partition.run, machine=machine())
    opened = _open(transport, request, partition.timeout)
    if opened.buckets != partition.buckets:
        raise Missing(f"topic {partition.topic!r} was created again since it was loaded; load it again")
    return opened


def _open(transport: BlockingTransport, request: carrier.SnapshotRequest, timeout: float) -> carrier.SnapshotResponse:
    deadline = time.monotonic() + timeout
    while True:
        left = max(_PLACE_S, deadline - time.monotonic())
        try:
            return transport.call("Carrier.OpenSnapshot", request, carrier.SnapshotResponse, left)
        except LimitExceeded:
            # The broker has the maximum number of snapshots; it closes the one that was not read for longest soon.
            if time.monotonic() > deadline:
                raise
            time.sleep(_PLACE_S)


def _query() -> str:
    """The name of the running query. A query of an RDD has no number, so it shares the name of its relation."""
    context = TaskContext.get()
    return (context.getLocalProperty("spark.sql.execution.id") if context is not None else None) or "rdd"


class FilteringReader(PendingReader):
    """A reader for versions of Spark that push filters down: the broker or the task applies time, status and id
    filters.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  Spark's name
        """Accept the filters that can be applied here; return the others."""
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
        """Narrow the time range; `at` is the first millisecond that is not before the value."""
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
# An id that no message has: filters that contradict each other leave this id, because an empty list means all ids.
_NOBODY = ("",)


def _listed(pushed: EqualTo | In) -> tuple[str, ...]:
    values = pushed.value if isinstance(pushed, In) else (pushed.value,)
    return tuple(str(value) for value in values if value is not None)


def _narrowed(before: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The values that both lists allow; an empty earlier list allows every value."""
    return tuple(value for value in wanted if not before or value in before) or _NOBODY


def _is_moment(value: object) -> bool:
    """Whether a value is a time that is exact without a time zone."""
    return isinstance(value, int) or (isinstance(value, datetime) and value.tzinfo is not None)


def _micros(value: int | datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value * 1_000


def _ms_up(value: int | datetime) -> int:
    return -(-_micros(value) // 1_000)


def _ms_down(value: int | datetime) -> int:
    return _micros(value) // 1_000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def look_at(options: Options, topic: str) -> tuple[str, carrier.SnapshotResponse]:
    """The first broker that answers, and its description of a snapshot of the topic, which is closed at once."""
    for url in options.urls:
        transport = connect(url)
        try:
            timeout = options.timeout / len(options.urls)
            seen = _open(transport, carrier.SnapshotRequest(topic=topic), timeout)
            closing = carrier.CloseSnapshotRequest(snapshot=seen.snapshot)
            transport.call("Carrier.CloseSnapshot", closing, carrier.CloseSnapshotResponse, timeout)
            return url, seen
        except (Unavailable, Indefinite):
            continue
        finally:
            transport.close()
    where = ", ".join(options.urls)
    raise NoBroker(f"no broker answered at {where} within {options.timeout:g} s; check dejaq.url and that it runs")
