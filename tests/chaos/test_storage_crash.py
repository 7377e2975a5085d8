"""R4 for the storage: after a kill at each of its named points, the store has exactly the acknowledged changes."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from dejaq.domain.message import Status
from dejaq.domain.topic import Topic
from dejaq.storage.base import Filter, Storage
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import new_seed, size
from tests.chaos.storage_child import NOW, State, digest, store_at

POINTS = {
    "rocksdb": (
        "storage.before_write",
        "storage.after_write",
        "storage.before_sync",
        "storage.after_sync",
        "storage.before_merge",
        "storage.after_merge",
    ),
    # The step between a commit and its sync happens in the server.
    "postgres": ("storage.before_write", "storage.after_write", "storage.after_sync"),
}
ROUNDS = size("R4", ci=1, full=20)
ROOT = Path(__file__).resolve().parents[2]


def _run_until_killed(place: str, point: str, seed: int) -> list[dict[str, Any]]:
    """The lines that a child process printed before it was killed at the point."""
    hit = random.Random(seed).randrange(20, 120)
    child = subprocess.run(
        [sys.executable, "-m", "tests.chaos.storage_child", place, str(seed), "400"],
        cwd=ROOT,
        env={**os.environ, "DEJAQ_CRASH_AT": f"{point}:{hit}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert child.returncode == -signal.SIGKILL, f"{point}:{hit} did not kill the process: {child.stderr}"
    # The kill may cut off the last line.
    return [json.loads(line) for line in child.stdout.splitlines(keepends=True) if line.endswith("\n")]


def _states(said: list[dict[str, Any]]) -> dict[str, list[State]]:
    """For each topic the allowed states: the acknowledged one and, if a change was in progress, the next one."""
    acknowledged: dict[int, State] = {}
    in_progress: dict[int, State] = {}
    topics: dict[int, str] = {}
    for line in said:
        task = line["task"]
        if "topic" in line:
            topics[task] = line["topic"]
            acknowledged[task] = {}
        elif "begin" in line:
            in_progress[task] = line["begin"]
        else:
            acknowledged[task] = in_progress.pop(task)
    return {
        name: [acknowledged[task], *([in_progress[task]] if task in in_progress else [])]
        for task, name in topics.items()
    }


async def _state_of(storage: Storage, topic: Topic) -> State:
    found: State = {}
    cursor: bytes | None = None
    while True:
        page = await storage.browse(topic, Filter(), cursor, 100, NOW)
        for message in page.messages:
            assert message.id not in found, f"{message.id} exists twice"
            found[message.id] = [message.ts, digest(message.body), message.attempts, message.lock_consumer]
        cursor = page.cursor
        if cursor is None:
            return found


async def _check_counters(storage: Storage, topic: Topic, state: State) -> None:
    """The counters, which are stored apart from the messages, agree with a full scan."""
    assert await storage.count(topic, Filter(), NOW) == len(state)
    for status in Status:
        rows = [row for row in state.values() if _status(row) is status]
        assert await storage.count(topic, Filter(status=status), NOW) == len(rows), status
    histogram = dict(await storage.histogram(topic, Filter(), 1_000, NOW))
    expected: dict[int, int] = {}
    for ts, *_ in state.values():
        expected[ts // 1_000 * 1_000] = expected.get(ts // 1_000 * 1_000, 0) + 1
    assert histogram == expected


def _status(row: list[Any]) -> Status:
    if row[0] <= NOW:
        return Status.AVAILABLE
    return Status.PROCESSING if row[3] else Status.WAITING


async def _nobody_is_connected(dsn: str) -> None:
    """Wait until the server has ended the transactions of the killed process."""
    connection = await asyncpg.connect(dsn)

    async def alone() -> bool:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dejaq' AND datname = current_database()"
        )
        return bool(await connection.fetchval(query) == 0)

    await eventually(alone, within=10, what="the server ends the connections of the killed process")
    await connection.close()


@pytest.mark.parametrize(("store", "point"), [(store, point) for store, points in POINTS.items() for point in points])
async def test_r4_a_kill_at_a_storage_point_leaves_the_acknowledged_state(
    store: str, point: str, tmp_path: Path
) -> None:
    """G1, G6: a topic has its last acknowledged state or the state after the change in progress, and no other."""
    seed = new_seed()
    for number in range(ROUNDS):
        place = str(tmp_path / str(number))
        if store == "postgres":
            # A database of its own, so that connections of other tests are not waited for.
            dsn = shared_server().new_database(f"crash_{secrets.token_hex(4)}")
            place = f"{dsn} crash"
        expected = _states(_run_until_killed(place, point, seed + number))
        if store == "postgres":
            await _nobody_is_connected(dsn)
        storage = store_at(place)
        await storage.open(NOW)
        topics = {topic.name: topic for topic in await storage.topics()}
        for name, states in expected.items():
            state = await _state_of(storage, topics[name])
            assert state in states, f"{name} after {point}, seed {seed + number}: {_difference(state, states)}"
            await _check_counters(storage, topics[name], state)
        await storage.close()


def _difference(state: State, allowed: list[State]) -> str:
    return "; or ".join(
        f"missing {sorted(set(one) - set(state))[:5]}, too many {sorted(set(state) - set(one))[:5]}, "
        f"other {[name for name in one if name in state and one[name] != state[name]][:5]}"
        for one in allowed
    )
