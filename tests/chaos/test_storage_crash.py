"""R4 for the storage: after a kill at each of its named points, the store has exactly the acknowledged changes."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicKind
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
# The points of a merge of rows by priority.
MERGES = tuple(point for point in POINTS["rocksdb"] if point.endswith("_merge"))
CASES = [(store, TopicKind.TIMELINE, point) for store, points in POINTS.items() for point in points]
CASES += [("rocksdb", TopicKind.PRIORITY, point) for point in MERGES]
ROUNDS = size("R4", ci=1, full=20)
CHANGES = 400
# The time of each task advances by a millisecond per change, and no clock goes back here.
AFTER = NOW + CHANGES
ROOT = Path(__file__).resolve().parents[2]


def _run_until_killed(place: str, kind: TopicKind, point: str, seed: int) -> list[dict[str, Any]]:
    """The lines that a child process printed before it was killed at the point."""
    hit = random.Random(seed).randrange(20, 120)
    child = subprocess.run(
        [sys.executable, "-m", "tests.chaos.storage_child", place, str(seed), str(CHANGES), str(kind)],
        cwd=ROOT,
        env={**os.environ, "DEJAQ_CRASH_AT": f"{point}:{hit}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert child.returncode == -signal.SIGKILL, f"{point}:{hit} did not kill the process: {child.stderr}"
    # The kill may cut off the last line.
    return [json.loads(line) for line in child.stdout.splitlines(keepends=True) if line.endswith("\n")]


@dataclass
class Expected:
    """What a task has acknowledged, and the state after the change in progress, if there is one."""

    acknowledged: State = field(default_factory=dict)
    in_progress: State | None = None
    # Whether the change in progress concerns only some of these rows.
    some: bool = False

    def allows(self, state: State) -> bool:
        """Whether a topic may have this state."""
        if self.in_progress is None or not self.some:
            return state in (self.acknowledged, self.in_progress)
        rows = [(row, self.acknowledged[name], self.in_progress[name]) for name, row in state.items()]
        return state.keys() == self.acknowledged.keys() and all(row in both for row, *both in rows)


def _states(said: list[dict[str, Any]]) -> dict[str, Expected]:
    """What is known of each topic."""
    tasks: dict[int, Expected] = {}
    topics: dict[int, str] = {}
    for line in said:
        task = line["task"]
        if "topic" in line:
            topics[task], tasks[task] = line["topic"], Expected()
        elif "begin" in line:
            tasks[task].in_progress, tasks[task].some = line["begin"], line["some"]
        else:
            tasks[task] = Expected(line["done"])
    return {name: tasks[task] for task, name in topics.items()}


async def _state_of(storage: Storage, topic: Topic) -> State:
    found: State = {}
    cursor: bytes | None = None
    while True:
        page = await storage.browse(topic, Filter(), cursor, 100, AFTER)
        for message in page.messages:
            assert message.id not in found, f"{message.id} exists twice"
            found[message.id] = [message.ts, digest(message.body), message.attempts, message.lock_consumer]
        cursor = page.cursor
        if cursor is None:
            return found


async def _check_counters(storage: Storage, topic: Topic, state: State) -> None:
    """The counters, which are stored apart from the messages, agree with a full scan."""
    assert await storage.count(topic, Filter(), AFTER) == len(state)
    for status in Status:
        rows = [row for row in state.values() if _status(row) is status]
        assert await storage.count(topic, Filter(status=status), AFTER) == len(rows), status
    histogram = dict(await storage.histogram(topic, Filter(), 1_000, AFTER))
    expected: dict[int, int] = {}
    for ts, *_ in state.values():
        expected[ts // 1_000 * 1_000] = expected.get(ts // 1_000 * 1_000, 0) + 1
    assert histogram == expected


def _status(row: list[Any]) -> Status:
    if row[0] <= AFTER:
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


@pytest.mark.parametrize(("store", "kind", "point"), CASES)
async def test_r4_a_kill_at_a_storage_point_leaves_the_acknowledged_state(
    store: str, kind: TopicKind, point: str, tmp_path: Path
) -> None:
    """G1, G6: a topic has its last acknowledged state or the state after the change in progress, and no other."""
    seed = new_seed()
    for number in range(ROUNDS):
        place = str(tmp_path / str(number))
        if store == "postgres":
            # A database of its own, so that connections of other tests are not waited for.
            dsn = shared_server().new_database(f"crash_{secrets.token_hex(4)}")
            place = f"{dsn} crash"
        expected = _states(_run_until_killed(place, kind, point, seed + number))
        if store == "postgres":
            await _nobody_is_connected(dsn)
        storage = store_at(place)
        await storage.open(AFTER)
        topics = {topic.name: topic for topic in await storage.topics()}
        for name, one in expected.items():
            state = await _state_of(storage, topics[name])
            allowed = [one.acknowledged, one.in_progress or {}]
            assert one.allows(state), f"{name} after {point}, seed {seed + number}: {_difference(state, allowed)}"
            await _check_counters(storage, topics[name], state)
        await storage.close()


def _difference(state: State, allowed: list[State]) -> str:
    return "; or ".join(
        f"missing {sorted(set(one) - set(state))[:5]}, too many {sorted(set(state) - set(one))[:5]}, "
        f"other {[name for name in one if name in state and one[name] != state[name]][:5]}"
        for one in allowed
    )
