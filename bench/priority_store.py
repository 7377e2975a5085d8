"""A backlog of many priorities on the embedded store, in process: what creating and delivering it costs per message.

    python -m bench.priority_store --rows 300000 --priorities 10000 --buckets 16

Batches of 1,000 messages of 100 bytes that are due at once, each at a random priority, eight in flight. Then each
consumer leases 1,000 at a time, and deletes each lease while it has the next ones. With `--settle` the store may merge
before. Prints one line of JSON. To compare releases, run it with the `src` of each in PYTHONPATH, in the same minute.
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

from bench.scattered_store import BATCH, BODY, IN_FLIGHT, NOW, create_all, settle, watch_lag
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage

LEASE_MS = 60_000
# Each consumer holds so many leases before it deletes the first.
HELD = 4


def batches(rows: int, priorities: int, ids: str, buckets: int) -> list[CreateBatch]:
    """The batches; generated ids are in the order of priority, as the client sends them."""
    chance = random.Random(7)
    made = []
    for number in range(rows // BATCH):
        chosen = [chance.randrange(priorities) for _ in range(BATCH)]
        own = [f"{chance.getrandbits(64):016x}" for _ in range(BATCH)] if ids == "own" else None
        if own is None:
            chosen.sort()
        made.append(
            CreateBatch(
                "o",
                ProducerSession(NOW, 1 + number % IN_FLIGHT),
                number * BATCH,
                [NOW] * BATCH,
                [BODY] * BATCH,
                priorities=chosen,
                ids=None if own is None else IdColumn(own),
                bucket=number % buckets,
            )
        )
    return made


class Drain:
    """Leases and deletes everything, and counts the processor time of both."""

    def __init__(self, storage: RocksStorage, topic: Topic, now: int) -> None:
        self._storage, self._topic, self._now = storage, topic, now
        self.lease_s = self.delete_s = self.slowest_s = 0.0
        self.rows = self.parts = self.disordered = 0
        self.times: list[float] = []

    async def run(self, groups: list[list[int]]) -> None:
        """One consumer per group of buckets; they take turns."""
        held: list[deque[tuple[int, int]]] = [deque() for _ in groups]
        last = [-1] * len(groups)
        open_groups = set(range(len(groups)))
        while open_groups or any(held):
            for number, buckets in enumerate(groups):
                if number in open_groups and not await self._lease(number, buckets, held[number], last):
                    open_groups.discard(number)
                while held[number] and (len(held[number]) > HELD or number not in open_groups):
                    await self._delete(number, *held[number].popleft())

    async def _lease(self, number: int, buckets: list[int], held: deque[tuple[int, int]], last: list[int]) -> bool:
        began = time.process_time()
        request = LeaseRequest(buckets, f"c{number}", self._now, self._now + LEASE_MS, BATCH)
        lease = await self._storage.lease(self._topic, request, self._now, DIRECT_CALL)
        took = time.process_time() - began
        self.lease_s += took
        self.times.append(took)
        if lease is None:
            return False
        priorities = list(lease.priorities or [0] * len(lease))
        self.disordered += priorities != sorted(priorities) or priorities[0] < last[number]
        last[number] = priorities[-1]
        held.append((lease.lease_id, len(lease)))
        self.rows += len(lease)
        state = self._storage._states[self._topic.number].leases.get(lease.lease_id)
        self.parts += len(state.parts) if state is not None else 0
        return True

    async def _delete(self, number: int, lease_id: int, rows: int) -> None:
        began = time.process_time()
        change = Delete(self._topic, lease_id, f"c{number}", [(0, rows)])
        assert not (await apply_one(self._storage, change, self._now, DIRECT_CALL)).codes
        self.delete_s += time.process_time() - began


async def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """Processor time of each step per message."""
    made = batches(args.rows, args.priorities, args.ids, args.buckets)
    rows = len(made) * BATCH
    topic = Topic(name="t", number=1, settings=TopicSettings(kind=TopicKind.PRIORITY, buckets=args.buckets))
    storage = RocksStorage(path / "store", journal=True)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    figures = dict[str, float]()
    gaps: list[float] = []
    watch = asyncio.ensure_future(watch_lag(gaps))
    wall, cpu = time.perf_counter(), time.process_time()
    await create_all(storage, topic, made)
    del made
    figures["create_cpu_us"] = round((time.process_time() - cpu) / rows * 1e6, 2)
    figures["create_per_s"] = round(rows / (time.perf_counter() - wall))
    if args.settle:
        await settle(storage, figures)
    figures["merged_part"] = round(storage.merger.rows / rows, 2)
    figures["lag_ms"] = round(max(gaps, default=0.0) * 1e3, 2)
    watch.cancel()
    wall, cpu = time.perf_counter(), time.process_time()
    drained = Drain(storage, topic, NOW + 1)
    await drained.run([list(range(args.buckets))[number :: args.consumers] for number in range(args.consumers)])
    assert drained.rows == rows, (drained.rows, rows)
    assert not drained.disordered
    took = time.perf_counter() - wall
    figures["drain_cpu_us"] = round((time.process_time() - cpu) / rows * 1e6, 2)
    figures["drain_per_s"] = round(rows / took)
    figures["lease_cpu_us"] = round(drained.lease_s / rows * 1e6, 2)
    figures["delete_cpu_us"] = round(drained.delete_s / rows * 1e6, 2)
    figures["parts_per_lease"] = round(drained.parts / len(drained.times), 1)
    ordered = sorted(drained.times)
    figures["lease_p50_ms"], figures["lease_p99_ms"], figures["lease_max_ms"] = (
        round(at * 1e3, 2) for at in (ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])
    )
    await storage.close()
    return figures


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--priorities", type=int, default=10_000)
    parser.add_argument("--ids", choices=("own", "generated"), default="generated")
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--consumers", type=int, default=1)
    parser.add_argument("--settle", action="store_true", help="merge everything before it is consumed")
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    shape = {"rows": args.rows, "priorities": args.priorities, "ids": args.ids, "consumers": args.consumers}
    print(json.dumps(shape | figures))


if __name__ == "__main__":
    main()
