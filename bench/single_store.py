"""Single sends on the embedded store, in process: what one message per call costs in CPU time and in memory.

    python -m bench.single_store --rows 100000 --ids own --spread 1h --buckets 16 --per-turn 50

Each producer has one call in flight; in every turn of the event loop at most so many calls begin, as they would arrive
from connections. Messages have 100 bytes. Prints one line of JSON. To compare releases, run it with the `src` of each
in PYTHONPATH, in the same minute.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import tempfile
import time
from collections import deque
from pathlib import Path

from bench.scattered_store import BODY, NOW, SPREADS_MS, drain
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage

PRODUCERS = 1_000
DUE_NOW = "now"


def messages(rows: int, ids: str, spread: str, buckets: int) -> list[CreateBatch]:
    """One batch per message; the producers take turns."""
    chance = random.Random(7)
    sessions = [ProducerSession(NOW, 1 + number) for number in range(PRODUCERS)]
    width = SPREADS_MS.get(spread, 1)
    made = []
    for number in range(rows):
        ts = NOW if spread == DUE_NOW else NOW + chance.randrange(1, width)
        own = [f"{chance.getrandbits(64):016x}"] if ids == "own" else None
        counter, producer = divmod(number, PRODUCERS)
        bucket = 0 if own else producer % buckets
        made.append(CreateBatch("o", sessions[producer], counter, [ts], [BODY], ids=own, bucket=bucket))
    return made


async def send_all(storage: RocksStorage, topic: Topic, made: list[CreateBatch], per_turn: int) -> list[float]:
    """Have every message created; the seconds of each call."""
    took: list[float] = []
    waiting, idle = deque(made), PRODUCERS
    busy: set[asyncio.Task[None]] = set()
    freed = asyncio.Event()

    async def send(batch: CreateBatch) -> None:
        nonlocal idle
        began = time.perf_counter()
        assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes
        took.append(time.perf_counter() - began)
        idle += 1
        freed.set()

    while waiting:
        for _ in range(min(per_turn, idle, len(waiting))):
            idle -= 1
            task = asyncio.ensure_future(send(waiting.popleft()))
            busy.add(task)
            task.add_done_callback(busy.discard)
        freed.clear()
        await asyncio.sleep(0)
        if not idle:
            await freed.wait()
    await asyncio.gather(*busy)
    return took


def rss_bytes() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    made = messages(args.rows, args.ids, args.spread, args.buckets)
    topic = Topic(name="t", number=1, settings=TopicSettings(buckets=args.buckets))
    storage = RocksStorage(path / "store", journal=True)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    everything = list(range(args.buckets))
    if args.load:
        await storage.load(topic, everything, NOW + SPREADS_MS.get(args.spread, 0))
    gc.collect()
    before, wall, cpu = rss_bytes(), time.perf_counter(), time.process_time()
    took = sorted(await send_all(storage, topic, made, args.per_turn))
    rows, figures = len(made), dict[str, float]()
    cpu = time.process_time() - cpu
    figures["create_per_s"] = round(rows / (time.perf_counter() - wall))
    figures["create_cpu_us"] = round(cpu / rows * 1e6, 2)
    figures["ack_p50_ms"], figures["ack_p99_ms"] = (round(took[rows * at // 100] * 1e3, 2) for at in (50, 99))
    wall, cpu = time.perf_counter(), time.process_time()
    await storage.merger.settle()
    figures["merge_cpu_us"] = round((time.process_time() - cpu) / rows * 1e6, 2)
    gc.collect()
    figures["memory_bytes_each"] = round((rss_bytes() - before) / rows)
    figures["counted_bytes_each"] = round(storage.stats()["window_bytes"] / rows)
    wall, cpu = time.perf_counter(), time.process_time()
    done, leases = await drain(storage, topic, NOW + SPREADS_MS.get(args.spread, 0) + 1_000, [everything])
    assert done == rows, (done, rows)
    figures["drain_cpu_us"] = round((time.process_time() - cpu) / rows * 1e6, 2)
    figures["first_lease_ms"], figures["slowest_lease_ms"] = (round(at * 1e3, 2) for at in (leases[0], max(leases)))
    await storage.close()
    return figures


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--ids", choices=("own", "generated"), default="own")
    parser.add_argument("--spread", choices=(*SPREADS_MS, DUE_NOW), default="1h")
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--per-turn", type=int, default=50, help="calls that begin in one turn of the event loop")
    parser.add_argument("--load", action="store_true", help="keep every message in memory, as far as the window allows")
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    print(json.dumps({"ids": args.ids, "spread": args.spread, "per_turn": args.per_turn, "load": args.load} | figures))


if __name__ == "__main__":
    main()
