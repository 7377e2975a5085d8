"""Logs in the client without asyncio."""

from pathlib import Path

import pytest

import dejaq.sync
from dejaq.errors import Missing


def test_a_program_without_asyncio_appends_reads_and_commits(tmp_path: Path) -> None:
    with dejaq.sync.Broker(tmp_path / "data") as broker, dejaq.sync.connect(broker.url) as client:
        client.create_topic("events", kind="log", buckets=2)
        log = client.log("events")
        place = log.append(b"a", key=b"k")
        log.append_batch([b"b", b"c"], keys=[b"k", b"k"])
        with log.reader() as reader:
            assert [next(reader).body for _ in range(3)] == [b"a", b"b", b"c"]
            reader.seek(place.bucket, 1)
            assert next(reader).body == b"b"
        with log.group("billing") as member:
            assert [next(member).body for _ in range(2)] == [b"a", b"b"]
            member.commit()
            assert member.committed()[place.bucket] == 2
            with pytest.raises(Missing):
                member.commit({place.bucket: 99})
        assert [m.body for m in log.tail(2)] == [b"b", b"c"]
        assert sum(len(batch) for batch in log.read()) == 3
