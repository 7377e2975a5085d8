"""How many bytes the embedded store writes per byte of a message, over the message's life.

    python -m bench.write_amplification --rows 200000 --body 1000 --spread 30d

Own ids, batches of 1,000, eight in flight, journal on and exported. `--spread` sets the times: random within that time,
created far ahead, merged, and delivered at the end (arrival, merges, delivery); or `soon`, each batch delivered before
the next but eight are created. The written bytes are those of this process in /proc/self/io: the commit log, the tables
and the compactions of RocksDB. A payload is body and id. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from pathlib import Path

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000
SPREADS_MS = {"60s": 60_000, "1h": 3_600_000, "30d": 30 * 86_400_000}
BATCH, IN_FLIGHT, BUCKETS = 1_000, 8, 16
MB = 1_000_000


def written() -> int:
    """What this process has passed to the system to be written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


class Life:
    """Messages from their creation to their deletion."""

    def __init__(self, storage: RocksStorage, args: argparse.Namespace) -> None:
        self._storage, self._args = storage, args
        self._topic = Topic(name="t", number=1, settings=TopicSettings(buckets=BUCKETS))
        self._chance = random.Random(7)
        self._created = 0
        self.payload = 0
        self.figures: dict[str, float] = {}
        self._before = 0

    async def begin(self) -> None:
        """Open the store."""
        await self._storage.open(NOW)
        await self._storage.put_topic(self._topic, DIRECT_CALL)
        self._before = written()

    def note(self, phase: str) -> None:
        """The bytes written since the last phase, as a part of the payload."""
        now = written()
        self.figures[phase] = round((now - self._before) / max(1, self.payload), 2)
        self._before = now

    async def create(self, ts: list[int]) -> None:
        """Create a batch."""
        ids = [f"{self._chance.getrandbits(64):016x}" for _ in ts]
        bodies = [self._chance.randbytes(self._args.body) for _ in ts]
        self.payload += sum(map(len, ids)) + sum(map(len, bodies))
        number, self._created = self._created, self._created + 1
        session = ProducerSession(NOW, 1 + number % IN_FLIGHT)
        batch = CreateBatch("o", session, number * BATCH, ts, bodies, ids=ids)
        assert not (await apply_one(self._storage, Create(self._topic, batch), NOW, DIRECT_CALL)).codes

    async def deliver(self, now: int) -> int:
        """Lease and delete the next messages."""
        request = LeaseRequest(list(range(BUCKETS)), "c", now, now + 3_600_000, rows_max=BATCH)
        lease = await self._storage.lease(self._topic, request, now, DIRECT_CALL)
        if lease is None:
            return 0
        await apply_one(self._storage, Delete(self._topic, lease.lease_id, "c", None), now, DIRECT_CALL)
        return len(lease)

    async def export(self) -> None:
        """As an exporter that keeps up."""
        await self._storage.trim_journal(int(self._storage.stats()["journal_sequence"]))

    async def soon(self) -> None:
        """Each message is delivered a few batches after it was created."""
        for number in range(self._args.rows // BATCH):
            await self.create([NOW + number] * BATCH)
            if number >= IN_FLIGHT:
                await self.deliver(NOW + number)
            if number % 100 == 0:
                await self.export()
        while await self.deliver(NOW + self._args.rows):
            pass
        self.note("all")

    async def far(self, width: int) -> None:
        """All messages are created, merged, and delivered when all of them are due."""
        waiting = iter(range(self._args.rows // BATCH))

        async def produce() -> None:
            for _ in waiting:
                await self.create([NOW + self._chance.randrange(1, width) for _ in range(BATCH)])

        await asyncio.gather(*(produce() for _ in range(IN_FLIGHT)))
        await self.export()
        self.note("arrival")
        await self._storage.merger.settle()
        self.note("merges")
        count = 0
        while taken := await self.deliver(NOW + width):
            count += taken
            if count % 100_000 < BATCH:
                await self.export()
        assert count == self._args.rows // BATCH * BATCH, count
        self.note("delivery")


async def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    sizes = LogSizes(args.file_mb * MB, args.flush_mb * MB, args.log_mb * MB)
    storage = RocksStorage(path / "store", journal=True, log=sizes)
    life = Life(storage, args)
    await life.begin()
    await (life.soon() if args.spread == "soon" else life.far(SPREADS_MS[args.spread]))
    stats = storage.stats()
    await storage.close()
    life.note("close")
    total = round(sum(life.figures.values()), 2)
    sizes_after = {name: round(stats[name] / MB) for name in ("log_bytes", "log_moved_bytes")}
    return {"payload_mb": round(life.payload / MB), **life.figures, "total": total, **sizes_after}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=1_000)
    parser.add_argument("--spread", choices=("soon", *SPREADS_MS), default="30d")
    parser.add_argument("--file-mb", type=int, default=268)
    parser.add_argument("--flush-mb", type=int, default=134)
    parser.add_argument("--log-mb", type=int, default=17_180, help="the limit of the log")
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    print(json.dumps({"body": args.body, "rows": args.rows, "spread": args.spread} | figures))


if __name__ == "__main__":
    main()
