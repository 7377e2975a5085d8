"""The stream of the journal reads what lies in its directory, and what brokers have in directories below."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from pyspark_dejaq.journal import JournalStreamReader
from pyspark_dejaq.options import Options
from tests.unit.journal.records import created


def test_the_journals_of_several_brokers_are_one_stream(tmp_path: Path) -> None:
    for origin, folder, store in (("a", "one", "shop"), ("b", "two", "shop"), ("c", ".", "")):
        key = SigningKey.of(tmp_path / f"{origin}.key")
        ledger = Ledger.open(tmp_path / "journal" / folder, origin=origin, key=key, store=store)
        ledger.append([created(1, [f"{origin}-1"]), created(2, [f"{origin}-2"])], now_ms=0)
    reader = JournalStreamReader(Options.parse({"journal": str(tmp_path / "journal")}))
    start, end = reader.initialOffset(), reader.latestOffset({}, ReadAllAvailable())
    assert end == {"a": 2, "b": 2, "c": 2}
    rows = [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    assert [(row["store"], row["id"], row["ticket"]) for row in rows] == [
        ("shop", "a-1", 1),
        ("shop", "a-2", 2),
        ("shop", "b-1", 1),
        ("shop", "b-2", 2),
        ("c", "c-1", None),
        ("c", "c-2", None),
    ]
