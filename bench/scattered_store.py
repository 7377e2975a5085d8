"""Messages at scattered times on the embedded store, in process: what creating, finding and delivering them costs.

    python -m bench.scattered_store --rows 300000 --ids own --spread 30d --buckets 16

Batches of 1,000 messages of 100 bytes, eight in flight. Time is virtual: once everything is created, `now` moves behind
the last message and everything is leased and deleted. Prints one line of JSON. To compare releases, run it with the
`src` of each in PYTHONPATH, in the same minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000
SPREADS_MS = {"60s": 60_000, "250s": 250_000, "1h": 3_600_000, "30d": 30 * 86_400_000}
BATCH, IN_FLIGHT, BODY = 1_000, 8, b"x" * 100
HOUR_MS = 3_600_000


def batches(rows: int, ids: str, spread: str, buckets: int) -> list[CreateBatch]:
    """The batches; `sorted` puts each batch at one time, one millisecond behind the last."""
    chance = random.Random(7)
    made = []
    for number in range(rows // BATCH):
        if spread == "sorted":
            ts = [NOW + 1_000 + number] * BATCH
        else:
            width = SPREADS_MS[spread]
            ts = [NOW + chance.randrange(1, width) for _ in range(BATCH)]
            if ids == "generated":
                ts.sort()
        own = [f"{chance.getrandbits(64):016x}" for _ in range(BATCH)] if ids == "own" else None
        session = ProducerSession(NOW, 1 + number % IN_FLIGHT)
        made.append(
            CreateBatch(
                "o",
                session,
                number * BATCH,
                ts,
                [BODY] * BATCH,
                ids=None if own is None else IdColumn(own),
                bucket=number % buckets,
            )
        )
    return made


class Timed:
    """Wall and CPU time of a part of the run."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def add(self, name: str, wall: float, cpu: float, rows: int) -> None:
        """Rates of a part that handled rows."""
        self.figures[f"{name}_per_s"] = round(rows / wall)
        self.figures[f"{name}_cpu_us"] = round(cpu / rows * 1e6, 2)


async def create_all(storage: RocksStorage, topic: Topic, made: Sequence[CreateBatch]) -> None:
    """Eight producers."""
    waiting = iter(made)

    async def produce() -> None:
        for batch in waiting:
            assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes

    await asyncio.gather(*(produce() for _ in range(IN_FLIGHT)))


async def drain(storage: RocksStorage, topic: Topic, now: int, groups: list[list[int]]) -> tuple[int, list[float]]:
    """Lease and delete everything, one consumer per group of buckets; (rows, seconds of each lease)."""
    took: list[float] = []
    done = 0

    async def consume(name: str, buckets: list[int]) -> None:
        nonlocal done
        while True:
            began = time.perf_counter()
            held = await storage.lease(topic, LeaseRequest(buckets, name, now, now + HOUR_MS, 1_000), now, DIRECT_CALL)
            took.append(time.perf_counter() - began)
            if held is None:
                return
            await apply_one(storage, Delete(topic, held.lease_id, name, None), now, DIRECT_CALL)
            done += len(held)

    await asyncio.gather(*(consume(f"c{number}", buckets) for number, buckets in enumerate(groups)))
    return done, took


async def query_all(storage: RocksStorage, topic: Topic, figures: dict[str, float]) -> None:
    """Milliseconds of the queries that people make."""
    end = NOW + SPREADS_MS["30d"]
    queries: dict[str, Callable[[], Awaitable[object]]] = {
        "histogram": lambda: storage.histogram(topic, Filter(start=NOW, end=end), HOUR_MS, NOW),
        "count": lambda: storage.count(topic, Filter(), NOW),
        "browse": lambda: storage.browse(topic, Filter(), None, 100, NOW),
    }
    for name, query in queries.items():
        began = time.perf_counter()
        await query()
        figures[f"{name}_ms"] = round((time.perf_counter() - began) * 1e3, 2)


async def settle(storage: RocksStorage, figures: dict[str, float]) -> None:
    """Wait until the store has no more to merge, where it merges."""
    merger: Any = getattr(storage, "merger", None)
    if merger is not None:
        wall, cpu = time.perf_counter(), time.process_time()
        await merger.settle()
        figures["merge_wall_s"] = round(time.perf_counter() - wall, 2)
        figures["merge_cpu_s"] = round(time.process_time() - cpu, 2)
        figures |= {name: round(value, 3) for name, value in merger.stats().items()}


async def watch_lag(gaps: list[float]) -> None:
    """How long the event loop was held up, each time."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        gaps.append(time.perf_counter() - began - 0.001)


async def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    made = batches(args.rows, args.ids, args.spread, args.buckets)
    rows = len(made) * BATCH
    timed = Timed()
    topic = Topic(name="t", number=1, settings=TopicSettings(buckets=args.buckets))
    storage = RocksStorage(path / "store", journal=True)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    everything = list(range(args.buckets))
    groups = [everything[number :: args.consumers] for number in range(args.consumers)]
    for group in groups:
        await storage.lease(topic, LeaseRequest(group, "first", NOW, NOW + 1), NOW, DIRECT_CALL)
    gaps: list[float] = []
    watch = asyncio.ensure_future(watch_lag(gaps))
    wall, cpu = time.perf_counter(), time.process_time()
    await create_all(storage, topic, made)
    timed.add("create", time.perf_counter() - wall, time.process_time() - cpu, rows)
    del made
    timed.figures["lag_ms"] = round(sorted(gaps)[-max(1, len(gaps) // 100)] * 1e3, 1)
    await query_all(storage, topic, timed.figures)
    if args.settle:
        gaps.clear()
        await settle(storage, timed.figures)
        if gaps:
            timed.figures["merge_lag_ms"] = round(max(gaps) * 1e3, 1)
        await query_all(storage, topic, timed.figures)
    watch.cancel()
    last = NOW + (SPREADS_MS.get(args.spread) or 3_600_000)
    wall, cpu = time.perf_counter(), time.process_time()
    done, took = await drain(storage, topic, last, groups)
    assert done == rows, (done, rows)
    timed.add("drain", time.perf_counter() - wall, time.process_time() - cpu, rows)
    timed.figures["first_lease_ms"] = round(took[0] * 1e3, 2)
    timed.figures["slowest_lease_ms"] = round(max(took) * 1e3, 2)
    await storage.close()
    return timed.figures


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--ids", choices=("own", "generated"), default="own")
    parser.add_argument("--spread", choices=(*SPREADS_MS, "sorted"), default="30d")
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--consumers", type=int, default=1)
    parser.add_argument("--settle", action="store_true", help="merge everything before it is consumed")
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    named = {"ids": args.ids, "spread": args.spread, "buckets": args.buckets, "consumers": args.consumers}
    print(json.dumps(named | figures))


if __name__ == "__main__":
    main()
