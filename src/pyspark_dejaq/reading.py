"""Batch read: the pending timeline of a topic at one instant, a partition for each range of buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from dejaq.errors import Indefinite, NoBroker, Unavailable
from dejaq.protocol.blocking import BlockingTransport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from pyspark_dejaq.columns import record_batch
from pyspark_dejaq.options import Options

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
                )
                for scan in transport.stream("Carrier.Scan", request, carrier.ScanColumns):
                    batch = record_batch(scan, partition.topic, partition.at)
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
        if isinstance(pushed, EqualTo) and pushed.attribute == ("status",) and pushed.value in set(Status):
            self._statuses = (str(pushed.value),)
        elif isinstance(pushed, EqualTo) and pushed.attribute == ("id",):
            self._ids = (str(pushed.value),)
        elif isinstance(pushed, In) and pushed.attribute == ("id",):
            self._ids = tuple(map(str, pushed.value))
        elif isinstance(pushed, GreaterThanOrEqual) and pushed.attribute == ("ts",):
            self._start = max(self._start, pushed.value)
        elif isinstance(pushed, GreaterThan) and pushed.attribute == ("ts",):
            self._start = max(self._start, pushed.value + 1)
        elif isinstance(pushed, LessThan) and pushed.attribute == ("ts",):
            self._end = min(self._end, pushed.value)
        elif isinstance(pushed, LessThanOrEqual) and pushed.attribute == ("ts",):
            self._end = min(self._end, pushed.value + 1)
        else:
            return False
        return True


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
