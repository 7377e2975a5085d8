"""R19: each planted bug is found by the fault test that is there to find it, and nothing is found without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.ledger import Fault, Verdict
from dejaq.testing.process import BrokerProcess
from dejaq.testing.workload import Load, Workload
from tests.chaos.planted import BUGS, prelude
from tests.chaos.sizes import new_seed
from tests.chaos.test_fsync_before_ack import trace_acks

# Consumers that often hold on for too long: what a bug breaks is mostly about them.
LOAD = Load(messages=300, lease_seconds=0.3, stale_share=0.3, abandon_share=0.1, drain_seconds=4.0)
LOAD_FOR_ALL = replace(LOAD, drain_seconds=60.0)
FOUND_BY_WORKLOAD = {
    "early_by_one": Fault.EARLY,
    "lease_overlap": Fault.OVERLAP,
    "lost_delete": Fault.UNDELETED,
    "skipped_bucket": Fault.STUCK,
    "no_version_check": Fault.STALE,
}


async def judge(path: Path, *, load: Load, prelude: str = "") -> Verdict:
    """The judgement of R1 over a smaller load, without the kills."""
    async with BrokerProcess(path, prelude=prelude) as broker, dejaq.connect(broker.url) as client:
        verdict = await Workload(client, "mail", load, seed=new_seed()).run()
        # A bug that breaks the broker altogether would be found by anything.
        assert "Traceback" not in broker.log(), broker.log()
        return verdict


def test_r19_every_bug_has_its_finder() -> None:
    assert set(BUGS) == {*FOUND_BY_WORKLOAD, "ack_before_fsync"}


@pytest.mark.chaos
@pytest.mark.parametrize("bug", FOUND_BY_WORKLOAD)
async def test_r19_the_judgement_of_r1_finds_a_planted_bug(bug: str, tmp_path: Path) -> None:
    """G2, G3, G4 are not proven by a judgement that a broken broker passes."""
    verdict = await judge(tmp_path / "data", load=LOAD, prelude=prelude(bug))
    assert 0 < verdict.faults[FOUND_BY_WORKLOAD[bug]] <= verdict.acknowledged, f"{bug} was not found: {verdict}"
    assert verdict.faults[Fault.STUCK] < verdict.acknowledged // 2


@pytest.mark.chaos
async def test_r19_the_judgement_of_r1_finds_nothing_in_a_sound_broker(tmp_path: Path) -> None:
    """What is found with a bug is found because of it."""
    verdict = await judge(tmp_path / "data", load=LOAD_FOR_ALL)
    assert not verdict.findings, verdict
    assert verdict.acknowledged == LOAD.messages


async def test_r19_r3_finds_an_ack_before_its_sync(tmp_path: Path) -> None:
    """G1 is not proven by a trace that a missing sync passes."""
    acks, faults = await trace_acks(tmp_path, acks=60, prelude=prelude("ack_before_fsync"))
    assert len(acks) >= 60
    assert faults
