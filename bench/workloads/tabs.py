"""What falls due while a hundred tabs of `dejaq web` are open: deliveries must stay within the goals of L5.

The tabs are WebSockets that subscribe as the pages do: all to the overview, and each to a stretch of the timeline, of
which there are ten different ones, or to what is due next.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.harness.figures import Figures, lateness_figures
from bench.harness.stage import Outcome
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.dejaq_broker import TOPIC
from bench.workloads.reminders import MONTH_MS
from bench.workloads.watched import deliver_while

TABS, STRETCHES = 100, 10
START_SECONDS = 30.0
# Bars of a timeline as wide as a screen.
BARS = 200
_GATEWAY = "from dejaq.cli.main import main; main()"


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per rate, all on one server."""
    return deliver_while(system, plan, open_tabs)


def _views(tab: int) -> list[dict[str, Any]]:
    """What a tab looks at: every third one at what is due next, the others at a stretch of the timeline."""
    now = time.time_ns() // 3_600_000_000_000 * 3_600_000
    span = MONTH_MS // (1 + tab % STRETCHES)
    step = span // BARS // 60_000 * 60_000
    due = {"kind": "due", "topic": TOPIC}
    line = {"kind": "timeline", "topic": TOPIC, "start": now, "end": now + span, "step_ms": step}
    return [{"kind": "overview"}, due if tab % 3 == 0 else line]


async def open_tabs(address: str, begin: float, end: float) -> Figures:
    """Open the tabs before the first message is due and close them after the last; count their answers."""
    gateway = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _GATEWAY, "web", "--url", f"dejaq://{address}"),
        *("--listen", "127.0.0.1:0", "--rate", "0", "--log-level", "error", "--json"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert gateway.stdout is not None
        started = json.loads(await asyncio.wait_for(gateway.stdout.readline(), START_SECONDS))
        url = str(started["web"]).replace("http", "ws") + "/live"
        answers = await asyncio.gather(*(_tab(url, tab, begin, end) for tab in range(TABS)))
    finally:
        gateway.terminate()
        await gateway.wait()
    gaps = [us for one in answers for us in one]
    if not gaps:
        raise RuntimeError("the tabs were opened too late to see anything; use more due_seconds")
    figures: Figures = {"tabs": TABS, "answers_per_s": round(len(gaps) / (end - begin), 1)}
    # How long a view stays as it was: the time between two answers of it.
    found = lateness_figures(gaps, "refresh")
    return figures | {"refresh_p50_ms": found["refresh_p50_ms"], "refresh_p99_ms": found["refresh_p99_ms"]}


async def _tab(url: str, tab: int, begin: float, end: float) -> list[int]:
    """The microseconds between the answers of each view while messages fall due."""
    from websockets.asyncio.client import connect

    last: dict[str, int] = {}
    gaps: list[int] = []
    async with connect(url, proxy=None, max_size=None) as socket:
        await socket.send(json.dumps({"views": _views(tab)}))
        while time.time() < end:
            try:
                text = await asyncio.wait_for(socket.recv(), max(0.01, end - time.time()))
            except TimeoutError:
                break
            answer = json.loads(text)
            if "error" in answer:
                raise RuntimeError(f"a view failed: {answer['error']}")
            kind, now = str(answer["view"]["kind"]), time.monotonic_ns() // 1_000
            if kind in last and time.time() > begin:
                gaps.append(now - last[kind])
            last[kind] = now
    return gaps
