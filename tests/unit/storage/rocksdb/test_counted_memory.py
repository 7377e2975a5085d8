"""D20: the memory that the embedded store counts for rows is the memory that they take."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.storage.rocksdb.memory_child import Load

ROOT = Path(__file__).resolve().parents[4]
LOADS = {
    "singles": Load(15_000, 1),
    "single_generated": Load(15_000, 1, own_ids=False),
    "leased_singles": Load(15_000, 1, leased=True),
    "batches": Load(60_000, 1_000),
    "batches_generated": Load(80_000, 1_000, own_ids=False),
    "leased_batches": Load(60_000, 1_000, leased=True),
    "large_bodies": Load(20_000, 1_000, body_bytes=1_000),
    "wide_runs": Load(200_000, 100, far=True),
    "own_ids": Load(300_000, 10_000, far=True),
    "merged_runs": Load(300_000, 1_000, far=True, merged=True),
    "searched_runs": Load(200_000, 100, far=True, searched=True),
    "priorities": Load(40_000, 1_000, priorities=1_000),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_d20_what_is_counted_is_what_the_process_takes(tmp_path: Path, load: Load) -> None:
    command = [sys.executable, "-m", "tests.unit.storage.rocksdb.memory_child", str(tmp_path), json.dumps(asdict(load))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["counted"] == pytest.approx(seen["grown"], rel=0.2)
