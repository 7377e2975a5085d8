"""R2: the power fails under a whole broker. What it did not sync is lost or torn, and no acknowledged change is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dejaq.testing.servers.faults import FaultUnavailable
from tests.chaos.planted import prelude
from tests.chaos.power_runs import faults_after_one_cut, run_with_cuts
from tests.chaos.sizes import new_seed, size

RUNS = size("R2_POWER", ci=3, full=100)
# The runs are divided among so many tests, each with its own limit of time.
TESTS = min(RUNS, 3)
MESSAGES = size("R2_POWER_MESSAGES", ci=400, full=400)


@pytest.mark.parametrize("test", range(TESTS))
async def test_r2_what_was_acknowledged_survives_power_cuts(
    test: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """G1, G2, G3, G4, G5: power cuts under load and during starts, then a full drain and a check of every message."""
    seed = new_seed()
    runs = range(test, RUNS, TESTS)
    cuts = messages = 0
    for number in runs:
        try:
            found = await run_with_cuts(tmp_path / f"disk-{number}", seed + number, messages=MESSAGES)
        except FaultUnavailable as reason:
            pytest.skip(str(reason))
        except BaseException as error:
            error.add_note(f"replay with DEJAQ_CHAOS_SEED={seed + number} DEJAQ_CHAOS_R2_POWER=1")
            raise
        assert not found.faults, f"{found.faults[:20]}\nseed {seed + number}"
        assert found.verdict.acknowledged == MESSAGES
        cuts, messages = cuts + found.cuts, messages + MESSAGES
    record_property("figure", f"{len(runs)} runs of a broker, {cuts} power cuts, {messages} acknowledged, 0 faults")


# A bug, the files and directories whose syncs it leaves out, and code that plants it.
MISSING_SYNCS: dict[str, tuple[tuple[str, ...], str]] = {
    "ack_before_sync": ((), prelude("ack_before_fsync")),
    "log_files": (("*.log",), ""),
    "directory_of_the_log": (("commit",), ""),
    "watermark": (("watermark*",), ""),
    "tables": (("*.sst",), ""),
    "manifest": (("MANIFEST*",), ""),
    "directory_of_the_database": (("db",), ""),
    "names_in_the_data_directory": (("data",), ""),
    "name_of_the_data_directory": (("lib",), ""),
    "segments": (("*.parquet*",), ""),
    "directory_of_the_journal": (("journal",), ""),
}
# When there is a second segment, what the first one has is nowhere else.
SEGMENTS = {"none": 2, "segments": 2, "directory_of_the_journal": 2}


@pytest.mark.parametrize("bug", ["none", *MISSING_SYNCS])
async def test_r19_a_missing_sync_is_found(bug: str, tmp_path: Path) -> None:
    """The runs prove something only if a broker without one of its syncs fails them, and a sound one does not."""
    unsynced, code = MISSING_SYNCS.get(bug, ((), ""))
    try:
        faults = await faults_after_one_cut(
            tmp_path / "disk",
            new_seed(),
            segments=SEGMENTS.get(bug, 0),
            unsynced=unsynced,
            prelude=code,
            answers_without_disk=bug == "ack_before_sync",
        )
    except FaultUnavailable as reason:
        pytest.skip(str(reason))
    assert bool(faults) == (bug != "none"), faults
