"""R4 for the journal: the exporter is killed at any step, and neither loses nor duplicates an event. G9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dejaq.journal.exporter import Exporter
from dejaq.journal.keys import SigningKey
from dejaq.journal.manifest import Retention
from dejaq.journal.verification import verify
from dejaq.storage.base import Filter
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.model.replay import Replay, described
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.journal.store import NOW, events_in, exported, open_topic

ROOT = Path(__file__).resolve().parents[3]
LATER = NOW + 10**10
FIRST = [f"journal.{when}_{what}_rename" for what in ("key", "origin", "public_key") for when in ("before", "after")]
EXPORTING = [
    "journal.before_export",
    *(f"journal.{when}_{what}_rename" for what in ("segment", "manifest", "head") for when in ("before", "after")),
    "journal.before_trim",
    "journal.after_trim",
]
DROPPING = ["journal.before_retention_rename", "journal.after_retention_rename", "journal.between_drops"]


def run_until_killed(path: Path, point: str, hit: int, bytes_max: int = 0) -> set[str]:
    """The ids whose creation was acknowledged before the point killed the child."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.integration.journal.crash_child", str(path), str(bytes_max)],
        cwd=ROOT,
        env={**os.environ, "DEJAQ_CRASH_AT": f"{point}:{hit}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert child.returncode == -signal.SIGKILL, f"{point}:{hit} did not kill the process: {child.stderr}"
    lines = [line for line in child.stdout.splitlines(keepends=True) if line.endswith("\n")]
    return {message_id for line in lines for message_id in json.loads(line)}


async def finish(path: Path) -> RocksStorage:
    """Start the exporter again like a broker, and let it finish."""
    storage = RocksStorage(path / "data", journal=True)
    await storage.open(LATER)
    exporter = Exporter(storage=storage, clock=VirtualClock(), directory=path / "journal", home=path / "data")
    await exporter.start()
    await exporter.stop()
    assert await storage.journal(0, 1) == [], "something is left in the outbox"
    return storage


async def check_complete(path: Path, acknowledged: set[str]) -> None:
    storage = await finish(path)
    report = verify(path / "journal")
    assert report.whole, report.findings
    rows = exported(path / "journal")
    names = [(row["sequence"], row["row"]) for row in rows]
    assert names == sorted(set(names)), "an event is duplicated or out of order"
    assert sorted({row["sequence"] for row in rows}) == list(range(1, rows[-1]["sequence"] + 1))
    events = events_in(rows)
    assert acknowledged <= {event.id for event in events if event.kind == "created"}
    replay = Replay()
    replay.follow(events)
    topic = await open_topic(storage)
    page = await storage.browse(topic, Filter(), None, 5_000, LATER)
    assert page.cursor is None
    assert replay.standing(topic.name, LATER) == described(page.messages, LATER)
    await storage.close()


@pytest.mark.parametrize("point", EXPORTING)
async def test_a_kill_while_exporting_loses_and_duplicates_nothing(tmp_path: Path, point: str) -> None:
    """G9: after a kill at any step of an export, each event is in exactly one segment."""
    acknowledged = run_until_killed(tmp_path, point, hit=3)
    assert acknowledged
    await check_complete(tmp_path, acknowledged)


@pytest.mark.parametrize("point", FIRST)
async def test_a_kill_at_the_first_start_leaves_nothing_incomplete(tmp_path: Path, point: str) -> None:
    """G9: after a kill while its key and origin are created, a journal can still begin."""
    run_until_killed(tmp_path, point, hit=1)
    await check_complete(tmp_path, set())


@pytest.mark.parametrize("point", DROPPING)
async def test_a_kill_while_dropping_leaves_the_chain_whole(tmp_path: Path, point: str) -> None:
    """G9: after a kill while old segments are dropped, the rest verifies and has no gap."""
    run_until_killed(tmp_path, point, hit=2, bytes_max=20_000)
    storage = await finish(tmp_path)
    last = int(storage.stats()["journal_sequence"])
    await storage.close()
    directory = tmp_path / "journal"
    report = verify(directory)
    assert report.whole, report.findings
    ((origin, (first, to)),) = report.origins.items()
    assert to == last
    path = directory / f"{origin}.retention"
    key = SigningKey.of(tmp_path / "data" / "journal.key").public
    assert Retention.read(path.read_bytes(), key).first == first
    rows = exported(directory)
    assert sorted({row["sequence"] for row in rows}) == list(range(first, last + 1))
    assert len(rows) == report.events
