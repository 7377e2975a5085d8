"""What shared and compressed bodies save and cost: python -m bench.bodies [--messages N]

Each case has a broker of its own on temporary data. `wire` is what the create frames carry, `disk` what the data
directory grows by, both for all messages; the journal is off, since it has no bodies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path

import dejaq
from dejaq.domain.bodies import Compression, sealed
from dejaq.testing.process import BrokerProcess

BODY_BYTES = 2_048
BATCH = 500


def unique(count: int, chance: random.Random) -> list[bytes]:
    """Bodies of which no two are alike, and which do not compress."""
    return [chance.randbytes(BODY_BYTES) for _ in range(count)]


def repeated(count: int, chance: random.Random) -> list[bytes]:
    """Bodies of which nine in ten were there before."""
    kinds = unique(count // 10, chance)
    return [*kinds, *chance.choices(kinds, k=count - len(kinds))]


def documents(count: int, chance: random.Random) -> list[bytes]:
    """JSON as programs send it: no two alike, of few words."""
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
            before = size_of(data)
            async with client.producer("bench") as producer:
                began = time.monotonic()
                for start in range(0, len(bodies), BATCH):
                    (await producer.send_batch(bodies[start : start + BATCH], delay=0)).raise_for_failures()
                created = time.monotonic() - began
            disk = size_of(data) - before
            taken = 0
            began = time.monotonic()
            async with client.consumer("bench", name="c", max_messages=len(bodies)) as consumer:
                async for batch in consumer.batches():
                    taken += sum(map(len, batch.bodies))
                    await batch.delete()
            consumed = time.monotonic() - began
    assert taken == sum(map(len, bodies))
    how = Compression(str(settings.get("compression", "none")))
    figures = {
        "case": name,
        "body_mb": round(taken / 1e6, 1),
        "wire_mb": round(sum(len(sealed(body, how)) for body in bodies) / 1e6, 1),
        "disk_mb": round(disk / 1e6, 1),
        "create_per_s": round(len(bodies) / created),
        "lease_delete_per_s": round(len(bodies) / consumed),
    }
    print(json.dumps(figures), flush=True)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    count = parser.parse_args().messages
    chance = random.Random(7)
    for name, bodies in (("unique", unique(count, chance)), ("90 % repeats", repeated(count, chance))):
        await case(f"{name}, plain", bodies)
        await case(f"{name}, share_bodies", bodies, share_bodies=True)
    texts = documents(count, chance)
    await case("documents, plain", texts)
    await case("documents, zstd", texts, compression="zstd")


if __name__ == "__main__":
    asyncio.run(main())
