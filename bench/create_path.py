"""Batches with own ids at the broker, in process: what a message costs from the received frame to the commit.

    python -m bench.create_path --rows 300000 --spread 30d --buckets 64 --body 100

Batches of 1,000 messages as a client sends them, eight in flight, without sockets and sessions. Prints one line of
JSON: the processor time of the thread of the event loop, and that of the process. To compare releases, run it with the
`src` of each in PYTHONPATH, in the same minute.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.scattered_store import BATCH, IN_FLIGHT, NOW, SPREADS_MS
from dejaq.broker.delivery.prepared import PreparedChange
from dejaq.broker.sessions import incoming
from dejaq.broker.sessions.producer import ConnectedProducer
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.protocol.spliced import create_frame, serialized
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.rocksdb.store import RocksStorage


def prepare(producer: ConnectedProducer, data: bytes) -> PreparedChange:
    """A frame as a session reads it; releases before 0.3 had no columns."""
    if hasattr(incoming, "read_parts"):
        frame, columns = incoming.read_parts(data)
        return producer.prepare(frame.create, columns)
    return producer.prepare(incoming.read_frame(data).create)


class _Quiet:
    """Stands for what a session has besides: no consumers, no metrics, and a clock that stands still."""

    has_consumers = False

    def add(self, *_: object) -> None:
        """Count nothing."""

    def now_ms(self) -> int:
        """The time."""
        return NOW


def frames(rows: int, spread: str, size: int) -> list[bytes]:
    """The batches as they are received."""
    chance, body = random.Random(7), b"x" * size
    made = []
    for number in range(rows // BATCH):
        session = ProducerSession(NOW, 1 + number % IN_FLIGHT)
        create = carrier.CreateBatch(session=session.pack(), sequence=number // IN_FLIGHT * BATCH)
        create.ts.extend([NOW + chance.randrange(1, SPREADS_MS[spread]) for _ in range(BATCH)])
        ids = [f"{chance.getrandbits(64):016x}" for _ in range(BATCH)]
        frame = carrier.ClientFrame(request=number + 1, create=create)
        made.append(serialized(create_frame(frame, [body] * BATCH, ids)))
    return made


async def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """Create everything."""
    made = frames(args.rows, args.spread, args.body)
    topic = Topic(name="t", number=1, settings=TopicSettings(buckets=args.buckets))
    storage = RocksStorage(path / "store", journal=True)
    await storage.open(NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    quiet: Any = _Quiet()
    producer = ConnectedProducer(group="o", topic=topic, roster=quiet, storage=storage, clock=quiet, metrics=quiet)
    waiting = iter(made)

    async def produce() -> None:
        for data in waiting:
            change = prepare(producer, data)
            assert not (await change.apply(storage, DIRECT_CALL)).codes

    profile = cProfile.Profile() if args.profile else None
    wall, cpu, loop = time.perf_counter(), time.process_time(), time.thread_time()
    if profile is not None:
        profile.enable()
    await asyncio.gather(*(produce() for _ in range(IN_FLIGHT)))
    if profile is not None:
        profile.disable()
        profile.dump_stats(args.profile)
    rows = len(made) * BATCH
    loop, cpu, wall = time.thread_time() - loop, time.process_time() - cpu, time.perf_counter() - wall
    await storage.close()
    return {
        "create_per_s": round(rows / wall),
        "loop_us": round(loop / rows * 1e6, 3),
        "cpu_us": round(cpu / rows * 1e6, 3),
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--spread", choices=tuple(SPREADS_MS), default="30d")
    parser.add_argument("--buckets", type=int, default=64)
    parser.add_argument("--body", type=int, default=100, help="bytes of a body")
    parser.add_argument("--profile", help="the file for a profile")
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    print(json.dumps({"spread": args.spread, "buckets": args.buckets, "body": args.body} | figures))


if __name__ == "__main__":
    main()
