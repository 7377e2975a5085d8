"""How long a new zoom level of the timeline takes: from a page's question to the gateway's answer, at many pending.

    python -m bench.zoom --pending 10000000

A broker and `dejaq web` run as processes of their own. The messages lie over `--days`; the stretches are those of
somebody who zooms from all of them down to two seconds, with bars as wide as those of a page, around another moment in
each round. Each stretch is asked for twice; the first question is *cold*: no stretch of that moment and width was read.
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
from typing import TYPE_CHECKING, NamedTuple

import dejaq
from dejaq.testing.servers.process import BrokerProcess

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

DAYS = 30
BATCH, AT_ONCE = 10_000, 4
# Each level has half the time of the one before; bars as a page of 1,280 pixels draws them (static/timeline.js).
LEVELS, BARS, ROUNDS = 21, 206, 20
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
STEPS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY),
)
TOPIC = "zoomed"
_GATEWAY = "from dejaq.cli.main import main; main()"


async def load(url: str, pending: int, days: float) -> None:
    """Create the messages, at times that are spread at random."""
    days_ms = int(days * _DAY)
    chance, begin = random.Random(1), time.time_ns() // 1_000_000 + 60_000
    async with dejaq.connect(url) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:

            async def send(count: int) -> None:
                # Times in order within a batch, as a program that fills a calendar sends them.
                at = sorted(begin + chance.randrange(days_ms) for _ in range(count))
                (await producer.send_batch([b"x"] * count, at=at)).raise_for_failures()

            for first in range(0, pending, BATCH * AT_ONCE):
                sizes = [min(BATCH, pending - at) for at in range(first, min(pending, first + BATCH * AT_ONCE), BATCH)]
                await asyncio.gather(*map(send, sizes))


class Answer(NamedTuple):
    """How long one question took."""

    shown_ms: int
    cold: bool
    took_ms: float


async def zoom(url: str, days: float) -> list[Answer]:
    """The answers for each level around several moments."""
    from websockets.asyncio.client import connect

    options = ("--url", url, "--listen", "127.0.0.1:0", "--json", "--log-level", "error")
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _GATEWAY, "web", *options), stdout=asyncio.subprocess.PIPE
    )
    found: list[Answer] = []
    days_ms = int(days * _DAY)
    begin = time.time_ns() // 1_000_000 + 120_000
    try:
        assert gateway.stdout is not None
        address = str(json.loads(await gateway.stdout.readline())["web"]).replace("http", "ws") + "/live"
        async with connect(address, proxy=None, max_size=None) as socket:
            for round_ in range(ROUNDS):
                moment = days_ms * (round_ + 1) // (ROUNDS + 1)
                for level in range(LEVELS):
                    span = days_ms >> level
                    start = begin + moment - moment * span // days_ms
                    view = _view(start, span)
                    for cold in (True, False):
                        found.append(Answer(span, cold, 1_000 * await _ask(socket, view)))
    finally:
        gateway.terminate()
        await gateway.wait()
    return found


def _view(start: int, span: int) -> dict[str, object]:
    step = next(one for one in STEPS_MS if one >= span / BARS)
    first, last = start // step * step, -(-(start + span) // step) * step
    return {"kind": "timeline", "topic": TOPIC, "start": first, "end": last, "step_ms": step}


async def _ask(socket: ClientConnection, view: dict[str, object]) -> float:
    """The seconds until the first answer for a view."""
    await socket.send(json.dumps({"views": []}))
    began = time.perf_counter()
    await socket.send(json.dumps({"views": [view]}))
    answer = json.loads(await socket.recv())
    while answer["view"] != view:
        answer = json.loads(await socket.recv())
    if not answer.get("data", {}).get("starts"):
        raise RuntimeError(f"the view has no bars: {answer}")
    return time.perf_counter() - began


def _figures(answers: list[Answer]) -> dict[str, float]:
    took = sorted(answer.took_ms for answer in answers)
    return {
        "p50": round(statistics.median(took), 1),
        "p95": round(took[len(took) * 95 // 100], 1),
        "max": round(took[-1], 1),
    }


async def run(pending: int, days: float) -> None:
    """Measure, and print one line of JSON."""
    with TemporaryDirectory() as folder:
        async with BrokerProcess(Path(folder)) as broker:
            began = time.perf_counter()
            await load(broker.url, pending, days)
            loaded = time.perf_counter() - began
            found = await zoom(broker.url, days)
    levels = {
        f"{shown_ms / 60_000:.2f}": {
            name: _figures([answer for answer in found if answer.shown_ms == shown_ms and answer.cold is cold])
            for name, cold in (("cold", True), ("warm", False))
        }
        for shown_ms in dict.fromkeys(answer.shown_ms for answer in found)
    }
    print(
        json.dumps(
            {
                "pending": pending,
                "days": days,
                "load_s": round(loaded),
                "cold_ms": _figures([answer for answer in found if answer.cold]),
                "warm_ms": _figures([answer for answer in found if not answer.cold]),
                "ms_by_minutes": levels,
            }
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--days", type=float, default=DAYS)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.pending, arguments.days))
