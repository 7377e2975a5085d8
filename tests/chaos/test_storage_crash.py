"""R4 at the storage: a kill at each of its named points leaves exactly what was acknowledged."""

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
from dejaq.testing.postgres import shared_server
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import new_seed, size
from tests.chaos.storage_child import NOW, State, digest, store_at

POINTS = {
    "rocksdb": ("storage.before_write", "storage.after_write", "storage.before_sync", "storage.after_sync"),
    # What lies between a commit and its sync is the server's.
    "postgres": ("storage.before_write", "storage.after_write", "storage.after_sync"),
}
ROUNDS = size("R4", ci=1, full=20)
ROOT = Path(__file__).resolve().parents[2]


def _run_until_killed(place: str, point: str, seed: int) -> list[dict[str, Any]]:
    """What a child said before the point killed it."""
    hit = random.Random(seed).randrange(20, 120)
    child = subprocess.run(
        [sys.executable, "-m", "tests.chaos.storage_child", place, str(seed), "400"],
        cwd=ROOT,
        env={**os.environ, "DEJAQ_CRASH_AT": f"{point}:{hit}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL, f"{point}:{hit} did not kill it: {child.stderr}"
    # The kill may cut the last line.
    return [json.loads(line) for line in child.stdout.splitlines(keepends=True) if line.endswith("\n")]


def _states(said: list[dict[str, Any]]) -> dict[str, list[State]]:
    """For each topic the states it may be in: the acknowledged one and, if a change was under way, the next."""
    acknowledged: dict[int, State] = {}
    under_way: dict[int, State] = {}
    topics: dict[int, str] = {}
    for line in said:
        task = line["task"]
        if "topic" in line:
            topics[task] = line["topic"]
            acknowledged[task] = {}
        elif "begin" in line:
            under_way[task] = line["begin"]
        else:
            acknowledged[task] = under_way.pop(task)
    return {
        name: [acknowledged[task], *([under_way[task]] if task in under_way else [])] for task, name in topics.items()
    }


async def _state_of(storage: Storage, topic: Topic) -> State:
    found: State = {}
    cursor: bytes | None = None
    while True:
        page = await storage.browse(topic, Filter(), cursor, 100, NOW)
        for message in page.messages:
            assert message.id not in found, f"{message.id} stands twice"
            found[message.id] = [message.ts, digest(message.body), message.attempts, message.lock_consumer]
        cursor = page.cursor
        if cursor is None:
            return found


async def _check_counters(storage: Storage, topic: Topic, state: State) -> None:
    """The counters, which are kept apart from the messages, agree with a full look."""
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
    """Wait until the server has ended what the killed process had under way."""
    connection = await asyncpg.connect(dsn)

    async def alone() -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dejaq'"
        return bool(await connection.fetchval(query) == 0)

    await eventually(alone, within=10, what="the server lets go of the killed process")
    await connection.close()


@pytest.mark.parametrize(("store", "point"), [(store, point) for store, points in POINTS.items() for point in points])
async def test_r4_a_kill_at_a_storage_point_leaves_what_was_acknowledged(
    store: str, point: str, tmp_path: Path
) -> None:
    """G1, G6: a topic is as its last acknowledged change left it, or as the one under way would; never between."""
    seed = new_seed()
    for number in range(ROUNDS):
        place = str(tmp_path / str(number))
        if store == "postgres":
            place = f"{shared_server().dsn} crash_{secrets.token_hex(4)}"
        expected = _states(_run_until_killed(place, point, seed + number))
        if store == "postgres":
            await _nobody_is_connected(shared_server().dsn)
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
