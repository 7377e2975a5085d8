"""Create a journal and a lake of a part of it, for the test that a later release can read both.

    python scripts/make_journal_fixture.py tests/fixtures/journal-0.1.tar.gz

The archive has `journal/`, `lake/` (which has the journal's first half) and `expected.json`: the final state of every
message, as the program that sent and consumed them knows it. A released archive is never created again: a new
format gets a new one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

import dejaq.sync
from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.spark.session import session
from dejaq.testing.servers.process import BrokerProcess

HOUR_MS = 3_600_000


def _first_half(url: str, outcomes: dict[str, str]) -> None:
    """Natural and generated ids, headers, a lease that is released, deletes and cancels."""
    with dejaq.sync.connect(url) as client:
        client.create_topic("mail", buckets=4)
        client.create_topic("dropped")
        ahead = int(time.time() * 1000) + 10_000 * HOUR_MS
        with client.producer("mail", group="shop") as producer:
            producer.send_batch([b"later"] * 40, at=[ahead] * 40, ids=[f"later-{n}" for n in range(40)])
            outcomes.update({f"later-{n}": "pending" for n in range(40)})
            now = producer.send_batch([b"now"] * 30, delay=0, headers=[{"kind": "fixture"}] * 30)
            outcomes.update(dict.fromkeys(now.ids, "deleted"))
            assert producer.cancel([f"later-{n}" for n in range(5)]).ok
            outcomes.update({f"later-{n}": "cancelled" for n in range(5)})
        with client.producer("dropped", group="crm") as producer:
            producer.send_batch([b"x"] * 7, at=[ahead] * 7, ids=[f"gone-{n}" for n in range(7)])
            outcomes.update({f"gone-{n}": "pending" for n in range(7)})
        with client.consumer("mail", name="worker", max_messages=31) as consumer:
            for place, lease in enumerate(consumer):
                lease.release() if place == 0 else lease.delete()


def _second_half(url: str, outcomes: dict[str, str]) -> None:
    """Moves, rejects to a dead-letter topic, and the deletion of a topic."""
    with dejaq.sync.connect(url) as client:
        client.create_topic("dead")
        client.create_topic("fragile", max_attempts=1, dead_letter="dead")
        with client.producer("mail", group="shop") as producer:
            moved = [f"later-{n}" for n in range(5, 10)]
            assert producer.move(moved, at=int(time.time() * 1000)).ok
            outcomes.update(dict.fromkeys(moved, "deleted"))
        with client.producer("fragile", group="shop") as producer:
            producer.send_batch([b"bad"] * 3, delay=0, ids=[f"bad-{n}" for n in range(3)])
            outcomes.update({f"bad-{n}": "dead_lettered" for n in range(3)})
        with client.consumer("mail", name="worker", max_messages=5) as consumer:
            for lease in consumer:
                lease.delete()
        with client.consumer("fragile", name="worker", max_messages=3) as consumer:
            for lease in consumer:
                lease.reject("not JSON")
        client.delete_topic("dropped")
        outcomes.update({f"gone-{n}": "dropped" for n in range(7)})


def _run(process: BrokerProcess, work: object, outcomes: dict[str, str]) -> None:
    process.start()
    asyncio.run(process.ready())
    work(process.url, outcomes)  # type: ignore[operator]
    process.terminate()
    asyncio.run(process.exited())


def main(target: Path) -> None:
    """Write the archive."""
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        # Spark first: its JVM cannot be started after gRPC has started its threads.
        with session("local[2]", brief=True) as spark:
            process = BrokerProcess(root / "data")
            _run(process, _first_half, outcomes)
            lake = Lake(spark, str(root / "lake"))
            list(run(lake, root / "data" / "journal"))
        _run(process, _second_half, outcomes)
        process.close()
        shutil.copytree(root / "data" / "journal", root / "journal")
        expected = {"outcomes": Counter(outcomes.values()), "messages": outcomes}
        (root / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
        for junk in (root / "lake").rglob(".*.crc"):
            junk.unlink()
        with tarfile.open(target, "w:gz") as archive:
            for part in ("journal", "lake", "expected.json"):
                archive.add(root / part, part)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
