"""Every example runs, alone and against a broker, and prints the lines that it promises."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import patient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES_MAX = 60
SAYS = {
    "quickstart": ["received b'hello'"],
    "worker": ["job 15 fails, attempt 1", "20 jobs done, 4 failed attempts"],
    "batches": ["20000 sent", "20000 received and deleted"],
    "cancel_and_move": ["no-such-id: NOT_FOUND", "'write to Ada', waiting", "1 waiting"],
    "dead_letters": [
        "negative: attempt 2 failed",
        "dead: broken, 1 attempts, not JSON",
        "dead: negative, 2 attempts, max_attempts",
        "1 sent back, 1 removed, 1 in the topic",
    ],
    "priorities": [
        "typo, priority 5, attempt 1\ndown, priority -10, attempt 1\nprice, priority 10, attempt 1\n"
        "price, priority 10, attempt 2\nslow, priority 20, attempt 1",
    ],
    "bulk_changes": [
        "30 letters would be changed",
        "30 edited, 30 moved by ten minutes",
        "0 of winter, 42 cancelled, 0 left",
    ],
    "sync_client": ["received b'first'\nreceived b'second'\nreceived b'third'"],
    "embedded": ["started again, received: written before the restart"],
    "cron": ["31 February: INVALID_SCHEDULE", "received 'pulse number 2'", "schedules: nightly, pulse"],
    "replies": ["squares: 9, 16, 25", "nobody answers now: INDEFINITE"],
    "exactly_once": ["the order is placed twice by mistake: ID_TAKEN", "5 orders became 5 invoices"],
    "forward": ["in the inbox: 3", "3 moved; inbox 0, archive 3"],
    "large_bodies": [
        "the third is refused: BODY_TOO_LARGE",
        "received 5,000,000 bytes whole: True\nreceived 5,000,000 bytes in 5 parts: True",
    ],
    "logs": [
        "payment 17 is of account-1",
        "40 payments, total 780, lag 0",
        "the last total is -1, rolled back: True",
    ],
    "fan_out": [
        "nothing was sent: TOPIC_NOT_FOUND",
        "fan-audit received b'order 17 is paid', the same id: True",
    ],
}


def test_every_example_is_small_and_has_its_test() -> None:
    files = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert set(files) == set(SAYS)
    assert [name for name, path in files.items() if len(path.read_text().splitlines()) > LINES_MAX] == []


async def run(name: str, url: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / f"{name}.py"),
        env={**os.environ, "DEJAQ_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), patient(30))
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.parametrize("name", SAYS)
async def test_an_example_runs_alone(name: str) -> None:
    output = await run(name, "")
    assert [text for text in SAYS[name] if text not in output] == [], output


async def test_every_example_runs_against_a_broker() -> None:
    async with BrokerProcess() as broker:
        for name in SAYS:
            output = await run(name, broker.url)
            assert [text for text in SAYS[name] if text not in output] == [], output
