"""R19: each planted bug is found by the fault test that must find it, and without a bug the tests find nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.history.ledger import DeliveryFault, WorkloadVerdict
from dejaq.testing.history.workload import Load, Workload
from dejaq.testing.servers.process import BrokerProcess
from tests.chaos.planted import BUGS, prelude
from tests.chaos.sizes import new_seed
from tests.chaos.test_fsync_before_ack import trace_acks

# These consumers often hold messages for too long, because most bugs concern such consumers.
LOAD = Load(messages=300, lease_seconds=0.3, stale_share=0.3, abandon_share=0.1, drain_seconds=2.0)
LOAD_FOR_ALL = replace(LOAD, drain_seconds=60.0)
FOUND_BY_WORKLOAD = {
    "early_by_one": DeliveryFault.EARLY,
    "lease_overlap": DeliveryFault.OVERLAP,
    "lost_delete": DeliveryFault.UNDELETED,
    "skipped_bucket": DeliveryFault.STUCK,
    "no_version_check": DeliveryFault.STALE,
}


async def judge(path: Path, *, load: Load, prelude: str = "") -> WorkloadVerdict:
    """The checks of R1 over a smaller load, without kills."""
    async with BrokerProcess(path, prelude=prelude) as broker, dejaq.connect(broker.url) as client:
        verdict = await Workload(client, "mail", load, seed=new_seed()).run()
        # A bug that breaks the broker completely would be found by any test.
        assert "Traceback" not in broker.log(), broker.log()
        return verdict


def test_r19_every_bug_has_a_test_that_must_find_it() -> None:
    assert set(BUGS) == {*FOUND_BY_WORKLOAD, "ack_before_fsync"}


@pytest.mark.chaos
@pytest.mark.parametrize("bug", FOUND_BY_WORKLOAD)
async def test_r19_the_judgement_of_r1_finds_a_planted_bug(bug: str, tmp_path: Path) -> None:
    """The checks prove G2, G3 and G4 only if a broken broker fails them."""
    verdict = await judge(tmp_path / "data", load=LOAD, prelude=prelude(bug))
    assert 0 < verdict.faults[FOUND_BY_WORKLOAD[bug]] <= verdict.acknowledged, f"{bug} was not found: {verdict}"
    assert verdict.faults[DeliveryFault.STUCK] < verdict.acknowledged // 2


@pytest.mark.chaos
async def test_r19_the_judgement_of_r1_finds_nothing_in_a_sound_broker(tmp_path: Path) -> None:
    """The checks report nothing without a bug, so they report a planted bug because of that bug."""
    verdict = await judge(tmp_path / "data", load=LOAD_FOR_ALL)
    assert not verdict.findings, verdict
    assert verdict.acknowledged == LOAD.messages


async def test_r19_r3_finds_an_ack_before_its_sync(tmp_path: Path) -> None:
    """The check of the trace proves G1 only if a missing sync fails it."""
    acks, faults = await trace_acks(tmp_path, acks=60, prelude=prelude("ack_before_fsync"))
    assert len(acks) >= 60
    assert faults
