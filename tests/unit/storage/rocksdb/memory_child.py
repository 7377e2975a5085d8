"""A process of its own: how much its memory grows when rows are read, and how much of it the store counts.

    python -m tests.unit.storage.rocksdb.memory_child DIRECTORY '{"rows": 20000, "per_batch": 1, ...}'

Prints both numbers as JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import random
import sys
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Durability, Topic, TopicKind, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.prioritising import PriorityTopicState

NOW = 1_800_000_000_000
DUE = NOW + 5_000
BUCKETS = 4
WINDOW_BYTES = 1 << 34
HOUR_MS, MONTH_MS = 3_600_000, 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Load:
    """What is stored: rows in batches, and whether they are leased."""

    rows: int
    per_batch: int
    own_ids: bool = True
    body_bytes: int = 100
    priorities: int = 0
    leased: bool = False
    # Whether the rows are due within a month, merged or not, and what is counted finds them.
    far: bool = False
    merged: bool = False
    # Whether what is counted is what is known of the runs that were searched.
    searched: bool = False


def rss_bytes() -> int:
    """The resident memory, without what was released."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def batches(load: Load) -> list[CreateBatch]:
    chance, session = random.Random(1), ProducerSession(NOW, 1)
    made = []
    for number in range(load.rows // load.per_batch):
        count = load.per_batch
        at = NOW if load.priorities else DUE
        far = [DUE + HOUR_MS + chance.randrange(MONTH_MS) for _ in range(count)]
        made.append(
            CreateBatch(
                "o",
                session,
                number * count,
                far if load.far else [at] * count,
                [chance.randbytes(load.body_bytes) for _ in range(count)],
                ids=[f"{chance.getrandbits(64):016x}" for _ in range(count)] if load.own_ids else None,
                bucket=number % BUCKETS,
                priorities=sorted(chance.randrange(load.priorities) for _ in range(count)) if load.priorities else None,
            )
        )
    return made


async def measure_finding(path: Path, load: Load) -> dict[str, int]:
    """What is in memory of rows that are not."""
    topic = Topic("t", 1, TopicSettings(buckets=BUCKETS, durability=Durability.RELAXED))
    storage, made = RocksStorage(path / "data", window_bytes=WINDOW_BYTES), batches(load)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    for batch in made:
        await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)
    if load.merged:
        await storage.merger.settle()
    await storage.close()
    ids = [message_id for batch in made for message_id in batch.ids or ()]
    storage = RocksStorage(path / "data", window_bytes=WINDOW_BYTES)
    await storage.open(NOW)
    # What the first searches need, such as the tables of hashes.
    await storage.get(topic, ids[-1_000:], NOW)
    await storage.get(topic, ids[:1], NOW)
    state, budget = storage._new_state(topic), storage._budget
    counted = budget.index + budget.known
    # It is little, compared with what the database releases meanwhile, and all of it is allocated by Python.
    tracemalloc.start()
    if load.searched:
        for message_id in ids[:: load.per_batch]:
            await storage.get(topic, [message_id], NOW)
    else:
        state.index.load(state.runs.at)
        state.wide.load(storage._database)
        state.moved.load()
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = budget.index + budget.known - counted
    await storage.close()
    return {"grown": grown, "counted": counted}


async def measure(path: Path, load: Load) -> dict[str, int]:
    if load.far:
        return await measure_finding(path, load)
    kind = TopicKind.PRIORITY if load.priorities else TopicKind.TIMELINE
    topic = Topic("t", 1, TopicSettings(buckets=BUCKETS, durability=Durability.RELAXED, kind=kind))
    storage = RocksStorage(path / "data", window_bytes=WINDOW_BYTES)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    for batch in batches(load):
        await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)
    await storage.close()
    storage = RocksStorage(path / "data", window_bytes=WINDOW_BYTES)
    await storage.open(NOW)
    # The caches of the database are full before the measurement begins.
    for _ in storage._database.scan(b"\0", b"\xff"):
        pass
    before = rss_bytes()
    await storage.load(topic, range(BUCKETS), DUE)
    state = storage._states[1]
    for bucket in range(BUCKETS):
        while isinstance(state, PriorityTopicState) and state.read_on(bucket):
            pass
    leased = 0
    while load.leased and leased < load.rows:
        request = LeaseRequest(range(BUCKETS), "worker", DUE, DUE + 10_000_000, 1_000)
        granted = await storage.lease(topic, request, DUE, DIRECT_CALL)
        assert granted is not None
        leased += len(granted)
        del granted
    grown, counted = rss_bytes() - before, round(storage.stats()["window_bytes"])
    await storage.close()
    return {"grown": grown, "counted": counted}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), Load(**json.loads(sys.argv[2]))))))
