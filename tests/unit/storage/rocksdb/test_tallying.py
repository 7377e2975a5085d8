"""A histogram whose steps begin within minutes reads each run once, and lets other tasks run meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from dejaq.storage.base import Filter
from dejaq.storage.rocksdb.engine.database import View
from dejaq.storage.rocksdb.reading import pace
from tests.unit.storage.rocksdb.test_levels import DAY_MS, NOW, TOPIC, Stage

HOUR_MS = 3_600_000


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path / "store")
    await stage.begin()
    for _ in range(20):
        await stage.create(200, own=True, spread_ms=10 * DAY_MS)
    return stage


def drawn_by_hand(stage: Stage, start: int, step: int) -> dict[int, int]:
    return Counter(ts - (ts - start) % step for ts, _, _ in stage.expected.values() if ts >= start)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The runs that were read from a snapshot."""
    read: list[bytes] = []
    run_at = View.run_at

    def note(view: View, key: bytes, stored: bytes) -> bytes:
        read.append(stored)
        return run_at(view, key, stored)

    monkeypatch.setattr(View, "run_at", note)
    return read


async def test_each_run_is_read_once(stage: Stage, read: list[bytes]) -> None:
    start = NOW + 12_345
    drawn = await stage.storage.histogram(TOPIC, Filter(start=start), HOUR_MS, stage.now)
    assert dict(drawn) == drawn_by_hand(stage, start, HOUR_MS)
    assert 10 < len(read) == len(set(read))
    await stage.storage.close()


async def test_other_tasks_run_while_rows_are_counted(
    stage: Stage, read: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run may be the end of a step; here each is, as on a slow machine."""
    monkeypatch.setattr(pace, "STEP_S", 0.0)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    await stage.storage.histogram(TOPIC, Filter(start=NOW + 1), HOUR_MS, stage.now)
    other.cancel()
    assert turns >= len(read) > 10
    await stage.storage.close()


async def test_the_answer_is_that_of_one_moment(stage: Stage) -> None:
    """A change during the count is in the answer as a whole or not at all."""
    start = NOW + 12_345
    moments = [drawn_by_hand(stage, start, HOUR_MS)]
    counting = asyncio.create_task(stage.storage.histogram(TOPIC, Filter(start=start), HOUR_MS, stage.now))
    await asyncio.sleep(0)
    await stage.create(200, own=True, spread_ms=10 * DAY_MS)
    moments.append(drawn_by_hand(stage, start, HOUR_MS))
    await stage.cancel(sorted(stage.expected)[:100])
    moments.append(drawn_by_hand(stage, start, HOUR_MS))
    assert dict(await counting) in moments
    await stage.storage.close()
