"""R19: each planted bug is found by the fault test that is there to find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.planted import prelude
from tests.chaos.test_fsync_before_ack import trace_acks


@pytest.mark.chaos
async def test_r19_r3_finds_an_ack_before_its_sync(tmp_path: Path) -> None:
    """G1 is not proven by a test that a missing sync passes."""
    acks, faults = await trace_acks(tmp_path, acks=60, prelude=prelude("ack_before_fsync"))
    assert len(acks) >= 60
    assert faults
