"""Savings and costs of shared, compressed and large bodies: python -m bench.bodies [--messages N] [--large]

Each case has a broker of its own on temporary data. `wire` counts the bytes that the producer
sends, `disk` the bytes by which the data directory grows, both for all messages; the journal is off, because it has
no bodies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

import dejaq
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.websocket.transport import WebSocketTransport
from dejaq.sdk.session.link import Link
from dejaq.testing.servers.process import BrokerProcess

BODY_BYTES = 2_048
BATCH = 500


LARGE_BYTES = 64 * 1024


PARTED_BYTES = 64 * 1024 * 1024
PARTED_COUNT = 10


class Wire:
    """Counts the bytes of every frame, and of every part of a body, that clients of this process send."""

    def __init__(self) -> None:
        self.bytes = 0
        ask, upload = Link.ask, WebSocketTransport.upload

        async def parts(frames: AsyncIterator[Message]) -> AsyncIterator[Message]:
            async for frame in frames:
                self.bytes += frame.ByteSize()
                yield frame

        async def uploading(
            transport: WebSocketTransport, method: str, frames: AsyncIterator[Message], *rest: Any
        ) -> Message:
            return await upload(transport, method, parts(frames), *rest)

        WebSocketTransport.upload = uploading  # type: ignore[assignment,method-assign]

        async def counted(link: Link, frame: carrier.ClientFrame) -> carrier.BrokerFrame:
            self.bytes += frame.ByteSize()
            return await ask(link, frame)

        Link.ask = counted  # type: ignore[assignment,method-assign]


WIRE = Wire()


def unique(count: int, chance: random.Random, size: int = BODY_BYTES) -> list[bytes]:
    """Bodies that all differ and cannot be compressed."""
    return [chance.randbytes(size) for _ in range(count)]


def repeated(count: int, chance: random.Random, size: int = BODY_BYTES) -> list[bytes]:
    """Bodies of which nine in ten occurred before."""
    kinds = unique(count // 10, chance, size)
    return [*kinds, *chance.choices(kinds, k=count - len(kinds))]


def documents(count: int, chance: random.Random) -> list[bytes]:
    """JSON as programs send it: all different, with few different words."""
    words = ["Ada", "London", "invoice", "paid", "due", "Ulm", "reminder", "order", "customer", "street"]
    made = []
    for number in range(count):
        items = [
            {"id": number * 100 + n, "name": chance.choice(words), "note": chance.choice(words)} for n in range(40)
        ]
        made.append(json.dumps(items).encode())
    return made


async def case(name: str, bodies: list[bytes], **settings: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        async with BrokerProcess(data) as broker, dejaq.connect(broker.url) as client:
            await client.create_topic("bench", buckets=16, journal=False, **settings)  # type: ignore[arg-type]
            before, sent = size_of(data), WIRE.bytes
            async with client.producer("bench") as producer:
                began = time.monotonic()
                batch = max(1, BATCH * BODY_BYTES // len(bodies[0]))
                for start in range(0, len(bodies), batch):
                    await producer.send_batch(bodies[start : start + batch], delay=0)
                created = time.monotonic() - began
            disk, sent = size_of(data) - before, WIRE.bytes - sent
            taken = 0
            began = time.monotonic()
            async with client.consumer("bench", name="c", max_messages=len(bodies)) as consumer:
                async for taken_batch in consumer.batches():
                    taken += sum(map(len, taken_batch.bodies))
                    await taken_batch.delete()
            consumed = time.monotonic() - began
    assert taken == sum(map(len, bodies))
    figures = {
        "case": name,
        "body_mb": round(taken / 1e6, 1),
        "wire_mb": round(sent / 1e6, 1),
        "disk_mb": round(disk / 1e6, 1),
        "create_per_s": round(len(bodies) / created),
        "lease_delete_per_s": round(len(bodies) / consumed),
    }
    print(json.dumps(figures), flush=True)


async def parted(name: str, bodies: list[bytes], **settings: object) -> None:
    """Bodies of 64 MiB: sent two at a time, then read in parts one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        async with BrokerProcess(data) as broker, dejaq.connect(broker.url, deadline=120) as client:
            await client.create_topic(
                "bench",
                buckets=16,
                journal=False,
                max_body_bytes=PARTED_BYTES,
                **settings,  # type: ignore[arg-type]
            )
            before, sent, peak = size_of(data), WIRE.bytes, peak_bytes(broker.pid)
            async with client.producer("bench") as producer:
                began = time.monotonic()
                await producer.send_batch(bodies)
                created = time.monotonic() - began
            disk, sent = size_of(data) - before, WIRE.bytes - sent
            taken = 0
            began = time.monotonic()
            async with client.consumer("bench", name="c", max_messages=len(bodies), fetch_large=False) as consumer:
                async for lease in consumer:
                    async for part in lease.parts():
                        taken += len(part)
                    await lease.delete()
            consumed = time.monotonic() - began
            grown = peak_bytes(broker.pid) - peak
    assert taken == sum(map(len, bodies))
    figures = {
        "case": name,
        "body_mb": round(taken / 1e6, 1),
        "wire_mb": round(sent / 1e6, 1),
        "disk_mb": round(disk / 1e6, 1),
        "send_mb_per_s": round(taken / created / 1e6),
        "read_mb_per_s": round(taken / consumed / 1e6),
        "broker_peak_growth_mb": round(grown / 1e6),
    }
    print(json.dumps(figures), flush=True)


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--large", action="store_true", help="only the bodies of 64 MiB")
    chosen = parser.parse_args()
    count = chosen.messages
    chance = random.Random(7)
    kinds = unique(PARTED_COUNT, chance, PARTED_BYTES)
    await parted("64 MiB unique, plain", kinds)
    await parted("64 MiB unique, share_bodies", kinds, share_bodies=True)
    await parted("64 MiB, 90 % repeats, share_bodies", kinds[:1] * PARTED_COUNT, share_bodies=True)
    if chosen.large:
        return
    for name, bodies in (("unique", unique(count, chance)), ("90 % repeats", repeated(count, chance))):
        await case(f"{name}, plain", bodies)
        await case(f"{name}, share_bodies", bodies, share_bodies=True)
    large = count // 20
    for name, bodies in (
        ("large unique", unique(large, chance, LARGE_BYTES)),
        ("large, 90 % repeats", repeated(large, chance, LARGE_BYTES)),
    ):
        await case(f"{name}, plain", bodies)
        await case(f"{name}, share_bodies", bodies, share_bodies=True)
    texts = documents(count, chance)
    await case("documents, plain", texts)
    await case("documents, zstd", texts, compression="zstd")


if __name__ == "__main__":
    asyncio.run(main())
