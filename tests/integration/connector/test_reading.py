"""The connector's reader with a broker and without Spark: the work of its tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

import dejaq.sync
from dejaq import limits
from dejaq.errors import DejaqError, Missing, Unavailable
from dejaq.protocol.blocking import BlockingTransport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.servers.process import BrokerProcess
from pyspark_dejaq import reading, worker
from pyspark_dejaq.options import Options
from pyspark_dejaq.reading import PendingReader
from pyspark_dejaq.worker import connect


def reader(url: str, topic: str, **options: str) -> PendingReader:
    return PendingReader(Options.parse({"dejaq.url": url, "subscribe": topic, **options}))


def ids(found: PendingReader, parts: Sequence[InputPartition]) -> list[str]:
    return sorted(row["id"] for part in parts for batch in found.read(part) for row in batch.to_pylist())


def query(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let Spark start its next query."""
    monkeypatch.setattr(reading, "_query", lambda: str(number))


def test_each_query_of_one_relation_sees_the_topic_as_it_is_then(
    url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: a DataFrame or view always showed the topic as it was at the first action."""
    found = reader(url, topic, minPartitions="2")
    first, second = parts = found.partitions()
    query(monkeypatch, 1)
    some = ids(found, [first])
    with dejaq.sync.connect(url) as client, client.producer(topic, group="spark") as producer:
        assert producer.cancel([f"m-{number}" for number in range(9)]).ok
        assert len(some + ids(found, [second])) == 10, "the tasks of one query read one instant"
        query(monkeypatch, 2)
        assert ids(found, parts) == ["m-9"]


def test_a_status_that_is_named_twice_duplicates_no_row(url: str, topic: str) -> None:
    """P8: `statuses=waiting,waiting` read every row twice."""
    found = reader(url, topic, statuses="waiting, waiting,available", ids="m-1,m-1,m-2")
    assert ids(found, found.partitions()) == ["m-1", "m-2"]


def test_many_small_tasks_share_a_connection(url: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: each task needed 200 ms to close its connection, so 16 tasks took more than three seconds."""
    with dejaq.sync.connect(url) as client:
        client.create_topic("many", buckets=64)
    found = reader(url, "many", minPartitions="16")
    parts = found.partitions()
    assert len(parts) == 16
    connections: list[str] = []
    made = worker.connect

    def counted(url: str) -> BlockingTransport:
        connections.append(url)
        return made(url)

    monkeypatch.setattr(worker, "connect", counted)
    before = threading.active_count()
    assert ids(found, parts) == []
    assert len(connections) <= 1
    assert threading.active_count() <= before + 2


def test_reads_that_stop_early_do_not_block_other_reads(url: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: `show`, `take` and `limit` read only some rows; after 64 of them no read was accepted for ten minutes."""
    monkeypatch.setattr(limits, "SNAPSHOT_IDLE_MS_MIN", 0)
    found = reader(url, topic, timeout="5")
    first, *_ = found.partitions()
    for number in range(limits.SNAPSHOTS_MAX + 1):
        query(monkeypatch, number)
        next(found.read(first), None)
    assert len(reader(url, topic).partitions()) == 8


def test_a_topic_that_was_created_again_is_loaded_again(url: str, topic: str) -> None:
    found = reader(url, topic)
    first, *_ = found.partitions()
    with dejaq.sync.connect(url) as client:
        client.delete_topic(topic)
        client.create_topic(topic, buckets=2)
    with pytest.raises(Missing, match="load it and run the query again"):
        list(found.read(first))


def test_the_wait_for_a_frozen_broker_has_an_end(tmp_path: Path) -> None:
    """A task waited without end, because neither a stream nor a session of gRPC has a time limit for the next frame."""
    process = BrokerProcess(tmp_path / "data")
    process.start()
    asyncio.run(process.ready())
    transport = connect(process.url)
    try:
        with dejaq.sync.connect(process.url) as client:
            client.create_topic("t")
        opened = transport.call(
            "Carrier.OpenSnapshot", carrier.SnapshotRequest(topic="t"), carrier.SnapshotResponse, 10
        )
        session = transport.session()
        process.pause()
        with pytest.raises(Unavailable, match="broke"):
            session.receive(0.2)
        request = carrier.ScanRequest(snapshot=opened.snapshot, end_bucket=1)
        with pytest.raises(DejaqError):
            next(transport.stream("Carrier.Scan", request, carrier.ScanColumns, silent_s=0.2))
    finally:
        process.resume()
        transport.close()
        process.close()
