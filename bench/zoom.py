"""How long a new zoom level of the timeline takes: from a page's question to the gateway's answer, at many pending.

    python -m bench.zoom --pending 10000000

A broker and `dejaq web` run as processes of their own. The messages lie over 30 days; the stretches are those of
somebody who zooms from all of them down to a second, with bars as wide as those of a page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import dejaq
from dejaq.testing.servers.process import BrokerProcess

DAYS_MS = 30 * 86_400_000
BATCH, AT_ONCE = 10_000, 4
# Each level has half the time of the one before; bars as a page of 1,280 pixels draws them (static/timeline.js).
LEVELS, BARS, ROUNDS = 21, 206, 5
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
STEPS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY),
)
TOPIC = "zoomed"
_GATEWAY = "from dejaq.cli.main import main; main()"


async def load(url: str, pending: int) -> None:
    """Create the messages, at times that are spread at random."""
    chance, begin = random.Random(1), time.time_ns() // 1_000_000 + 60_000
    async with dejaq.connect(url) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:

            async def send(count: int) -> None:
                # Times in order within a batch, as a program that fills a calendar sends them.
                at = sorted(begin + chance.randrange(DAYS_MS) for _ in range(count))
                (await producer.send_batch([b"x"] * count, at=at)).raise_for_failures()

            for first in range(0, pending, BATCH * AT_ONCE):
                sizes = [min(BATCH, pending - at) for at in range(first, min(pending, first + BATCH * AT_ONCE), BATCH)]
                await asyncio.gather(*map(send, sizes))


async def zoom(url: str) -> list[tuple[int, float]]:
    """(milliseconds that are shown, seconds until the answer) of each level, several times."""
    from websockets.asyncio.client import connect

    gateway = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            _GATEWAY,
            "web",
            "--url",
            url,
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--log-level",
            "error",
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    found: list[tuple[int, float]] = []
    try:
        assert gateway.stdout is not None
        address = str(json.loads(await gateway.stdout.readline())["web"]).replace("http", "ws") + "/live"
        async with connect(address, proxy=None, max_size=None) as socket:
            for _ in range(ROUNDS):
                start = time.time_ns() // 1_000_000
                for level in range(LEVELS):
                    span = DAYS_MS >> level
                    step = next(one for one in STEPS_MS if one >= span / BARS)
                    first, last = start // step * step, -(-(start + span) // step) * step
                    view = {"kind": "timeline", "topic": TOPIC, "start": first, "end": last, "step_ms": step}
                    began = time.perf_counter()
                    await socket.send(json.dumps({"views": [view]}))
                    answer = json.loads(await socket.recv())
                    while answer["view"] != view:
                        answer = json.loads(await socket.recv())
                    if "data" not in answer:
                        raise RuntimeError(f"the view failed: {answer['error']}")
                    found.append((span, time.perf_counter() - began))
    finally:
        gateway.terminate()
        await gateway.wait()
    return found


async def run(pending: int) -> None:
    """Measure, and print one line of JSON."""
    with TemporaryDirectory() as folder:
        async with BrokerProcess(Path(folder)) as broker:
            began = time.perf_counter()
            await load(broker.url, pending)
            loaded = time.perf_counter() - began
            found = await zoom(broker.url)
    took = sorted(1_000 * seconds for _, seconds in found)
    worst = {span: round(1_000 * statistics.median(s for one, s in found if one == span), 1) for span, _ in found}
    print(
        json.dumps(
            {
                "pending": pending,
                "load_s": round(loaded),
                "p50_ms": round(statistics.median(took), 1),
                "p90_ms": round(took[len(took) * 9 // 10], 1),
                "max_ms": round(took[-1], 1),
                "median_ms_by_days": {round(span / 86_400_000, 5): ms for span, ms in worst.items()},
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000_000)
    asyncio.run(run(parser.parse_args().pending))
