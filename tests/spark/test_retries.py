"""Writes in which Spark tries tasks again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dejaq.sync
from dejaq.testing.servers.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_cancel_of_an_unknown_id_fails_though_tasks_are_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    """P3: on `local[2,4]`, ids that never existed were reported as cancelled."""
    assert spark.sparkContext.master == "local[2,4]"

    def cancel(*listed: str) -> None:
        ids = spark.createDataFrame([(name,) for name in listed], "id string").repartition(2)
        writer = ids.write.format("dejaq").option("dejaq.url", process.url).option("topic", "t")
        writer.options(operation="cancel", group="g").mode("append").save()

    process = BrokerProcess(tmp_path / "data")
    process.start()
    asyncio.run(process.ready())
    try:
        with dejaq.sync.connect(process.url) as client:
            client.create_topic("t")
            with client.producer("t", group="g") as producer:
                producer.send_batch([b"x"] * 4, delay=3_600, ids=[f"m-{number}" for number in range(4)])
        with pytest.raises(Exception, match="the first is 'nobody': NOT_FOUND"):
            cancel("m-0", "m-1", "nobody")
        cancel("m-2", "m-3")
        with dejaq.sync.connect(process.url) as client:
            assert client.count("t") == 0
    finally:
        process.close()
