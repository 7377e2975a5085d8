"""The command `dejaq audit verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dejaq.cli.main import run
from dejaq.journal.exporter import Exporter
from dejaq.journal.names import SEGMENT_SUFFIX, named_files
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.journal.store import NOW, Work, open_topic


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    storage = MemoryStorage(journal=True)
    await storage.open(NOW)
    work = Work(storage, await open_topic(storage), seed=1)
    for _ in range(3):
        await work.step()
        exporter = Exporter(storage=storage, clock=VirtualClock(), directory=tmp_path / "journal", home=tmp_path)
        await exporter.start()
        await exporter.stop()
    return tmp_path / "journal"


def test_a_whole_journal_exits_with_0(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "verify", str(directory)]) == 0
    assert "whole and genuine; 3 segments" in capsys.readouterr().out
    assert run(["audit", "verify", str(directory), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["whole"], answer["segments"], answer["findings"]) == (True, 3, [])
    assert answer["events"] > 3


def test_a_damaged_segment_exits_with_1_and_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = sorted(named_files(directory, SEGMENT_SUFFIX))[1]
    path = directory / name.segment
    path.write_bytes(path.read_bytes()[:-1])
    assert run(["audit", "verify", str(directory)]) == 1
    out = capsys.readouterr().out
    # U13: a user who pipes the output into `head -1` sees the verdict.
    assert "1 faults" in out.splitlines()[0]
    assert f"truncated: {name.segment}: it has" in out
    assert "1 faults; 2 segments" in out
    assert run(["audit", "verify", "--json", str(directory)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [(finding["fault"], finding["file"]) for finding in answer["findings"]] == [("truncated", name.segment)]


def test_a_key_kept_elsewhere_is_used(directory: Path, tmp_path: Path) -> None:
    key = tmp_path / "kept.pub"
    key.write_bytes((directory / "journal.pub").read_bytes())
    (directory / "journal.pub").unlink()
    assert run(["audit", "verify", str(directory)]) == 1
    assert run(["audit", "verify", str(directory), "--key", str(key)]) == 0


def test_a_missing_journal_is_an_error_of_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "verify", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "there is no journal in" in err
    assert "Traceback" not in err
