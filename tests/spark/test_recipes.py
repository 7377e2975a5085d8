"""Every block of docs/pipeline-recipes.md runs, in order, and finds what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dejaq.sync
from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.lake.lake import Lake
from tests.spark.history import START_MS, random_store, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipeline-recipes.md"


def test_the_ten_recipes_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = random_store(12, steps=150)
    write_segments(tmp_path / "journal", store.events, cuts=(store.sequence // 2,))
    list(run(Lake(spark, str(tmp_path / "lake")), tmp_path / "journal", events_max=1))
    deleted = [event for event in store.events if event["kind"] == "deleted" and (event.get("handed_us") or 0) > 0]
    mail = sorted({event["id"] for event in deleted if event["topic"] == "mail"})
    orders = [(name, START_MS) for name in (*mail[:5], "order-that-never-was")]
    spark.createDataFrame(orders, "order_id string, placed_ms long").write.parquet(str(tmp_path / "orders"))
    middle_ms = (START_MS + store.now) // 2
    with dejaq.sync.Broker(tmp_path / "data") as broker:
        with dejaq.sync.connect(broker.url) as client:
            client.create_topic("mail")
        # `spark.read` and the lake take addresses without a scheme as those of the working directory of the JVM.
        found: dict[str, Any] = {
            "spark": spark,
            "url": broker.url,
            "now_ms": store.now,
            "deployed_ms": middle_ms,
            "rolled_back_ms": store.now,
            "wanted_id": mail[0],
        }
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.S | re.M)
        assert len(blocks) == 11
        for block in blocks:
            placed = block.replace('read.parquet("orders")', f'read.parquet("{tmp_path}/orders")')
            exec(compile(placed, str(PAGE), "exec"), found)
    assert found["confirmed"].where("after_ms IS NOT NULL").count() >= 5
    assert [row.order_id for row in found["never_confirmed"].collect()] == ["order-that-never-was"]
    assert all(row.lateness_ms > row.usual_ms for row in found["delayed"].collect())
    failed = [event for event in store.events if event["kind"] == "dead_lettered"]
    assert found["failed"].count() == len(failed)
    assert found["consumers"].count() >= 1
    pending = sum(row.messages for row in found["overdue"].collect())
    assert 0 < pending <= len(store.pending)
    assert all(0 <= row.share <= 1 for row in found["objective"].where("share IS NOT NULL").collect())
    released = sum(event["kind"] == "released" and (event.get("handed_us") or 0) > 0 for event in store.events)
    assert sum(row.released for row in found["returning"].collect()) == released
    assert all(row.copies > 1 for row in found["repeated"].collect())
    life = [row.kind for row in found["life"].collect()]
    assert life == [e["kind"] for e in store.events if (e["topic"], e["id"]) == ("mail", mail[0])]
    assert found["created"][1] == sum(event["kind"] == "created" for event in store.events) > found["created"][0]
