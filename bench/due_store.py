"""What falls due from a scattered backlog on the embedded store, in process: what each step costs per message.

    python -m bench.due_store --rows 60000 --per-s 2500 --step-ms 250 --consumers 2

Messages with own ids that arrived in random order are merged. Then virtual time advances in steps, and in each step
every consumer leases what is due by then, and deletes it a while later. Prints one line of JSON. To compare releases,
run it with the `src` of each in PYTHONPATH, in the same minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import deque
from pathlib import Path

from bench.scattered_store import BATCH, BODY, IN_FLIGHT, NOW, create_all
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage

PREFETCH_MS, LEASE_MS, LOAD_MS, LOAD_AHEAD_MS = 500, 30_000, 250, 3_000
# Each consumer holds so many leases before it deletes the first.
HELD = 8


def batches(rows: int, width_ms: int, lead_ms: int) -> list[CreateBatch]:
    """Batches whose times are anywhere in the same span, of which the first is `lead_ms` after their creation."""
    chance = random.Random(7)
    made = []
    for number in range(rows // BATCH):
        ts = [NOW + lead_ms + chance.randrange(1, width_ms) for _ in range(BATCH)]
        ids = [f"{chance.getrandbits(64):016x}" for _ in range(BATCH)]
        session = ProducerSession(NOW, 1 + number % IN_FLIGHT)
        made.append(CreateBatch("o", session, number * BATCH, ts, [BODY] * BATCH, ids=ids))
    return made


async def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """Processor time of each step per message."""
    width_ms = args.rows * 1_000 // args.per_s
    made = batches(args.rows, width_ms, args.lead_ms)
    rows = len(made) * BATCH
    topic = Topic(name="t", number=1, settings=TopicSettings(buckets=args.buckets))
    storage = RocksStorage(path / "store", journal=True)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    groups = [list(range(args.buckets))[number :: args.consumers] for number in range(args.consumers)]
    for group in groups:
        await storage.lease(topic, LeaseRequest(group, "first", NOW, NOW + 1), NOW, DIRECT_CALL)
    spent = dict.fromkeys(("create", "merge", "load", "lease", "delete"), 0.0)
    sizes: list[int] = []
    slowest = 0.0

    def count(name: str, began: float) -> float:
        took = time.process_time() - began
        spent[name] += took
        return took

    began = time.process_time()
    await create_all(storage, topic, made)
    count("create", began)
    began = time.process_time()
    await storage.merger.settle()
    count("merge", began)
    held: list[deque[tuple[int, int]]] = [deque() for _ in groups]
    now, loaded_at = NOW + args.lead_ms - PREFETCH_MS, 0
    while sum(sizes) < rows or any(held):
        if now >= loaded_at + LOAD_MS:
            loaded_at, began = now, time.process_time()
            for group in groups:
                await storage.load(topic, group, now + LOAD_AHEAD_MS)
            count("load", began)
        for number, group in enumerate(groups):
            request = LeaseRequest(group, f"c{number}", now + PREFETCH_MS, now + PREFETCH_MS + LEASE_MS)
            began = time.process_time()
            lease = await storage.lease(topic, request, now, DIRECT_CALL)
            slowest = max(slowest, count("lease", began))
            if lease is not None:
                held[number].append((lease.lease_id, len(lease)))
                sizes.append(len(lease))
            if len(held[number]) > HELD or (lease is None and held[number]):
                began = time.process_time()
                lease_id, size = held[number].popleft()
                for first in range(0, size, args.settle_rows):
                    ranges = [(first, min(size, first + args.settle_rows))]
                    change = Delete(topic, lease_id, f"c{number}", ranges)
                    assert not (await apply_one(storage, change, now, DIRECT_CALL)).codes
                count("delete", began)
        now += args.step_ms
    await storage.close()
    figures = {f"{name}_cpu_us": round(seconds / rows * 1e6, 2) for name, seconds in spent.items()}
    return figures | {"rows_per_lease": round(rows / len(sizes), 1), "slowest_lease_ms": round(slowest * 1e3, 2)}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--per-s", type=int, default=2_500)
    parser.add_argument("--step-ms", type=int, default=250)
    parser.add_argument("--consumers", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=64)
    parser.add_argument("--lead-ms", type=int, default=70_000, help="the first message is due so long after creation")
    parser.add_argument("--settle-rows", type=int, default=1_000, help="so many rows of a lease are deleted at once")
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    print(json.dumps({"rows": args.rows, "per_s": args.per_s, "consumers": args.consumers} | figures))


if __name__ == "__main__":
    main()
