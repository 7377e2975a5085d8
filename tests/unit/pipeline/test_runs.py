"""The runs of a scan produce the same record batch as its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dejaq import limits
from dejaq.broker.calls.snapshots import Snapshots
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.bodies.large import Reference
from dejaq.domain.bodies.packing import MARK, Compression, sealed
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.timekeeper.clock import VirtualClock
from pyspark_dejaq.columns import ARROW_SCHEMA, CODED, in_schema, record_batch
from pyspark_dejaq.runs import WantedBatches, run_batch

CONTEXT = CallContext("a-request", "a peer")
TOPIC = Topic("t", 1, TopicSettings(buckets=4))
LARGE = b"l" * (limits.INLINE_BODY_BYTES_MAX + 1)
AT = 1_000
# As an export writes them: some columns, and texts that many rows share as numbers.
_WITH_NUMBERS = pa.schema(
    [
        (name, CODED if name in ("topic", "status", "owner") else ARROW_SCHEMA.field(name).type)
        for name in ("owner", "id", "topic", "status", "attempts", "body")
    ]
)


async def _filled(path: Path) -> RocksStorage:
    storage = RocksStorage(path)
    await storage.open(0)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    named = CreateBatch(
        owner="one",
        session=ProducerSession(1, 1),
        sequence=0,
        ts=[500, 600, 50_000, 50_001, 50_002],
        ids=[f"m-{number}" for number in range(5)],
        bodies=[b"a", sealed(b"b" * 200, Compression.ZSTD), LARGE, b"", b"e"],
        priorities=[0, 1, 0, -2, 0],
        headers=[b"", encode_headers({"k": "v"}), b"", b"", b""],
    )
    counted = CreateBatch(
        owner="two", session=ProducerSession(2, 2), sequence=7, ts=[400, 700, 800], bodies=[b"x", b"y", b"z"], bucket=2
    )
    for batch in (named, counted):
        outcomes = await apply_one(storage, Create(TOPIC, batch), AT, DIRECT_CALL)
        assert not outcomes.codes
    lease = await storage.lease(
        TOPIC, LeaseRequest(range(4), "c", until=AT, expires=9_000, rows_max=2), AT, DIRECT_CALL
    )
    assert lease is not None
    assert len(lease) == 2
    return storage


async def _read(snapshots: Snapshots, schema: pa.Schema = ARROW_SCHEMA, **options: Any) -> list[dict[str, Any]]:
    opened = await snapshots.open(CONTEXT, carrier.SnapshotRequest(topic="t"))
    where = carrier.Filter(end=2**62)
    rows: list[dict[str, Any]] = []
    async for scan in snapshots.scan(
        CONTEXT, carrier.ScanRequest(snapshot=opened.snapshot, end_bucket=4, filter=where, **options)
    ):
        rows += in_schema(record_batch(scan, "t", opened.at_ms), schema).to_pylist()
        rows += run_batch(scan, WantedBatches("t", 4, opened.at_ms, schema)).to_pylist()
    return sorted(rows, key=lambda row: str(row["id"]))


@pytest.mark.parametrize("without_bodies", [False, True])
async def test_runs_and_columns_produce_the_same_rows(tmp_path: Path, without_bodies: bool) -> None:
    storage = await _filled(tmp_path)
    try:
        snapshots = Snapshots(storage=storage, clock=VirtualClock(AT), find_topic=lambda name: TOPIC)
        by_columns = await _read(snapshots, without_bodies=without_bodies)
        by_runs = await _read(snapshots, without_bodies=without_bodies, runs=True)
        as_numbers = await _read(snapshots, _WITH_NUMBERS, without_bodies=without_bodies, runs=True)
        snapshots.close_all()
    finally:
        await storage.close()
    assert by_runs == by_columns
    assert as_numbers == [{name: row[name] for name in _WITH_NUMBERS.names} for row in by_columns]
    assert len(by_runs) == 8
    bodies = {row["id"]: row["body"] for row in by_runs}
    assert bodies["m-1"] == (None if without_bodies else b"b" * 200)
    assert bodies["m-2"] == (None if without_bodies else LARGE)


def test_a_large_body_is_null_and_the_others_are_read() -> None:
    large = Reference(size=2**21, stored=2**21, digest=b"d" * 32, number=7).pack()
    packed = records.Run(owner="g", ids=["a", "b", "c"], ts=[1, 2, 3], bodies=[b"x", large, sealed(MARK)])
    scan = carrier.ScanColumns(runs=[packed.SerializeToString()], run_buckets=[0], run_rows=[b""])
    assert run_batch(scan, WantedBatches("t", 4, AT))["body"].to_pylist() == [b"x", None, MARK]
