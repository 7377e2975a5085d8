"""A process that works on a store and exports its journal, until a crash point kills it.

It prints acknowledged changes on stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from dejaq.journal.exporter import Exporter
from dejaq.journal.retention import RetentionPolicy
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.timekeeper.clock import SystemClock
from tests.integration.journal.store import NOW, Work, open_topic

STEPS = 400


async def run(path: Path, bytes_max: int) -> None:
    storage = RocksStorage(path / "data", journal=True)
    await storage.open(NOW)
    work = Work(storage, await open_topic(storage), seed=1)
    await work.step()
    exporter = Exporter(
        storage=storage,
        clock=SystemClock(),
        directory=path / "journal",
        home=path / "data",
        interval_ms=10,
        policy=RetentionPolicy(bytes_max=bytes_max),
    )
    await exporter.start()
    for _ in range(STEPS):
        await work.step()
        print(json.dumps(work.created), flush=True)
        work.created = work.created[-3:]
    await exporter.stop()
    await storage.close()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
