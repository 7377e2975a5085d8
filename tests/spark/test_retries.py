"""Writes in which Spark tries tasks again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import dejaq.sync
from dejaq.testing.servers.process import BrokerProcess
from tests.spark.test_story import driver


def test_a_cancel_of_an_unknown_id_fails_though_tasks_are_tried_again(tmp_path: Path) -> None:
    """P3: on `local[2,4]`, ids that never existed were reported as cancelled."""
    process = BrokerProcess(tmp_path / "data")
    process.start()
    asyncio.run(process.ready())
    try:
        with dejaq.sync.connect(process.url) as client:
            client.create_topic("t")
            with client.producer("t", group="g") as producer:
                producer.send_batch([b"x"] * 4, delay=3_600, ids=[f"m-{number}" for number in range(4)])
        lists = [["m-0", "m-1", "nobody"], ["m-2", "m-3"]]
        cancelling = driver("cancel", {"url": process.url, "topic": "t", "group": "g", "lists": lists})
        out, _ = cancelling.communicate(timeout=300)
        answers = json.loads(out.splitlines()[-1])["failed"]
        assert "the first is 'nobody': NOT_FOUND" in answers[0]
        assert answers[1] == ""
        with dejaq.sync.connect(process.url) as client:
            assert client.count("t") == 0
    finally:
        process.close()
