"""Workloads are chosen by name, by number or all at once."""

from __future__ import annotations

import pytest
from bench.plan import BENCHES
from bench.workloads.names import WORKLOADS, expanded


@pytest.mark.parametrize(
    ("names", "benches"),
    [
        (["workloads"], list(WORKLOADS.values())),
        (["L4", "l6"], ["falling_due", "single_sends"]),
        (["throughput", "L12"], ["throughput", "priority"]),
        (["L1", "reminders"], ["reminders"]),
    ],
)
def test_names_numbers_and_the_group_give_benches(names: list[str], benches: list[str]) -> None:
    assert expanded(names) == benches


def test_every_workload_is_a_bench() -> None:
    assert set(WORKLOADS.values()) <= set(BENCHES)
